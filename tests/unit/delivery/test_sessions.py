"""A pipeline keeps the order of a session, also when one of its messages fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.types import NullType

from homing import Message
from homing.delivery import Batch, PipelineStores, run_audit
from homing.delivery.dead_letter import dead_letter_messages
from homing.failure import FAILURE_TYPE
from homing.ledger import DELIVERED, DROPPED, FAILED, SOURCE_FLOW, Entry
from homing.stores.sql import SqlStore
from tests.unit.delivery.conftest import FLOWS, Crash, Pipeline, opened, waiting


def store(stores: PipelineStores, *ids: str) -> None:
    """Messages whose session is the first letter of their id; none for an x."""
    sessions = {one: None if one.startswith("x") else one[0] for one in ids}
    stores.store.store_many([Message(one, one, session_id=session) for one, session in sessions.items()])


def held(batch: Batch) -> list[str]:
    return sorted(head.message_id for head in batch.messages())


def claim(pipeline: Pipeline, run_id: str) -> list[str]:
    batch = pipeline.batch(run_id)
    batch.claim(100)
    return held(batch)


def fail(pipeline: Pipeline, run_id: str, message_id: str) -> None:
    """A run that holds this message alone, which fails at one of its destinations."""
    assert claim(pipeline, run_id) == [message_id]
    pipeline.delivered(run_id, message_id, "lake")
    pipeline.failed(run_id, message_id, "crm")
    assert pipeline.batch(run_id).settle().failed == 1


def replay(pipeline: Pipeline, run_id: str, of: str) -> Batch:
    batch = pipeline.batch(run_id)
    assert batch.reclaim(batch.unfinished(of)) == 1
    return batch


def let_leases_run_out(store: SqlStore) -> None:
    c = store._table.c
    late = store._table.update().where(c.lock_token.is_not(None), c.time_next.is_not(None)).values(time_next=1)
    store._database.write(lambda connection: connection.execute(late))


def test_a_session_waits_for_the_replay_of_its_failed_message_and_nothing_else_does(pipeline: Pipeline) -> None:
    store(pipeline.stores, "a1", "a2", "b1", "b2", "x1")
    assert claim(pipeline, "run 1") == ["a1", "b1", "x1"]
    for one in ("b1", "x1"):
        pipeline.delivered("run 1", one, *FLOWS)
    pipeline.failed("run 1", "a1", "crm")
    pipeline.batch("run 1").settle()
    store(pipeline.stores, "a3", "x2")

    assert claim(pipeline, "run 2") == ["b2", "x2"]
    assert claim(pipeline, "run 3") == []
    assert not pipeline.stores.store.has_due()
    assert pipeline.stores.store.claim(9, session_id="a") == []

    again = replay(pipeline, "replay", "run 1")
    assert claim(pipeline, "run 4") == [], "a replay that runs has not delivered yet"
    pipeline.delivered("replay", "a1", *FLOWS, batch_id="run 1")
    assert again.acknowledge_complete() == 0

    assert pipeline.stores.store.has_due()
    assert claim(pipeline, "run 5") == ["a2"]
    assert claim(pipeline, "run 6") == []


def deliver(pipeline: Pipeline) -> None:
    batch = replay(pipeline, "replay", "run")
    pipeline.delivered("replay", "a1", *FLOWS, batch_id="run")
    batch.acknowledge_complete()


def drop(pipeline: Pipeline) -> None:
    batch = replay(pipeline, "replay", "run")
    pipeline.record("replay", Entry(pipeline.ref("a1"), SOURCE_FLOW, DROPPED, batch_id="run"))
    batch.acknowledge_complete()


def dead_letter(pipeline: Pipeline) -> None:
    batch = replay(pipeline, "replay", "run")
    pipeline.failed("replay", "a1", "crm", batch_id="run")
    assert batch.finish_replay().dead_lettered == 1


def reject(pipeline: Pipeline) -> None:
    assert pipeline.batch("replay").reject(pipeline.batch("replay").unfinished("run")).dead_lettered == 1


def give_up_by_hand(pipeline: Pipeline) -> None:
    assert dead_letter_messages(pipeline.stores, ["a1"], "not any more") == {"a1"}


@pytest.mark.parametrize("end", [deliver, drop, dead_letter, reject, give_up_by_hand])
def test_a_session_goes_on_when_its_failed_message_is_done_with(
    pipeline: Pipeline, end: Callable[[Pipeline], None]
) -> None:
    store(pipeline.stores, "a1", "a2")
    fail(pipeline, "run", "a1")
    assert claim(pipeline, "too early") == []

    end(pipeline)

    assert claim(pipeline, "next") == ["a2"]


def test_a_replay_that_could_not_run_leaves_the_session_waiting(pipeline: Pipeline) -> None:
    store(pipeline.stores, "a1", "a2")
    fail(pipeline, "run", "a1")

    assert replay(pipeline, "replay", "run").finish_replay().released == 1

    assert waiting(pipeline.stores) == {"a1"}
    assert claim(pipeline, "too early") == []


def test_a_failure_that_its_store_gave_up_holds_up_no_session(pipeline: Pipeline) -> None:
    """It is on its way to the dead-letter store, which may be away."""
    store(pipeline.stores, "a1", "a2")
    fail(pipeline, "run", "a1")

    (entry,) = pipeline.stores.failures.claim(1)
    pipeline.stores.failures.dead_letter(entry, reason="crashed")

    assert claim(pipeline, "next") == ["a2"]


def test_a_dead_letter_that_somebody_replays_holds_up_no_session(pipeline: Pipeline) -> None:
    store(pipeline.stores, "a1", "a2")
    fail(pipeline, "run", "a1")
    dead_letter(pipeline)

    replay(pipeline, "by hand", "run")

    assert claim(pipeline, "next") == ["a2"]
    assert [letter.session_id for letter in pipeline.stores.dead_letters.browse(9)] == [None]


def test_there_is_no_moment_between_copy_and_acknowledgement_at_which_the_session_goes_on(
    pipeline: Pipeline, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(pipeline.stores, "a1", "a2")
    batch = pipeline.batch("run")
    batch.claim(1)
    pipeline.failed("run", "a1", "crm")
    seen: list[list[str]] = []

    def another_claims(name: str, original: object) -> None:
        with monkeypatch.context() as patch, opened(database) as others:
            patch.setattr(SqlStore, name, original)
            seen.append(claim(Pipeline(others), f"other {len(seen)}"))

    def look(name: str) -> None:
        original = getattr(SqlStore, name)

        def meanwhile(self: SqlStore, *arguments: object, **more: object) -> object:
            another_claims(name, original)
            result = original(self, *arguments, **more)
            another_claims(name, original)
            return result

        monkeypatch.setattr(SqlStore, name, meanwhile)

    look("store_many")
    look("settle_batch")
    assert batch.settle().failed == 1

    assert len(seen) >= 6  # around the copy, the acknowledgement of what failed, and that of what is complete
    assert not any(seen)


def test_who_is_killed_between_copy_and_acknowledgement_lets_nothing_overtake(
    pipeline: Pipeline,
) -> None:
    store(pipeline.stores, "a1", "a2")
    batch = pipeline.batch("run")
    batch.claim(1)
    pipeline.failed("run", "a1", "crm")
    acknowledge = pipeline.stores.store.settle_batch

    def die(lease: object, ids: object, success: bool = True) -> None:
        if ids:
            raise Crash
        acknowledge(lease, ids, success)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.stores.store, "settle_batch", die)
        with pytest.raises(Crash):
            batch.settle()
    assert waiting(pipeline.stores) == {"a1"}
    assert pipeline.stores.store.count()["leased"] == 1
    let_leases_run_out(pipeline.stores.store)

    assert claim(pipeline, "other") == [], "not the message itself, whose copy is to be replayed, nor the next one"
    assert pipeline.stores.store.view.expired_batches(1) == ["run"]
    assert pipeline.batch("run").settle().failed == 1  # as homing_reconcile does
    assert claim(pipeline, "another") == []

    deliver(pipeline)
    assert claim(pipeline, "next") == ["a2"]


def test_a_message_that_was_killed_before_its_copy_comes_again_before_the_next(
    pipeline: Pipeline, crash: Callable[[object, str], None]
) -> None:
    store(pipeline.stores, "a1", "a2")
    batch = pipeline.batch("run")
    batch.claim(1)
    pipeline.failed("run", "a1", "crm")
    crash(pipeline.stores.failures, "store_many")
    with pytest.raises(Crash):
        batch.settle()
    assert claim(pipeline, "other") == []
    let_leases_run_out(pipeline.stores.store)

    assert claim(pipeline, "other again") == ["a1"]


def test_a_run_holds_one_message_of_a_session_however_it_comes_by_it(pipeline: Pipeline) -> None:
    store(pipeline.stores, "a1", "a2", "a3")
    assert claim(pipeline, "run") == ["a1"]
    let_leases_run_out(pipeline.stores.store)
    assert claim(pipeline, "run") == ["a1"], "a task that is tried again"
    let_leases_run_out(pipeline.stores.store)
    assert claim(pipeline, "other") == ["a1"], "another run takes over"
    assert claim(pipeline, "run") == [], "a run that was cleared"
    assert pipeline.batch("other").settle().released == 1
    fail(pipeline, "third", "a1")
    assert claim(pipeline, "third") == ["a1"], "a run that was cleared has what failed of its own, and nothing new"
    assert claim(pipeline, "fourth") == []


@pytest.mark.parametrize("session", ["s" * 300, b"s", "a\0b"], ids=["long", "bytes", "a NUL"])
def test_a_session_that_only_sqlite_takes_holds_up_no_batch(tmp_path: Path, session: object) -> None:
    with opened(f"sqlite:///{tmp_path}/store.db") as stores:
        pipeline, table = Pipeline(stores), stores.store._table
        store(stores, "a1", "x1")
        odd = table.update().where(table.c.id == "a1").values(session_id=sa.literal(session, NullType()))
        stores.store._database.write(lambda connection: connection.execute(odd))
        assert claim(pipeline, "run") == ["a1", "x1"]
        for one in ("a1", "x1"):
            pipeline.failed("run", one, "crm")

        assert pipeline.batch("run").settle().failed == 2
        assert waiting(stores) == {"a1", "x1"}


SESSIONS, EACH, RUNNERS = "abc", 5, 3
ERROR = {"type": "ValueError", "message": "no", "handler": "crm", "stack": "", "attempt": 1}


class Crowd:
    """Runs in which every message fails, at the same time as replays, in which every other one fails once more."""

    def __init__(self, database: str) -> None:
        self.delivered: list[str] = []
        self.troubles: list[BaseException] = []
        self._database = database
        self._tried: set[str] = set()
        self._ended = threading.Event()

    def run(self, number: int) -> None:
        try:
            with opened(self._database) as stores:
                for turn in count():
                    if self._ended.is_set():
                        return
                    batch = Batch(stores, f"run {number}.{turn}", FLOWS, chain="orders")
                    batch.claim(1 + turn % 3)
                    self._work(stores, batch, lambda _: False)
                    batch.settle()
        except BaseException as error:  # noqa: BLE001 - raised by the test
            self.troubles.append(error)
            self._ended.set()

    def replay(self, until: float) -> None:
        """Until all are delivered."""
        with opened(self._database) as stores:
            for turn in count():
                if self._ended.is_set() or len(self.delivered) >= EACH * len(SESSIONS) or time.monotonic() > until:
                    break
                batch = Batch(stores, f"replay {turn}", FLOWS, chain="orders")
                names = [message.id for message in stores.failures.browse(100)]
                if names and batch.reclaim(names):
                    self._work(stores, batch, self._succeeds)
                    batch.acknowledge_complete()
                    batch.settle()  # what failed is released, to be replayed again
        self._ended.set()

    def _succeeds(self, message_id: str) -> bool:
        first = message_id not in self._tried
        self._tried.add(message_id)
        return not (first and int(message_id[1:]) % 2)

    def _work(self, stores: PipelineStores, batch: Batch, succeeds: Callable[[str], bool]) -> None:
        fence = stores.ledger.open_step(batch.run_id, "step", 60)
        for head in batch.messages():
            good = succeeds(head.message_id)
            self.delivered += [head.message_id] * good
            state, error = (DELIVERED, None) if good else (FAILED, ERROR)
            stores.ledger.record(fence, [head.entry(flow, state, error=error) for flow in FLOWS])
        stores.ledger.close_step(fence)


@pytest.mark.timeout(600)
def test_runs_and_replays_at_the_same_time_deliver_every_session_in_order(database: str) -> None:
    with opened(database) as stores:
        store(stores, *[f"{session}{n}" for n in range(EACH) for session in SESSIONS])
        crowd = Crowd(database)
        runners = [threading.Thread(target=crowd.run, args=(number,)) for number in range(RUNNERS)]
        for runner in runners:
            runner.start()
        crowd.replay(until=time.monotonic() + 400)
        for runner in runners:
            runner.join()

        assert not crowd.troubles
        for session in SESSIONS:
            assert [one for one in crowd.delivered if one[0] == session] == [f"{session}{n}" for n in range(EACH)]
        assert run_audit(stores, FLOWS).balanced
        assert stores.store.count()["acknowledged"] == EACH * len(SESSIONS)


def test_the_session_of_a_failure_is_that_of_its_message(pipeline: Pipeline) -> None:
    store(pipeline.stores, "a1", "x1")
    assert claim(pipeline, "run") == ["a1", "x1"]
    for one in ("a1", "x1"):
        pipeline.failed("run", one, "crm")
    pipeline.batch("run").settle()

    found = {message.content["message"]["id"]: message for message in pipeline.stores.failures.browse(9)}
    assert {one: message.session_id for one, message in found.items()} == {"a1": "a", "x1": None}
    assert all(message.content_type == FAILURE_TYPE for message in found.values())
