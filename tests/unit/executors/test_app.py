"""The mains of the Spark applications, where no Spark is needed: nothing to do, or set up wrongly."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homing.delivery import Batch, PipelineStores, open_pipeline_stores
from homing.delivery.work_files import LocalFiles, WorkDir
from homing.ledger import DELIVERED, Entry
from homing.spark import jobs, sessions

MODULE = """
from homing import HandlerChain, destination


@destination
def crm(ctx): ...


chain = HandlerChain("orders", destinations_flow=crm)
"""


class Started(BaseException):
    """Spark was started."""


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    (tmp_path / "orders_app.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HOMING_STORE", f"sqlite:///{tmp_path}/orders.db?store=orders")
    monkeypatch.setenv("HOMING_DEAD_LETTER_STORE", f"sqlite:///{tmp_path}/orders.db?store=dead")
    yield ["--chain", "orders_app:chain", "--run-id", "run"]
    sys.modules.pop("orders_app", None)


@pytest.fixture
def stores(arguments: list[str]) -> Iterator[PipelineStores]:
    with open_pipeline_stores(jobs.STORE, jobs.DEAD_LETTER_STORE) as opened:
        opened.store.store_many([{"n": 1}, {"n": 2}])
        assert Batch(opened, "run", ["crm"]).claim(10) == 2
        yield opened


def spark_as(monkeypatch: pytest.MonkeyPatch, master: str | None) -> None:
    @contextmanager
    def session(name: str) -> Iterator[Any]:
        if master is None:
            raise Started
        yield SimpleNamespace(sparkContext=SimpleNamespace(master=master))

    monkeypatch.setattr(sessions, "open_session", session)


def record(stores: PipelineStores, number: int) -> None:
    """The first so many messages are delivered already."""
    fence = stores.ledger.open_step("run", "earlier", 600)
    known = list(stores.store.view.states())[:number]
    stores.ledger.record(fence, [Entry(ref, "crm", DELIVERED, batch_id="run") for _, _, ref in known])


def test_no_spark_is_started_for_a_destination_that_has_everything(
    arguments: list[str], stores: PipelineStores, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spark_as(monkeypatch, None)
    deliver = [*arguments, "--flow", "crm", "--work-dir", str(tmp_path)]
    record(stores, 1)
    with pytest.raises(Started):
        jobs.deliver_main(deliver)
    record(stores, 2)
    assert jobs.deliver_main(deliver) == 0


def test_no_spark_is_started_when_the_source_flow_left_nothing(
    arguments: list[str], stores: PipelineStores, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spark_as(monkeypatch, None)
    work = WorkDir(str(tmp_path), LocalFiles(), stores.ledger)
    work.new_output("run", "owner")
    work.publish(stores.ledger.open_step("run", "process", 600), [])
    assert jobs.deliver_main([*arguments, "--flow", "crm", "--work-dir", str(tmp_path)]) == 0


def test_a_replay_of_what_is_complete_acknowledges_it_without_spark(
    arguments: list[str], stores: PipelineStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_as(monkeypatch, None)
    record(stores, 2)
    assert jobs.replay_main(arguments) == 0
    assert stores.store.count()["acknowledged"] == 2


def test_a_missing_connection_is_a_mistake_in_the_set_up_and_holds_nothing_up(
    arguments: list[str], stores: PipelineStores, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "orders_app.py").write_text(MODULE.replace("@destination", '@destination(connections=["crm_api"])'))
    spark_as(monkeypatch, None)
    deliver = [*arguments, "--work-dir", str(tmp_path), "--flow", "crm"]

    assert jobs.deliver_main(deliver) == jobs.deliver_main([*deliver, "--without-spark"]) == 2
    assert "there is no connection 'crm_api', which the destination 'crm' asks for" in capsys.readouterr().err
    monkeypatch.setenv("AIRFLOW_CONN_CRM_API", "http://crm")
    with pytest.raises(Started):
        jobs.deliver_main(deliver)


def test_sqlite_and_a_cluster_is_a_mistake_in_the_set_up(
    arguments: list[str], stores: PipelineStores, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    spark_as(monkeypatch, "spark://127.0.0.1:7077")
    assert jobs.process_main([*arguments, "--work-dir", str(tmp_path)]) == 2
    assert "SQLite is a file on one machine" in capsys.readouterr().err
