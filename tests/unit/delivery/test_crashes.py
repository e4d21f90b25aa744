"""Steps that did not come to their end, as they are settled: who is to blame, and who was merely there."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.sdk.execution_time.timeout import timeout as airflow_timeout

from homing import HandlerChain, Message, MessageContext, destination, destination_router
from homing.delivery import Batch, PipelineStores, Settlement, crash_tracking, local_replay
from homing.delivery.dead_letter import dead_letter_messages
from homing.delivery.local_replay import replay_in_process
from homing.errors import StoreUnavailableError
from homing.failure import WORKER_CRASH, build_record, error_info, new_copy, worker_crash
from homing.ledger import DELIVERED, FAILED, PART, SOURCE_FLOW, Entry
from homing.stores.sql import SqlStore
from tests.unit.delivery.conftest import Crash, Pipeline, opened

MAX_DELIVERIES = 5

Crashes = Callable[[object, str], None]
_REFUSED = error_info("ValueError", "no good", "crm")


def crashes(store: SqlStore) -> dict[str, int]:
    """Message id -> how many deaths are counted for it."""
    return {row[1]: row[2] for page in store.scans().pages(["sequence", "id", "crashes"], 0, 10**9) for row in page}


def left_open(stores: PipelineStores, run_id: str, *, of: str | None = None, step: str = "process") -> None:
    """A job opens its step, names a suspect and is never heard of again."""
    fence = stores.ledger.open_step(run_id, step, 60)
    if of is not None:
        stores.ledger.suspect(fence, of)


def test_the_message_in_hand_of_a_job_that_died_has_failed_and_the_others_are_released(pipeline: Pipeline) -> None:
    batch, (innocent, killer) = pipeline.claimed("run", "good", "bad")
    left_open(
        pipeline.stores,
        "run",
        of=crash_tracking.name_message(Entry(pipeline.ref(killer), "crm", FAILED, batch_id="run")),
    )

    settlement = batch.settle()

    assert (settlement.failed, settlement.released) == (1, 1)
    error = pipeline.stores.ledger.entries([killer])[killer]["crm"].error
    assert error is not None
    assert (error["type"], error["handler"]) == (WORKER_CRASH, "process")
    assert crashes(pipeline.stores.store)[innocent] == 0


def test_where_nobody_knows_which_message_it_was_a_crash_is_counted_for_each_that_is_not_done(
    pipeline: Pipeline,
) -> None:
    batch, (done, one, other) = pipeline.claimed("run", 0, 1, 2)
    pipeline.delivered("run", done, "lake", "crm")
    left_open(pipeline.stores, "run")

    assert batch.settle().released == 2

    assert crashes(pipeline.stores.store) == {done: 0, one: 1, other: 1}
    again = pipeline.batch("next")
    assert not again.crashed_before()
    again.claim(10)
    assert again.crashed_before()


def test_of_a_part_that_was_in_hand_only_its_messages_are_suspected(pipeline: Pipeline) -> None:
    batch, ids = pipeline.claimed("run", *range(4))
    first, last = sorted(ids)[1:3]
    left_open(pipeline.stores, "run", of=crash_tracking.name_span(crash_tracking.Span(first, last)))

    batch.settle()

    assert {one for one, number in crashes(pipeline.stores.store).items() if number} == {first, last}


@pytest.mark.parametrize("known", [True, False], ids=["one in hand", "nobody knows"])
def test_a_settlement_that_is_done_again_counts_no_death_twice(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    batch, (bad, innocent) = pipeline.claimed("run", "bad", "good")
    pipeline.failed("run", bad, "crm")
    killer = crash_tracking.name_message(Entry(pipeline.ref(bad), "crm", FAILED, batch_id="run"))
    left_open(pipeline.stores, "run", of=killer if known else None)

    def away(*_args: object, **_options: object) -> None:
        raise StoreUnavailableError("away")

    with monkeypatch.context() as outage:
        outage.setattr(pipeline.stores.failures, "store_many", away)
        for _ in range(MAX_DELIVERIES):
            with pytest.raises(StoreUnavailableError):
                batch.settle()
    settlement = batch.settle()

    assert (settlement.failed, settlement.released) == (1, 1)
    assert crashes(pipeline.stores.store)[innocent] == (0 if known else 1)


def test_a_message_that_was_there_at_too_many_deaths_has_failed(pipeline: Pipeline) -> None:
    pipeline.stores.store.store("order", id="p")
    for attempt in range(MAX_DELIVERIES):
        assert pipeline.stores.failures.count()["available"] == 0
        batch = pipeline.batch(f"run {attempt}")
        batch.claim(1)
        left_open(pipeline.stores, batch.run_id)
        batch.settle()

    error = pipeline.stores.ledger.entries(["p"])["p"][SOURCE_FLOW].error
    assert error is not None
    assert error["type"] == WORKER_CRASH
    assert pipeline.stores.failures.count()["available"] == 1


def test_a_replay_that_dies_of_a_message_dead_letters_it_in_the_end_and_no_other(pipeline: Pipeline) -> None:
    batch, (innocent, killer) = pipeline.claimed("run", "good", "bad")
    for one in (innocent, killer):
        pipeline.failed("run", one, "crm")
    batch.settle()
    first, last = batch.unfinished("run")

    replay = pipeline.batch("replay")
    replay.reclaim([first, last])
    left_open(pipeline.stores, "replay", step="replay")
    assert replay.finish_replay().released == 2
    assert crashes(pipeline.stores.failures) == {first.name: 1, last.name: 1}

    again = pipeline.batch("again")
    again.reclaim([first, last])
    assert again.crashed_before()
    left_open(
        pipeline.stores,
        "again",
        of=crash_tracking.name_message(Entry(pipeline.ref(killer), "crm", FAILED, batch_id="run")),
    )
    settlement = again.finish_replay()

    assert (settlement.dead_lettered, settlement.released) == (1, 1)
    (letter,) = pipeline.stores.dead_letters.claim(10)
    assert letter.content["message"]["id"] == killer
    assert letter.dead_letter_reason == WORKER_CRASH


def test_a_known_killer_is_replayed_with_care_from_the_start(pipeline: Pipeline) -> None:
    batch, (killer,) = pipeline.claimed("run", "bad")
    error = worker_crash("process")
    pipeline.record("run", Entry(pipeline.ref(killer), "crm", FAILED, error=error, batch_id="run"))
    batch.settle()

    replay = pipeline.batch("replay")
    replay.reclaim([killer])

    assert replay.crashed_before()


def test_a_settlement_that_died_and_is_done_again_still_blames_the_message(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, _ = pipeline.claimed("run", 1, 2)
    left_open(pipeline.stores, "run")
    with monkeypatch.context() as patch:

        def dies(*_: object, **__: object) -> None:
            raise Crash

        patch.setattr(SqlStore, "settle_batch", dies)
        with pytest.raises(Crash):
            batch.settle()

    assert batch.settle().released == 2
    assert all(number >= 1 for number in crashes(pipeline.stores.store).values())


def test_who_dies_while_it_takes_up_what_a_chain_gave_up_has_not_died_of_a_message(
    pipeline: Pipeline, crash: Crashes
) -> None:
    """No handler has run: nothing is to be counted, however often that happens."""
    record = build_record(Message("m", 1), {}, errors={"crm": _REFUSED}, done={}, snapshot={}, chain="orders")
    (name,) = pipeline.stores.failures.store_many([new_copy(record, pipeline.stores.failures.identity)])
    for attempt in range(MAX_DELIVERIES + 1):
        batch = pipeline.batch(f"replay {attempt}")
        pipeline.stores.failures.reschedule([name], datetime.now(timezone.utc))
        crash(type(pipeline.stores.ledger), "record")
        with pytest.raises(Crash):
            batch.reclaim([name])
        assert batch.finish_replay() == Settlement(released=1)

    assert set(crashes(pipeline.stores.failures).values()) == {0}


def test_who_dies_while_it_notes_what_a_store_gave_up_has_not_died_of_another_message(
    pipeline: Pipeline, crash: Crashes
) -> None:
    batch, _ = pipeline.claimed("run", 1)
    pipeline.stores.store.store("bad", id="given up")
    (given_up,) = pipeline.stores.store.claim(1)
    pipeline.stores.store.dead_letter(given_up, reason="crashed")
    crash(type(pipeline.stores.ledger), "record")
    with pytest.raises(Crash):
        batch.move_dead()

    assert batch.settle().released == 1

    assert set(crashes(pipeline.stores.store).values()) == {0}


def test_a_part_of_a_step_is_no_step_that_was_left_open(pipeline: Pipeline) -> None:
    batch, _ = pipeline.claimed("run", 1)
    pipeline.stores.ledger.open_step("run", f"{PART}owner/1/0", 60)

    batch.settle()

    assert set(crashes(pipeline.stores.store).values()) == {0}


def test_what_is_given_up_by_hand_is_no_crash(pipeline: Pipeline) -> None:
    pipeline.stores.store.store("order", id="m")
    assert dead_letter_messages(pipeline.stores, ["m"], "nobody wants it") == {"m"}
    (letter,) = pipeline.stores.dead_letters.claim(1)
    assert letter.dead_letter_reason == "GivenUp"


def replayable(stores: PipelineStores, harm: Callable[[], object]) -> tuple[Batch, HandlerChain, list[str]]:
    """A batch of three messages, and a chain whose destination does this harm for the second."""
    taken: list[str] = []

    @destination
    def crm(ctx: MessageContext) -> None:
        if ctx.get_content() == "b":
            harm()
        taken.append(ctx.get_content())

    chain = HandlerChain("orders", destinations_flow=crm)
    stores.store.store_many(["a", "b", "c"])
    batch = Batch(stores, "replay", ["crm"], chain="orders")
    batch.claim(10)
    return batch, chain, taken


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def replay_in_a_process(database: str, chain: HandlerChain) -> int:
    """Replays in a process of its own, which may die of it; how that ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(BaseException), opened(database) as stores:
        replay_in_process(stores, Batch(stores, "replay", ["crm"], chain="orders"), chain)
        os._exit(0)
    os._exit(1)


