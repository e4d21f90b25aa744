"""What a store gave up is brought to the dead-letter store, and is finished only when it is there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from homing.delivery import open_pipeline_stores, run_audit
from homing.delivery.failures import read_failures
from homing.delivery.status import message_status
from homing.errors import StoreUnavailableError
from homing.message import DEAD
from homing.stores.sql import SqlStore
from tests.unit.delivery.conftest import FLOWS, Crash, Pipeline


def given_up(pipeline: Pipeline) -> str:
    """A message that its store has given up; its id."""
    store = pipeline.stores.store
    message_id = store.store("deadly")
    store.dead_letter(store.claim(1)[0], reason="crashed")
    return message_id


@pytest.mark.parametrize(
    ("target", "method"),
    [("dead_letters", "store_many"), ("store", "finish_dead")],
    ids=["before the copy", "between the copy and the end"],
)
def test_moving_the_dead_that_dies_half_way_is_completed_by_the_next(
    pipeline: Pipeline, crash: Callable[[object, str], None], target: str, method: str
) -> None:
    message_id = given_up(pipeline)
    crash(getattr(pipeline.stores, target), method)
    with pytest.raises(Crash):
        pipeline.batch("run").move_dead()
    assert run_audit(pipeline.stores, FLOWS).total.dead_lettered == 1

    pipeline.batch("run").move_dead()

    (letter,) = pipeline.stores.dead_letters.browse()
    assert letter.content["message"]["id"] == message_id
    assert pipeline.stores.store.count()[DEAD] == 0


def test_what_its_store_gave_up_is_dead_for_the_audit_and_for_people_alike(pipeline: Pipeline) -> None:
    message_id = given_up(pipeline)

    (status,) = message_status(pipeline.stores, FLOWS, ids=[message_id])

    assert status.outcome == "dead-lettered"
    assert run_audit(pipeline.stores, FLOWS).total.dead_lettered == 1


def test_what_a_dead_letter_store_has_no_room_for_is_not_finished(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, second = pipeline.batch("run"), given_up(pipeline)
    # It stores nothing, as where another message has the letter's id.
    monkeypatch.setattr(pipeline.stores.dead_letters, "store_many", lambda letters: [letter.id for letter in letters])

    assert batch.move_dead() == 0

    assert [message.id for message in pipeline.stores.store.browse(state=DEAD)] == [second]


def test_a_store_that_is_away_is_not_taken_for_one_that_holds_nothing(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (message_id,) = pipeline.claimed("run", 1)
    pipeline.failed("run", message_id, "crm")
    pipeline.batch("run").settle()
    replay = pipeline.batch("replay")
    replay.reclaim([message_id])
    pipeline.delivered("replay", message_id, *FLOWS, batch_id="run")
    knows = SqlStore.knows_batch

    def away(store: SqlStore, batch_id: str) -> bool:
        if store is pipeline.stores.failures:
            raise StoreUnavailableError("the failure store is away")
        return knows(store, batch_id)

    with monkeypatch.context() as patch:
        patch.setattr(SqlStore, "knows_batch", away)
        with pytest.raises(StoreUnavailableError):
            replay.finish_replay()

    assert replay.finish_replay().acknowledged == 1


def test_what_a_store_gave_up_is_found_by_a_replay_of_its_batch(pipeline: Pipeline) -> None:
    message_id = given_up(pipeline)
    batch = pipeline.batch("run")
    batch.move_dead()

    (found,) = batch.unfinished("run")
    assert found.id == message_id
    assert pipeline.batch("replay").reclaim([found]) == 1


def test_a_pipeline_does_not_see_the_dead_letters_of_another(pipeline: Pipeline, database: str) -> None:
    given_up(pipeline)
    pipeline.batch("run").move_dead()

    with open_pipeline_stores(f"{database}?store=invoices", f"{database}?store=orders_dead") as others:
        assert list(read_failures(others)) == []
    assert len(list(read_failures(pipeline.stores))) == 1
