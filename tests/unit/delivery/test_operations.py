"""Operations: who changed what, when and why is durable before the change, and is only ever added to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import datetime, timedelta, timezone

import pytest

from homing.delivery import PipelineStores
from homing.delivery.operations import (
    DONE,
    FAILED,
    FORGET,
    PURGE,
    REPLAY,
    UNFINISHED,
    Operator,
    named,
    operation,
    operator_here,
    read_operations,
)
from homing.errors import StoreError
from homing.operation_log import OperationEvent
from homing.stores import open_store
from homing.stores.sql import SqlStore

ALICE = Operator("alice@desk", "homing")


def test_an_operation_says_who_did_what_when_why_and_what_came_of_it(stores: PipelineStores) -> None:
    before = datetime.now(timezone.utc) - timedelta(seconds=60)

    with operation(
        stores.store, FORGET, by=ALICE, why="article 17", messages=2, selection=named(["a", "b"])
    ) as outcome:
        outcome["forgotten"] = 2

    (one,) = read_operations(stores.store, before)
    assert (one.what, one.who, one.via, one.why, one.messages) == (FORGET, "alice@desk", "homing", "article 17", 2)
    assert (one.state, one.selection, one.outcome) == (DONE, {"ids": ["a", "b"]}, {"forgotten": 2})
    assert one.began is not None
    assert one.ended is not None
    assert before < one.began <= one.ended


def test_its_beginning_is_durable_before_the_change(database: str, stores: PipelineStores) -> None:
    with operation(stores.store, PURGE, by=ALICE), open_store(f"{database}?store=orders") as other:
        assert isinstance(other, SqlStore)
        assert [(one.what, one.state) for one in read_operations(other)] == [(PURGE, UNFINISHED)]


def test_nothing_is_changed_when_the_beginning_cannot_be_written(
    stores: PipelineStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise StoreError("the database is full")

    monkeypatch.setattr("homing.stores.sql.operations.SqlOperations.append", refuse)
    changed = []

    with pytest.raises(StoreError, match="is full"), operation(stores.store, PURGE, by=ALICE):
        changed.append("something")

    assert changed == []


def test_an_operation_that_raises_has_failed(stores: PipelineStores) -> None:
    with pytest.raises(ValueError, match="secret"), operation(stores.store, REPLAY, by=ALICE):
        raise ValueError("secret content")

    (one,) = read_operations(stores.store)
    assert (one.state, one.outcome) == (FAILED, {"error": "ValueError"})


def test_a_change_that_was_made_stays_made_when_its_end_cannot_be_written(
    stores: PipelineStores, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> bool:
        raise StoreError("the database is full")

    with operation(stores.store, PURGE, by=ALICE):
        monkeypatch.setattr("homing.stores.sql.operations.SqlOperations.append", refuse)

    assert "was not written down" in caplog.text
    assert [one.state for one in read_operations(stores.store)] == [UNFINISHED]


def test_of_a_process_that_died_in_between_the_beginning_is_left(database: str, stores: PipelineStores) -> None:
    script = f"""
import os, signal
from homing import open_store
from homing.delivery.operations import PURGE, Operator, operation
with open_store("{database}?store=orders") as store, operation(store, PURGE, by=Operator("eve", "homing")):
    os.kill(os.getpid(), signal.SIGKILL)
"""

    ended = subprocess.run([sys.executable, "-c", script], timeout=120, check=False)

    assert ended.returncode == -signal.SIGKILL
    assert [(one.who, one.state) for one in read_operations(stores.store)] == [("eve", UNFINISHED)]


def test_what_is_begun_again_under_its_id_is_written_down_once(stores: PipelineStores) -> None:
    for _ in range(2):
        with operation(stores.store, REPLAY, by=ALICE, messages=3, operation_id="orders_replay/run 1"):
            pass

    (one,) = read_operations(stores.store)
    assert [event.event for event in one.events] == ["begun", "done"]


def test_of_two_at_once_one_writes_it_down(database: str) -> None:
    written, ready = [], threading.Barrier(2)
    event = OperationEvent("run 1", "begun", REPLAY, "alice", "airflow")

    def write() -> None:
        with open_store(f"{database}?store=orders") as store:
            assert isinstance(store, SqlStore)
            kept = store.operations()
            kept.of("run 1")  # the table is there
            ready.wait(60)
            written.append(kept.append(event))

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(written) == [False, True]


def test_what_is_long_is_cut_and_what_steers_terminals_is_escaped(stores: PipelineStores) -> None:
    ids = [f"{number}-{'x' * 250}" for number in range(10_000)]

    with operation(stores.store, REPLAY, by=Operator("e\x1b[2Jve\0", "h" * 99), why="w" * 9_999, selection=named(ids)):
        pass

    (one,) = read_operations(stores.store)
    assert (one.who, len(one.via), len(one.why or "")) == (r"e\x1b[2Jve\x00", 32, 2_000)
    assert one.selection["ids_in_all"] == 10_000
    assert len(str(one.selection)) < 9_000


def test_the_last_ones_are_asked_for(stores: PipelineStores) -> None:
    for number in range(5):
        with operation(stores.store, PURGE, by=ALICE, why=str(number)):
            pass

    assert [one.why for one in read_operations(stores.store, limit=2)] == ["3", "4"]


def test_who_is_at_a_terminal_is_not_asked_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "LOGNAME", "SUDO_USER"):
        monkeypatch.setenv(name, "mallory")

    assert "mallory" not in operator_here("homing").name
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999_999)
    assert operator_here("homing").name.startswith("uid 3999999999@")


def test_a_store_that_is_in_no_database_keeps_no_record() -> None:
    with open_store("memory://operations") as store, operation(store, PURGE, by=ALICE) as outcome:
        outcome["removed"] = 1