def test_a_replay_in_the_task_itself_finds_the_message_that_kills_it(stores: PipelineStores, database: str) -> None:
    batch, chain, _ = replayable(stores, die)
    for _ in range(2):  # once to notice, once to find it
        assert replay_in_a_process(database, chain) == -signal.SIGKILL

    assert replay_in_a_process(database, chain) == 0, "the message that kills was tried once more"

    settlement = batch.finish_replay()
    assert (settlement.acknowledged, settlement.dead_lettered) == (2, 1)


def test_after_a_crash_a_replay_has_one_delivery_in_hand_at_a_time_and_blames_no_other(
    stores: PipelineStores, database: str
) -> None:
    in_hand, most = list[str](), list[int]()

    def take(content: str, flow: str) -> None:
        if (content, flow) == ("b", "crm"):
            die()
        in_hand.append(content)
        most.append(len(in_hand))
        time.sleep(0.1)
        in_hand.pop()

    @destination(threads=3)
    def lake(content: str) -> None:
        take(content, "lake")

    @destination
    def crm(content: str) -> None:
        take(content, "crm")

    @destination_router
    def routed(content: str) -> object:
        return lake_too

    @destination(threads=3)
    def lake_too(content: str) -> None:
        take(content, "lake too")

    chain = HandlerChain("orders", destinations_flow=[crm, lake, routed])
    flows = [flow.name for flow in chain.flows]
    stores.store.store_many(["b", "a", "c"])
    batch = Batch(stores, "replay", flows, chain="orders")
    batch.claim(10)
    for _ in range(2):  # once to notice, once to find it
        assert replay_in_a_process(database, chain) == -signal.SIGKILL

    most.clear()
    replay_in_process(stores, batch, chain)

    assert most == [1] * 8
    known = stores.ledger.known([head.message_id for head in batch.messages()])
    blamed = [entry for entries in known.values() for entry in entries.values() if not entry.done]
    assert [(entry.flow, entry.error and entry.error["type"]) for entry in blamed] == [("crm", WORKER_CRASH)]
    assert sum(entry.state == DELIVERED for entries in known.values() for entry in entries.values()) == 8


