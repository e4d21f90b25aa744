"""What an executor does for a destination that takes batches. No Spark session is needed for that."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homing.delivery.arrow.columns import STORED, rows_of, to_batch
from homing.delivery.arrow.page import Page
from homing.failure import worker_crash
from homing.ledger import DELIVERED, FAILED, PROCESSED, SOURCE_FLOW, Entry, Ledger
from homing.spark.task import Task
from homing.stores import open_store
from homing.stores.sql import SqlStore

MODULE = """
import threading

from homing import CircuitBreaker, HandlerChain, PartialFailure, destination, destination_router, transformer

calls = []
clients = []


def connect():
    clients.append("open")
    return clients


@destination(batch=4, setup=connect)
def lake(numbers: list[int], client):
    calls.append(list(numbers))
    raise PartialFailure({place: "three" for place, number in enumerate(numbers) if number == 3})


@destination_router
def route(ctx):
    return lake


together = threading.Barrier(4, timeout=60)


@destination(threads=4, rate=10_000)
def waits(number: int):
    if number < 8:
        together.wait()  # only four at the same time get past this
    if number == 9:
        raise ValueError("nine")


down = []


@destination(threads=2, breaker=CircuitBreaker(failures=3, pause=600))
def broken(number: int):
    down.append(number)
    raise ConnectionError("down")


together_routed = threading.Barrier(5, timeout=60)


@destination(threads=4)
def eu(number: int):
    together_routed.wait()  # only four at the same time get past this, and one of another destination


@destination
def us(number: int):
    together_routed.wait()


@destination_router
def by_region(ctx):
    number = ctx.get_content()
    return us if number % 5 == 0 else eu


@destination_router
def by_health(ctx):
    return broken if ctx.get_content() % 2 else lake


chain = HandlerChain("orders", destinations_flow=lake)
regions = HandlerChain("orders", destinations_flow=by_region)
health = HandlerChain("orders", destinations_flow=by_health)
threads = HandlerChain("orders", destinations_flow=waits)
breaks = HandlerChain("orders", destinations_flow=broken)
routed = HandlerChain("orders", destinations_flow=route)


@transformer
def passed(ctx):
    return ctx.get_content()


