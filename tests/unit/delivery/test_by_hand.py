"""Replaying in this process and giving up by hand survive the death of whoever does it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from homing import CircuitBreaker, HandlerChain, destination, destination_router, lease_renewer
from homing.delivery import PipelineStores, open_pipeline_stores, run_audit, step
from homing.delivery.dead_letter import dead_letter_messages
from homing.delivery.lease_keeper import LeaseKeeper
from homing.delivery.local_engine import LocalEngine
from homing.delivery.local_replay import replay_in_process
from homing.errors import ChainError, LeaseLostError
from homing.invocation.rate_limit import RateLimiter
from homing.ledger import DELIVERED, FAILED, PROCESSED, SOURCE_FLOW, Entry, Fence
from homing.pipeline.handlers import Handler
from tests.clocks import Clock
from tests.unit.delivery.conftest import FLOWS, Crash, Pipeline


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[PipelineStores]:
    url = f"sqlite:///{tmp_path}/x.db"
    with open_pipeline_stores(f"{url}?store=orders", f"{url}?store=orders_dead") as stores:
        yield stores


def chain_into(received: list[tuple[str, object]]) -> HandlerChain:
    @destination
    def lake(content: object) -> None:
        received.append(("lake", content))

    @destination
    def crm(content: object) -> None:
        received.append(("crm", content))

    return HandlerChain("orders", destinations_flow=[lake, crm])


def fail_both(pipeline: Pipeline, *contents: object) -> list[str]:
    batch, ids = pipeline.claimed("run", *contents)
    for message_id in ids:
        for flow in FLOWS:
            pipeline.failed("run", message_id, flow)
    batch.settle()
    return ids


def test_a_replay_that_dies_repeats_at_most_the_delivery_each_destination_had_in_hand(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, received = pipeline.stores, list[tuple[str, object]]()
    ids = fail_both(pipeline, 1, 2)
    record, recorded = stores.ledger.record, list[Entry]()

    def die_after_the_first(fence: Fence, entries: Iterable[Entry]) -> None:
        rows = list(entries)
        if rows and recorded:
            raise Crash
        recorded.extend(rows)
        record(fence, rows)

    with monkeypatch.context() as patch:
        patch.setattr(stores.ledger, "record", die_after_the_first)
        batch = pipeline.batch("replay")
        batch.reclaim(ids)
        with pytest.raises(Crash):
            replay_in_process(stores, batch, chain_into(received))

    again = pipeline.batch("replay")
    again.reclaim(ids)
    replay_in_process(stores, again, chain_into(received))
    again.settle()

    assert len(recorded) == 1
    assert set(received) == {(flow, content) for flow in FLOWS for content in (1, 2)}
    again_to = Counter(flow for (flow, _), times in Counter(received).items() for _ in range(times - 1))
    assert set(again_to.values()) == {1}
    books = run_audit(stores, FLOWS)
    assert (books.balanced, books.total.delivered) == (True, 2)


def test_a_delivery_of_a_replay_is_recorded_before_the_next_one_is_made(pipeline: Pipeline) -> None:
    stores = pipeline.stores
    ids = fail_both(pipeline, 1, 2, 3)
    batch = pipeline.batch("replay")
    batch.reclaim(ids)
    done = {flow: list[int]() for flow in FLOWS}

    def look(flow: str) -> None:
        done[flow].append(sum(entries[flow].done for entries in stores.ledger.entries(ids).values()))

    @destination
    def lake(content: object) -> None:
        look("lake")

    @destination
    def crm(content: object) -> None:
        look("crm")

    replay_in_process(stores, batch, HandlerChain("orders", destinations_flow=[lake, crm]))

    assert done == {flow: [0, 1, 2] for flow in FLOWS}


@pytest.mark.usefixtures("keyboard")
def test_a_person_who_ends_a_replay_by_the_keyboard_fails_no_message(pipeline: Pipeline) -> None:
    stores = pipeline.stores
    ids = fail_both(pipeline, 1, 2)
    batch = pipeline.batch("replay")
    batch.reclaim(ids)
    hang = threading.Event()

    @destination
    def lake(content: object) -> None:
        if content == 2:
            os.kill(os.getpid(), signal.SIGINT)
            hang.wait()

    @destination
    def crm(content: object) -> None:
        hang.wait()

    with pytest.raises(KeyboardInterrupt):
        replay_in_process(stores, batch, HandlerChain("orders", destinations_flow=[lake, crm]))
    hang.set()

    first, second = (stores.ledger.entries(ids)[one] for one in ids)
    assert first["lake"].done
    assert [entry.run_id for entry in (first["crm"], second["lake"], second["crm"])] == ["run"] * 3
    assert stores.ledger.left_open("replay") == []


@pytest.mark.usefixtures("keyboard")
def test_what_an_interrupt_leaves_behind_begins_with_nothing_that_would_not_be_recorded(pipeline: Pipeline) -> None:
    stores = pipeline.stores
    batch, _ = pipeline.claimed("run", *range(30))
    begun, has_begun, hang = list[int](), threading.Event(), threading.Event()

    @destination
    def lake(content: int) -> None:
        begun.append(content)
        has_begun.set()
        time.sleep(0.3)

    @destination_router
    def route(content: int) -> Handler:
        return lake

    @destination
    def crm(content: int) -> None:
        if content == 1:
            assert has_begun.wait(20)
            os.kill(os.getpid(), signal.SIGINT)
            hang.wait()

    chain = HandlerChain("orders", destinations_flow=[crm, route])
    fence = stores.ledger.open_step("run", "replay", 60)
    with pytest.raises(KeyboardInterrupt):
        LocalEngine(chain, stores, batch, fence).replay()
    hang.set()
    in_hand = len(begun)
    time.sleep(1.0)

    assert len(begun) == in_hand


def test_destinations_that_wait_for_each_other_are_both_delivered_in_a_replay(pipeline: Pipeline) -> None:
    stores = pipeline.stores
    ids = fail_both(pipeline, 1, 2)
    batch = pipeline.batch("replay")
    batch.reclaim(ids)
    together = threading.Barrier(2, timeout=60)

    @destination
    def lake(content: object) -> None:
        together.wait()

    @destination
    def crm(content: object) -> None:
        together.wait()

    ended = replay_in_process(stores, batch, HandlerChain("orders", destinations_flow=[lake, crm]))

    assert ended == {DELIVERED: 4}


def test_a_replay_keeps_to_the_batches_threads_and_breaker_of_its_destinations(pipeline: Pipeline) -> None:
    stores = pipeline.stores
    ids = fail_both(pipeline, *range(6))
    batch = pipeline.batch("replay")
    batch.reclaim(ids)
    together, batches, called = threading.Barrier(3, timeout=60), list[list[int]](), list[int]()

    @destination(batch=4)
    def lake(contents: list[int]) -> None:
        batches.append(contents)

    @destination(threads=3)
    def crm(content: int) -> None:
        together.wait()  # only three at the same time get past this

    @destination(breaker=CircuitBreaker(failures=2, pause=600))
    def down(content: int) -> None:
        called.append(content)
        raise ConnectionError("down")

    ended = replay_in_process(stores, batch, HandlerChain("orders", destinations_flow=[lake, crm, down]))

    assert ended == {DELIVERED: 12, FAILED: 6}
    assert sorted(map(len, batches)) == [2, 4]
    assert len(called) == 2


def test_a_chain_with_dataframe_handlers_is_refused_before_any_message_fails(pipeline: Pipeline) -> None:
    stores, ids = pipeline.stores, fail_both(pipeline, 1)
    batch = pipeline.batch("replay")
    batch.reclaim(ids)
    before = stores.ledger.entries(ids)

    @destination(dataframe=True)
    def lake(messages: object) -> None:
        raise AssertionError("not to be called")

    with pytest.raises(ChainError, match="'lake' takes a whole DataFrame and runs on Spark only"):
        replay_in_process(stores, batch, HandlerChain("orders", destinations_flow=[lake]))

    assert stores.ledger.entries(ids) == before


def test_a_replay_that_was_taken_over_stops_at_its_next_delivery(pipeline: Pipeline) -> None:
    stores, received = pipeline.stores, list[tuple[str, object]]()
    ids = fail_both(pipeline, 1, 2)
    batch = pipeline.batch("replay")
    batch.reclaim(ids)

    @destination
    def crm(content: object) -> None:
        received.append(("crm", content))
        stores.ledger.open_step("replay", "replay", 60)  # somebody else takes the step over

    with pytest.raises(LeaseLostError):
        replay_in_process(stores, batch, HandlerChain("orders", destinations_flow=[crm]))

    assert len(received) == 1


def wait_until(true: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("what was waited for did not happen")


@pytest.mark.parametrize("slow", ["message", "rate"])
def test_a_replay_keeps_its_batch_while_a_message_takes_or_waits_longer_than_the_lease(
    pipeline: Pipeline, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, received, clock, lease = pipeline.stores, list[object](), Clock(), 60.0
    for store in (stores.store, stores.failures, stores.dead_letters):
        monkeypatch.setattr(store._database, "_ticks", clock)
    ids = fail_both(pipeline, 1, 2)
    batch = pipeline.batch("replay")
    batch.reclaim(ids, lease)
    begun, ends = threading.Event(), threading.Event()
    # Renewed soon by this machine's clock, and long by the stores', which goes on when the lease was renewed.
    renewals, renew = list[float](), LeaseKeeper._renew
    monkeypatch.setattr(lease_renewer, "_RENEW_AT", 0.001)
    monkeypatch.setattr(LeaseKeeper, "_renew", lambda keeper: renewals.append(renew(keeper)) or lease)
    if slow == "rate":
        monkeypatch.setattr(step, "RateLimiter", lambda rate, sleep: RateLimiter(rate, sleep=lambda _: ends.wait(60)))

    @destination
    def lake(content: object) -> None:
        received.append(content)
        begun.set()
        if slow == "message":
            ends.wait(60)

    chain = HandlerChain("orders", destinations_flow=[lake])
    with ThreadPoolExecutor(1) as pool:
        rate = 0.001 if slow == "rate" else 1000
        replayed = pool.submit(replay_in_process, stores, batch, chain, rate=rate, lease=lease)
        assert begun.wait(60)
        taken = 0
        try:
            for _ in range(3):  # more than twice the lease, and the message, or the wait for the second, goes on
                enough = len(renewals) + 2  # the first of these may have begun before
                wait_until(lambda enough=enough: len(renewals) >= enough)
                clock.advance(0.9 * lease)
                taken += pipeline.batch("somebody else's").reclaim(ids)
        finally:
            ends.set()
        tally = replayed.result(timeout=60)

    assert taken == 0
    assert sorted(map(str, received)) == ["1", "2"]
    assert tally[DELIVERED] == 2


def test_a_replay_that_loses_its_step_while_it_waits_for_its_rate_begins_with_no_other_message(
    pipeline: Pipeline,
) -> None:
    stores, received = pipeline.stores, list[object]()
    ids = fail_both(pipeline, 1, 2)
    batch = pipeline.batch("replay")
    batch.reclaim(ids, 1.0)

    @destination
    def lake(content: object) -> None:
        received.append(content)

    def has_recorded() -> bool:
        return any(flows["lake"].done for flows in stores.ledger.entries(ids).values())

    with ThreadPoolExecutor(1) as pool:
        chain = HandlerChain("orders", destinations_flow=[lake])
        replayed = pool.submit(replay_in_process, stores, batch, chain, rate=0.05, lease=1.0)
        wait_until(has_recorded)
        stores.ledger.open_step("replay", "replay", 600)
        with pytest.raises(LeaseLostError):
            replayed.result(timeout=60)

    assert len(received) == 1


def test_giving_up_that_dies_before_the_copy_leaves_the_message_where_it_is(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = pipeline.stores
    stores.store.store(1, id="m")

    def die(*arguments: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(stores.dead_letters, "store_many", die)
        with pytest.raises(Crash):
            dead_letter_messages(stores, ["m"], "no use")

    assert stores.store.view.present(["m"]) == {"m"}
    assert run_audit(stores, FLOWS).balanced


def test_giving_up_that_dies_after_the_copy_is_counted_once(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = pipeline.stores
    stores.store.store(1, id="m")
    settle, calls = stores.store.settle_batch, []

    def die_at_the_second(*arguments: object, **more: object) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise Crash
        settle(*arguments, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(stores.store, "settle_batch", die_at_the_second)
        with pytest.raises(Crash):
            dead_letter_messages(stores, ["m"], "no use")

    books = run_audit(stores, FLOWS)
    assert (books.balanced, books.total.dead_lettered, stores.dead_letters.count()["available"]) == (True, 1, 1)


def test_giving_up_one_message_leaves_others_that_a_store_keeps_aside_alone(pipeline: Pipeline) -> None:
    stores = pipeline.stores
    batch, (crashed, other) = pipeline.claimed("run", 1, 2)
    pipeline.failed("run", crashed, SOURCE_FLOW)
    batch.settle()
    pipeline.batch("replay").reclaim([crashed])
    pipeline.record("replay", Entry(pipeline.ref(crashed), SOURCE_FLOW, PROCESSED, batch_id="run"))
    pipeline.failed("replay", crashed, "crm", batch_id="run")
    with stores.failures._database._engine.begin() as connection:
        connection.execute(sa.text("update homing_orders_failures set time_next = 1, crashes = 4"))
    assert pipeline.batch("another replay").reclaim([crashed]) == 0
    assert stores.failures.count()["dead"] == 1

    assert dead_letter_messages(stores, [other], "not today") == {other}

    assert stores.failures.count()["dead"] == 1
    assert run_audit(stores, FLOWS).balanced