def test_a_replay_in_the_task_that_loses_the_database_blames_nobody(
    stores: PipelineStores, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, chain, _ = replayable(stores, die)
    assert replay_in_a_process(database, chain) == -signal.SIGKILL  # from now on each message is named first
    with monkeypatch.context() as patch:

        def away(*_: object) -> None:
            raise StoreUnavailableError("the database is away")

        patch.setattr(type(stores.ledger), "suspect", away)
        with pytest.raises(StoreUnavailableError):
            replay_in_process(stores, batch, chain)

    assert stores.ledger.left_open("replay") == []


@pytest.mark.parametrize("error", [OSError("no such device"), MemoryError(), KeyboardInterrupt(), SystemExit(1)])
def test_an_exception_that_ends_a_replay_is_no_death_however_often(
    stores: PipelineStores, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fails(*_: object) -> None:
        raise error

    batch, chain, _ = replayable(stores, lambda: None)
    for attempt in range(MAX_DELIVERIES + 1):
        again = Batch(stores, f"replay {attempt}" if attempt else "replay", ["crm"], chain="orders")
        again.claim(10)
        with monkeypatch.context() as patch:
            patch.setattr(local_replay, "_rows", fails)
            with pytest.raises(type(error)):
                replay_in_process(stores, again, chain)
        assert again.finish_replay().released == 3

    assert set(crashes(stores.store).values()) == {0}
    assert batch.unfinished("replay") == []


def test_airflows_timeout_in_the_midst_of_a_replay_fails_no_message(stores: PipelineStores) -> None:
    def hang() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.1)  # Airflow's timeout ends, now that the message is in hand
        threading.Event().wait()

    batch, chain, _ = replayable(stores, hang)
    with pytest.raises(AirflowTaskTimeout), airflow_timeout(600):
        replay_in_process(stores, batch, chain)

    settlement = batch.finish_replay()
    assert settlement.released >= 1
    assert (settlement.failed, settlement.dead_lettered) == (0, 0)
    assert set(crashes(stores.store).values()) == {0}
