"""Tasks that Spark runs again, or twice at once: the ledger has one row per message, and counts what was delivered."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from homing.delivery import recorder as recorder_module
from homing.delivery.arrow.columns import STORED, to_batch
from homing.delivery.arrow.page import Page
from homing.delivery.recorder import Recorder
from homing.errors import LeaseLostError, StoreUnavailableError
from homing.ledger import DELIVERED, Entry, Fence
from homing.message import MessageRef
from homing.spark import task as task_module
from homing.spark.task import Task
from homing.stores import open_store
from homing.stores.sql import SqlLedger, SqlStore

MODULE = """
import threading
import time
from homing import HandlerChain, destination

calls = []
meet = None
seconds = 0


@destination
def crm(number: int):
    calls.append(number)
    time.sleep(seconds)
    if meet is not None and number % 10 == 0:
        meet.wait()


chain = HandlerChain("orders", destinations_flow=crm)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "orders_tried_again.py").write_text(MODULE)
    import orders_tried_again  # type: ignore[import-not-found]

    yield orders_tried_again
    del sys.modules["orders_tried_again"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/orders.db?store=orders"


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    with open_store(url) as opened:
        assert isinstance(opened, SqlStore)
        yield opened


def processed(store: SqlStore, url: str, number: int) -> tuple[Task, list[pa.RecordBatch]]:
    """A step's task, and its messages in batches of ten."""
    store.store_many(range(number))
    held = store.lease_batch(number, batch_id="run", lease=600)
    assert held is not None
    task = Task("orders_tried_again:chain", url, store.ledger().open_step("run", "deliver.crm", 600))
    stored = to_batch(store.batch_rows(held), STORED)
    parts = [stored.slice(start, 10) for start in range(0, number, 10)]
    return task, list(task.process(map(Page.of_batch, parts)))


def deliver(task: Task, batches: Iterator[pa.RecordBatch]) -> None:
    for _ in task.deliver("crm", batches):
        pass


def assert_counted(store: SqlStore, module: Any) -> None:
    """One row per message, with as many deliveries as were made."""
    made = Counter(module.calls)
    ids = [message_id for message_id, _, _ in store.view.states()]
    entries = store.ledger().entries(ids)
    assert [list(entries[message_id]) for message_id in ids] == [["crm"]] * len(ids)
    counted = [entries[message_id]["crm"].deliveries for message_id in ids]
    assert counted == [made[number] for number in range(len(ids))]


def test_a_task_that_is_tried_again_delivers_only_what_was_not_recorded(module: Any, store: SqlStore, url: str) -> None:
    task, batches = processed(store, url, 40)

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield from batches[:2]
        raise ConnectionError("the executor that has the rest is gone")

    with pytest.raises(ConnectionError):
        deliver(task, interrupted())
    deliver(task, iter(batches))

    assert sorted(module.calls) == list(range(40))
    assert_counted(store, module)


def test_two_copies_of_a_task_at_once_are_one_row_per_message_and_every_delivery_counted(
    module: Any, store: SqlStore, url: str
) -> None:
    task, batches = processed(store, url, 20)
    module.meet = threading.Barrier(2, timeout=60)  # so that neither can see what the other recorded
    copies = [threading.Thread(target=deliver, args=(task, iter(batches))) for _ in range(2)]
    for copy in copies:
        copy.start()
    for copy in copies:
        copy.join()

    assert Counter(module.calls) == dict.fromkeys(range(20), 2)
    assert_counted(store, module)


class Copy:
    """One of several copies of a Spark task, as the executor that runs it knows it."""

    def __init__(self, attempt: int) -> None:
        self._attempt = attempt

    def stageId(self) -> int:  # noqa: N802 - Spark's name
        return 3

    def partitionId(self) -> int:  # noqa: N802
        return 7

    def attemptNumber(self) -> int:  # noqa: N802
        return self._attempt


def test_the_first_of_two_copies_gives_way_to_the_second_and_nothing_is_delivered_twice(
    module: Any, store: SqlStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, batches = processed(store, url, 60)
    here = threading.local()
    monkeypatch.setattr(task_module, "TaskContext", SimpleNamespace(get=lambda: getattr(here, "copy", None)))
    module.seconds = 0.05

    def run(attempt: int) -> None:
        here.copy = Copy(attempt)
        deliver(task, iter(batches))

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, 0)
        wait_until(lambda: len(module.calls) > 5)
        second = pool.submit(run, 1)
        assert isinstance(first.exception(60), LeaseLostError)
        stopped_at = len(module.calls)
        second.result(60)

    assert stopped_at < 60
    assert sorted(module.calls) == list(range(60))
    assert_counted(store, module)


def wait_until(done: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_task_whose_step_was_taken_over_records_nothing_more(module: Any, store: SqlStore, url: str) -> None:
    task, batches = processed(store, url, 20)
    successor = replace(task, fence=store.ledger().open_step("run", "deliver.crm", 600))
    with pytest.raises(LeaseLostError):
        deliver(task, iter(batches))
    assert store.ledger().entries(row["id"] for row in batches[0].to_pylist()) == {}
    module.calls.clear()
    deliver(successor, iter(batches))
    assert_counted(store, module)


def test_a_delivery_that_hangs_while_the_step_is_taken_over_is_the_last_one(
    module: Any, store: SqlStore, url: str
) -> None:
    task, batches = processed(store, url, 20)
    module.seconds = 2.0
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(deliver, task, iter(batches))
        wait_until(lambda: len(module.calls) == 1)
        store.ledger().open_step("run", "deliver.crm", 600)
        assert isinstance(hanging.exception(60), LeaseLostError)

    assert module.calls == [0]


class Forgetful(SqlLedger):
    """A ledger whose answer is lost once, after the commit."""

    lost = False

    def record(self, fence: Fence, entries: Any) -> None:
        rows = list(entries)
        super().record(fence, rows)
        if rows and not self.lost:
            self.lost = True
            raise StoreUnavailableError("the connection broke")


def test_a_delivery_that_is_recorded_again_because_the_answer_was_lost_is_counted_once(store: SqlStore) -> None:
    ledger = Forgetful(store._database, store.name)
    fence = ledger.open_step("run", "deliver.crm", 600)
    with Recorder(ledger, fence) as recorder:
        recorder.add(Entry(MessageRef("", 1, "m"), "crm", DELIVERED, batch_id="run"))
        with pytest.raises(StoreUnavailableError):
            recorder._flush()
        recorder.add(Entry(MessageRef("", 2, "n"), "crm", DELIVERED, batch_id="run"))
    entries = ledger.entries(["m", "n"])
    assert [(entries[name]["crm"].deliveries, entries[name]["crm"].attempts) for name in "mn"] == [(1, 1), (1, 1)]


class Refusing(SqlLedger):
    """A ledger that is away once, before anything is written."""

    refused = False

    def record(self, fence: Fence, entries: Any) -> None:
        rows = list(entries)
        if rows and not self.refused:
            self.refused = True
            raise StoreUnavailableError("the connection broke")
        super().record(fence, rows)


def test_what_could_not_be_recorded_is_recorded_with_what_comes_next(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "FLUSH_EVERY_SECONDS", 600)  # nobody else flushes
    ledger = Refusing(store._database, store.name)
    fence = ledger.open_step("run", "deliver.crm", 600)
    with Recorder(ledger, fence) as recorder:
        recorder.add(Entry(MessageRef("", 1, "m"), "crm", DELIVERED, batch_id="run"))
        with pytest.raises(StoreUnavailableError):
            recorder._flush()
        recorder.add(Entry(MessageRef("", 1, "n"), "crm", DELIVERED, batch_id="run"))
    assert ledger.entries(["m", "n"]).keys() == {"m", "n"}


def test_after_a_crash_a_message_that_has_passed_is_no_suspect_any_more(store: SqlStore, url: str, module: Any) -> None:
    store.store("order")
    held = store.lease_batch(1, batch_id="run", lease=600)
    assert held is not None
    ledger = store.ledger()
    careful = replace(ledger.open_step("run", "process", 600), crashed=True)
    page = Page.of_batch(to_batch(store.batch_rows(held), STORED))

    passed = Task("orders_tried_again:chain", url, careful).process(iter([page]))
    next(passed)  # whatever dies now, dies of something else

    assert ledger.open_step("run", "process", 600).suspect is None
    with pytest.raises(LeaseLostError):
        passed.close()
