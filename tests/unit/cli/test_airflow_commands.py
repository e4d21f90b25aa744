"""`airflow homing …` is the same commands, with connections resolved; run once as people run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

import homing
from homing import open_store
from homing.cli.commands import COMMANDS


def test_the_provider_adds_every_command() -> None:
    from homing.airflow.commands import get_cli_commands
    from homing.airflow.provider_info import get_provider_info

    (group,) = get_cli_commands()

    assert get_provider_info()["cli"] == [f"{get_cli_commands.__module__}.{get_cli_commands.__name__}"]
    assert [command.name for command in group.subcommands] == [command.name for command in COMMANDS]


def _make_store(url: str) -> None:
    """As its first producer or consumer would."""
    with open_store(url) as store:
        store.count()


def test_a_command_ends_with_the_same_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from homing.airflow.commands import get_cli_commands

    peek = next(command for command in get_cli_commands()[0].subcommands if command.name == "peek")
    _make_store(f"sqlite:///{tmp_path}/x.db")

    with pytest.raises(SystemExit) as end:
        peek.func(Namespace(store=f"sqlite:///{tmp_path}/x.db", limit=1, output="table"))

    assert (end.value.code, capsys.readouterr().out) == (1, "no results\n")


def test_a_command_finds_a_chain_in_the_dag_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from homing.airflow.commands import get_cli_commands

    code = "from homing import HandlerChain, destination\n@destination\ndef lake(content): ...\n"
    (tmp_path / "foldered_chain.py").write_text(f"{code}chain = HandlerChain('x', destinations_flow=[lake])\n")
    monkeypatch.setattr("airflow.settings.DAGS_FOLDER", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    audit = next(command for command in get_cli_commands()[0].subcommands if command.name == "audit")
    url = f"sqlite:///{tmp_path}/x.db"
    given = {"chain": "foldered_chain:chain", "destinations": None, "output": "json"}
    _make_store(f"{url}?store=a")

    with pytest.raises(SystemExit) as end:
        audit.func(Namespace(store=f"{url}?store=a", dead_letter_store=f"{url}?store=b", **given))

    assert end.value.code == 0, capsys.readouterr().err


def test_a_command_finds_its_store_by_connection_id(tmp_path: Path) -> None:
    connection = {"conn_type": "homing", "schema": f"{tmp_path}/x.db", "extra": {"scheme": "sqlite", "store": "orders"}}
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW_CONN_ORDERS": json.dumps(connection),
        "PYTHONPATH": str(Path(homing.__path__[0]).parent),
    }

    command = [str(Path(sys.executable).parent / "airflow"), "homing", "send", '{"number": 1}', "--store", "orders"]
    sent = subprocess.run(
        [*command, "-o", "json"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )

    assert sent.returncode == 0, sent.stderr
    with homing.open_store(f"sqlite:///{tmp_path}/x.db?store=orders") as store:
        assert [message.id for message in store.browse()] == [json.loads(sent.stdout)[0]["id"]]