begun = HandlerChain("orders", source_flow=passed, destinations_flow=lake)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "orders_in_batches.py").write_text(MODULE)
    import orders_in_batches  # type: ignore[import-not-found]

    yield orders_in_batches
    del sys.modules["orders_in_batches"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with open_store(f"sqlite:///{tmp_path}/orders.db?store=orders") as opened:
        assert isinstance(opened, SqlStore)
        yield opened


def run(
    store: SqlStore, url: str, chain: str, flow: str, rate: float | None = None
) -> tuple[dict[str, int], list[str]]:
    """Processes and delivers ten messages as an executor would; the tally, and the ids."""
    ids = store.store_many(range(10))
    held = store.lease_batch(10, batch_id="run-1", lease=60)
    assert held is not None
    fence = store.ledger().open_step("run-1", "deliver", 60)
    task = Task(f"orders_in_batches:{chain}", url, fence, rate=rate)
    stored = to_batch(store.batch_rows(held), STORED)
    processed = list(task.process(iter([Page.of_batch(stored)])))
    tally = [row for batch in task.deliver(flow, iter(processed)) for row in rows_of(batch)]
    return {row["state"]: row["messages"] for row in tally}, ids


def states(ledger: Ledger, ids: list[str], flow: str) -> list[str]:
    entries = ledger.entries(ids)
    return [entries[message_id][flow].state for message_id in ids]


@pytest.mark.parametrize(("chain", "flow", "sizes"), [("chain", "lake", [4, 4, 2]), ("routed", "route", [4, 4, 2])])
def test_executor_delivers_in_batches_and_records_each_message(
    module: Any, store: SqlStore, tmp_path: Path, *, chain: str, flow: str, sizes: list[int]
) -> None:
    tally, ids = run(store, f"sqlite:///{tmp_path}/orders.db?store=orders", chain, flow)
    assert tally == {DELIVERED: 9, FAILED: 1}
    assert [len(call) for call in module.calls] == sizes
    assert states(store.ledger(), ids, flow) == [FAILED if number == 3 else DELIVERED for number in range(10)]
    assert store.ledger().entries([ids[3]])[ids[3]][flow].error["message"] == "three"  # type: ignore[index]
    assert module.clients == ["open"]


def test_messages_that_are_done_are_in_no_batch(module: Any, store: SqlStore, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/orders.db?store=orders"
    run(store, url, "chain", "lake")
    module.calls.clear()
    held = store.held_batch("run-1")
    assert held is not None
    task = Task("orders_in_batches:chain", url, store.ledger().open_step("run-1", "deliver", 60))
    processed = list(task.process(iter([Page.of_batch(to_batch(store.batch_rows(held), STORED))])))
    tally = [row for batch in task.deliver("lake", iter(processed)) for row in rows_of(batch)]
    assert {row["state"]: row["messages"] for row in tally} == {"skipped": 9, FAILED: 1}
    assert module.calls == [[3]]


def test_what_is_only_begun_is_not_said_to_have_failed_no_more(module: Any, store: SqlStore, tmp_path: Path) -> None:
    """Whoever runs the rest of the flow says so, once it is through."""
    (message_id,) = store.store_many(["x"])
    held = store.lease_batch(1, batch_id="run-1", lease=60)
    assert held is not None
    url, fence = f"sqlite:///{tmp_path}/orders.db?store=orders", store.ledger().open_step("run-1", "process", 60)
    ((_, _, ref),) = store.view.states()
    error = {"type": "ValueError", "message": "no", "handler": "passed", "stack": "", "attempt": 1}
    store.ledger().record(fence, [Entry(ref, SOURCE_FLOW, FAILED, error=error, batch_id="run-1")])
    task = Task("orders_in_batches:begun", url, fence)

    for stop, state in ((0, FAILED), (1, PROCESSED)):
        page = Page.of_batch(to_batch(store.batch_rows(held), STORED))
        assert sum(batch.num_rows for batch in task.process(iter([page]), stop)) == 1
        assert states(store.ledger(), [message_id], SOURCE_FLOW) == [state]


def test_what_a_worker_died_of_between_two_dataframe_handlers_is_not_run_again_by_the_next_try(
    module: Any, store: SqlStore, tmp_path: Path
) -> None:
    ids = store.store_many(["kills", "does not"])
    held = store.lease_batch(2, batch_id="run-1", lease=60)
    assert held is not None
    url, first = f"sqlite:///{tmp_path}/orders.db?store=orders", store.ledger().open_step("run-1", "process", 60)
    page = Page.of_batch(to_batch(store.batch_rows(held), STORED))
    processed = list(Task("orders_in_batches:begun", url, first).process(iter([page]), 0))
    refs = {ref.id: ref for _, _, ref in store.view.states()}
    dead = Entry(refs[ids[0]], SOURCE_FLOW, FAILED, error=worker_crash("passed"), batch_id="run-1")
    store.ledger().record(first, [dead])
    after_the_crash = replace(first, crashed=True)

    left = Task("orders_in_batches:begun", url, after_the_crash).go_on(SOURCE_FLOW, 0, 1, iter(processed))

    assert [row["id"] for batch in left for row in rows_of(batch)] == [ids[1]]


def test_threads_deliver_at_the_same_time_and_each_message_is_recorded_once(
    module: Any, store: SqlStore, tmp_path: Path
) -> None:
    tally, ids = run(store, f"sqlite:///{tmp_path}/orders.db?store=orders", "threads", "waits")
    assert tally == {DELIVERED: 9, FAILED: 1}
    assert states(store.ledger(), ids, "waits") == [DELIVERED] * 9 + [FAILED]
    entries = store.ledger().entries(ids)
    assert {entries[message_id]["waits"].attempts for message_id in ids} == {1}


@pytest.mark.parametrize(("chain", "flow"), [("chain", "lake"), ("routed", "route"), ("threads", "waits")])
def test_a_replay_keeps_to_its_rate_whatever_the_destination_takes(
    module: Any, store: SqlStore, tmp_path: Path, *, chain: str, flow: str
) -> None:
    began = time.monotonic()

    tally, _ = run(store, f"sqlite:///{tmp_path}/orders.db?store=orders", chain, flow, rate=5)

    assert sum(tally.values()) == 10
    assert time.monotonic() - began >= 9 / 5  # the first is not waited for


def test_what_is_not_sent_to_a_destination_that_is_down_is_left_to_the_replay(
    module: Any, store: SqlStore, tmp_path: Path
) -> None:
    tally, ids = run(store, f"sqlite:///{tmp_path}/orders.db?store=orders", "breaks", "broken")
    assert tally == {FAILED: 10}
    assert 3 <= len(module.down) <= 4  # the second thread may have been under way
    errors = [store.ledger().entries(ids)[message_id]["broken"].error for message_id in ids]
    assert {error["type"] for error in errors if error} == {"ConnectionError", "homing.errors.CircuitOpenError"}


def test_behind_a_router_every_destination_has_its_own_threads(module: Any, store: SqlStore, tmp_path: Path) -> None:
    tally, ids = run(store, f"sqlite:///{tmp_path}/orders.db?store=orders", "regions", "by_region")
    assert tally == {DELIVERED: 10}
    entries = store.ledger().entries(ids)
    reached = [entries[message_id]["by_region"].destination for message_id in ids]
    assert reached == ["us" if number % 5 == 0 else "eu" for number in range(10)]


def test_behind_a_router_a_destination_that_is_down_holds_up_no_other(
    module: Any, store: SqlStore, tmp_path: Path
) -> None:
    tally, ids = run(store, f"sqlite:///{tmp_path}/orders.db?store=orders", "health", "by_health")
    assert tally == {DELIVERED: 5, FAILED: 5}
    assert 3 <= len(module.down) <= 4  # the second thread may have been under way
    assert [sorted(call) for call in module.calls] == [[0, 2, 4, 6], [8]]
    errors = [store.ledger().entries(ids)[message_id]["by_health"].error for message_id in ids[1::2]]
    assert "homing.errors.CircuitOpenError" in {error["type"] for error in errors if error}
