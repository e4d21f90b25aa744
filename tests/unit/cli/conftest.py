from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from homing.cli.main import main
from homing.delivery import PipelineStores, open_pipeline_stores
from tests.unit.delivery.conftest import Pipeline

CHAIN = """
import os
from homing import HandlerChain, destination

@destination
def lake(content):
    return "ok"

@destination
def crm(content):
    if os.environ.get("CRM") != "up":
        raise ConnectionError("the CRM is down")
    return 201

chain = HandlerChain("orders", destinations_flow=[lake, crm])
"""


@dataclass
class Answer:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


class Shell:
    """Runs commands in this process, on the stores of the test."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *argv: str) -> Answer:
        self._capsys.readouterr()
        try:
            code = main(argv)
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        return Answer(code, *self._capsys.readouterr())

    def json(self, *argv: str) -> Any:
        answer = self(*argv, "-o", "json")
        assert answer.code in (0, 1), answer.err
        return answer.data


@pytest.fixture
def urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    store, dead = f"sqlite:///{tmp_path}/x.db?store=orders", f"sqlite:///{tmp_path}/x.db?store=orders_dead"
    monkeypatch.setenv("HOMING_STORE", store)
    monkeypatch.setenv("HOMING_DEAD_LETTER_STORE", dead)
    return store, dead


@pytest.fixture
def homing(urls: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def stores(urls: tuple[str, str]) -> Iterator[PipelineStores]:
    with open_pipeline_stores(*urls) as stores:
        yield stores


@pytest.fixture
def pipeline(stores: PipelineStores) -> Pipeline:
    return Pipeline(stores)


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The reference of a chain whose CRM is down until the environment says otherwise."""
    (tmp_path / "cli_chain.py").write_text(CHAIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "cli_chain:chain"
    sys.modules.pop("cli_chain", None)


@pytest.fixture
def failed(pipeline: Pipeline) -> str:
    """A message that the lake has and the CRM refused, in the failure store."""
    batch, (message_id,) = pipeline.claimed("run", {"number": 1})
    pipeline.delivered("run", message_id, "lake")
    pipeline.failed("run", message_id, "crm")
    batch.settle()
    return message_id


@pytest.fixture
def dead(pipeline: Pipeline, failed: str) -> str:
    """The same message after its replays are used up."""
    replay = pipeline.batch("replay")
    replay.reclaim([failed])
    pipeline.failed("replay", failed, "crm", batch_id="run")
    replay.finish_replay()
    return failed
