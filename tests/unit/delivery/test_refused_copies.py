"""A store that refuses one copy of a message: the message stays, is released, and holds up no other of its portion."""

from __future__ import annotations

import logging

import pytest
import sqlalchemy as sa

from homing.delivery import PipelineStores, Settlement
from homing.errors import TableMissingError
from homing.pipeline_store import PipelineStore
from tests.unit.delivery.conftest import Pipeline, waiting

_ODD = "refuse me"


def refuse(store: PipelineStore) -> None:
    """Has the store's database refuse what has these words in it."""
    store.store_many([])
    store.count()
    table, database = store._table.name, store._database  # type: ignore[attr-defined]
    words = {
        "sqlite": f"CREATE TRIGGER odd BEFORE INSERT ON {table} WHEN NEW.message LIKE '%{_ODD}%' "
        "BEGIN SELECT RAISE(ABORT, 'odd'); END"
    }
    check = f"ALTER TABLE {table} ADD CONSTRAINT odd CHECK (message NOT LIKE '%{_ODD}%')"
    statement = sa.text(words.get(database.backend, check))
    database.write(lambda connection: connection.execute(statement))


def letters(stores: PipelineStores) -> list[str]:
    return sorted(letter.content["message"]["body"] for letter in stores.dead_letters.view.look())


def test_a_failure_that_its_store_refuses_is_released_and_the_others_wait_for_their_replay(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    refuse(pipeline.stores.failures)
    batch, ids = pipeline.claimed("run", "one", _ODD, "two", "three")
    for message_id in ids:
        pipeline.failed("run", message_id, "crm")

    with caplog.at_level(logging.WARNING):
        assert batch.settle() == Settlement(failed=3, released=1)

    assert waiting(pipeline.stores) == {*ids} - {ids[1]}
    assert [line for line in caplog.messages if ids[1] in line and "stays where it is" in line]
    (again,) = pipeline.stores.store.claim(10)
    assert again.content == _ODD


def test_a_dead_letter_that_its_store_refuses_is_released_and_the_others_are_dead_lettered(pipeline: Pipeline) -> None:
    refuse(pipeline.stores.dead_letters)
    batch, ids = pipeline.claimed("run", "one", _ODD, "two", "three")
    for message_id in ids:
        pipeline.failed("run", message_id, "crm")
    batch.settle()
    replay = pipeline.batch("replay")
    replay.reclaim(replay.unfinished("run"))
    for message_id in ids:
        pipeline.failed("replay", message_id, "crm", batch_id="run")

    assert replay.finish_replay() == Settlement(dead_lettered=3, released=1)

    assert letters(pipeline.stores) == ["one", "three", "two"]
    assert waiting(pipeline.stores) == {ids[1]}


def test_what_its_store_gave_up_and_the_dead_letter_store_refuses_stays_dead_and_the_others_are_moved(
    pipeline: Pipeline,
) -> None:
    refuse(pipeline.stores.dead_letters)
    store = pipeline.stores.store
    store.store_many(["one", _ODD, "two"])
    for message in store.claim(3):
        store.dead_letter(message, reason="crashed")

    assert pipeline.batch("run").move_dead() == 2

    assert letters(pipeline.stores) == ["one", "two"]
    assert [message.content for message in store.browse(state="dead")] == [_ODD]


def test_a_store_without_its_table_refuses_no_single_message(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, ids = pipeline.claimed("run", "one", "two")
    for message_id in ids:
        pipeline.failed("run", message_id, "crm")
    calls = list[int]()

    def gone(copies: list[object]) -> None:
        calls.append(len(copies))
        raise TableMissingError("its table is gone")

    monkeypatch.setattr(pipeline.stores.failures, "store_many", gone)

    with pytest.raises(TableMissingError):
        batch.settle()

    assert calls == [2]
