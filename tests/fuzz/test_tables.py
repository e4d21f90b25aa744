"""Rows that somebody writes straight into the table: delivered or dead-lettered, and no neighbour is held up."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from homing import open_store
from homing.delivery import Batch, PipelineStores, Selection, open_pipeline_stores, records, run_audit
from homing.delivery.failures import select
from homing.errors import HomingError
from homing.failure import FAILURE_TYPE, dead_letter_id
from homing.ledger import DELIVERED, FAILED, SOURCE_FLOW
from homing.stores.sql import SqlStore
from tests.fuzz.profile import SQL_TEXTS, TEXTS, examples
from tests.fuzz.shop import fill, still_there
from tests.servers import PostgreSQL

FLOWS = ("crm",)
_FAILURE = FAILURE_TYPE
_BODIES = SQL_TEXTS | st.sampled_from(["{", "[1", "null", '{"message": 1}', '{"message": {"id": 7}}', "//8=", "=", "1"])
_ROWS = st.fixed_dictionaries(
    {"message": _BODIES},
    optional={
        "encoding": st.sampled_from(["text", "json", "base64", "", "JSON", "zip"]),
        "headers": _BODIES,
        "content_type": SQL_TEXTS | st.sampled_from([_FAILURE, "application/json"]),
        "priority": st.integers(-(2**31), 2**31 - 1),
        "session_id": SQL_TEXTS,
        "time_scheduled": st.integers(0, 10**18),
        "time_next": st.integers(0, 10**18),
        "time_created": st.integers(0, 10**18),
        "time_to_live": st.integers(0, 2**63 - 1),
        "epoch": st.integers(0, 1000),
        "crashes": st.integers(0, 1000),
        "batch_id": SQL_TEXTS,
        "dead_letter_reason": SQL_TEXTS,
    },
)


def insert(store: SqlStore, row: dict[str, Any]) -> str:
    row_id = uuid.uuid4().hex
    store._database.write(lambda connection: connection.execute(store._table.insert(), {"id": row_id, **row}))
    return row_id


def check_drained(store: SqlStore, row: dict[str, Any]) -> None:
    """A consumer of the store gets both neighbours; the row is handed out too, or dead, and nothing is left waiting."""
    good = {store.store("before"), store.store("after")}
    written = insert(store, row)
    seen = []
    while claimed := store.claim(10):
        seen += [message.id for message in claimed]
        store.settle(claimed)

    dead = [message.id for message in store.browse(state="dead", ids=[written])]
    assert sorted([*seen, *dead]) == sorted([*good, written])
    counts = store.count()
    assert counts["available"] == counts["leased"] == counts["scheduled"] == 0
    for message in store.browse(state="dead"):
        assert message.dead_letter_reason


def check_delivered(stores: PipelineStores, row: dict[str, Any]) -> None:
    """A pipeline delivers both neighbours; the row is delivered, or dead-lettered with its reason."""
    store, run_id = stores.store, uuid.uuid4().hex
    good = {store.store("before"), store.store("after")}
    written = insert(store, row)
    ((_, _, about),) = store.view.states([written])
    run(stores, run_id, good)
    Batch(stores, run_id, FLOWS).settle()
    replay = Batch(stores, f"replay {run_id}", FLOWS)
    if replay.reclaim(replay.unfinished(run_id)):
        run(stores, replay.run_id, set())
        replay.finish_replay()
    Batch(stores, f"sweep {run_id}", FLOWS).claim(100)
    Batch(stores, f"sweep {run_id}", FLOWS).settle()

    assert store.view.present([*good, written]) == set()
    letter = dead_letter_id(store.name, about.name)
    assert stores.dead_letters.view.present([letter]) == {letter}
    books = run_audit(stores, FLOWS)
    assert books.balanced, str(books)
    assert books.total.waiting == 0
    assert all(letter.dead_letter_reason for letter in stores.dead_letters.browse(10_000))


def run(stores: PipelineStores, run_id: str, good: set[str]) -> None:
    """As the Spark jobs do: what is good is delivered, what cannot be read has failed."""
    batch = Batch(stores, run_id, FLOWS)
    if not batch.held():
        batch.claim(100)
    entries = []
    for held in batch.held():
        for row in held.store.batch_rows(held.lease):
            about = records.about(row, copies=held.copies)
            error = {"type": "E", "message": "m", "handler": "h", "stack": "", "attempt": 1}
            flow, state = (FLOWS[0], DELIVERED) if about.message_id in good else (SOURCE_FLOW, FAILED)
            entries.append(about._replace(flow=flow, state=state, error=error))
    fence = stores.ledger.open_step(run_id, "step", 60)
    stores.ledger.record(fence, entries)
    stores.ledger.close_step(fence)


def stores_in(database: str, name: str) -> Any:
    return open_pipeline_stores(f"{database}?store={name}", f"{database}?store={name}_dead")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineStores]:
    with stores_in(f"sqlite:///{tmp_path_factory.mktemp('fuzz')}/store.db", "orders") as opened:
        yield opened


@examples(50)
@given(row=_ROWS)
@example(row={"message": "{oops", "encoding": "json"})
@example(row={"message": "x", "headers": "[]"})
@example(row={"message": "x", "time_to_live": 2**63 - 1, "time_scheduled": 10**18})
def test_a_row_written_by_hand_holds_up_no_consumer(stores: PipelineStores, row: dict[str, Any]) -> None:
    check_drained(stores.store, row)


@examples(30)
@given(row=_ROWS)
@example(row={"message": "x", "content_type": _FAILURE})
@example(row={"message": '{"message": {}}', "encoding": "json", "content_type": _FAILURE})
@example(row={"message": '{"message": {"id": "x"}}', "encoding": "json", "content_type": _FAILURE})
@example(row={"message": "x", "batch_id": "somebody's"})
def test_a_row_written_by_hand_holds_up_no_pipeline(row: dict[str, Any], pipeline: PipelineStores) -> None:
    check_delivered(pipeline, row)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineStores]:
    with stores_in(f"sqlite:///{tmp_path_factory.mktemp('fuzz')}/store.db", "orders") as opened:
        yield opened


@examples(30)
@given(row=_ROWS, place=st.sampled_from(["failures", "dead_letters"]))
@example(row={"message": "x"}, place="failures")
@example(row={"message": "x", "content_type": _FAILURE}, place="failures")
@example(row={"message": '{"message": {"id": "x"}}', "encoding": "json", "content_type": _FAILURE}, place="failures")
@example(row={"message": "{", "encoding": "json", "content_type": _FAILURE}, place="dead_letters")
def test_a_row_among_the_failures_holds_up_no_replay(pipeline: PipelineStores, row: dict[str, Any], place: str) -> None:
    neighbours = fill(pipeline, uuid.uuid4().hex)
    store: SqlStore = getattr(pipeline, place)
    written = insert(store, row)
    ((_, _, ref),) = store.view.states([written])
    select(pipeline, Selection())
    replay = Batch(pipeline, uuid.uuid4().hex, FLOWS)
    if replay.reclaim([written]):
        run(pipeline, replay.run_id, set())
        replay.finish_replay()

    assert store.browse(ids=[written]) or pipeline.dead_letters.browse(ids=[f"orders/{ref.name}"])
    assert run_audit(pipeline, FLOWS).balanced
    assert len(neighbours - still_there(pipeline, neighbours)) == 1  # what is finished


@pytest.mark.services
def test_a_row_written_by_hand_holds_up_nobody_on_postgresql(postgresql: PostgreSQL) -> None:
    database = postgresql.empty_database()
    with stores_in(database, "delivered") as delivered, open_store(f"{database}?store=consumed") as consumed:
        assert isinstance(consumed, SqlStore)

        @examples(8)
        @given(row=_ROWS)
        @example(row={"message": "x", "content_type": _FAILURE})
        def check(row: dict[str, Any]) -> None:
            check_delivered(delivered, row)
            check_drained(consumed, row)

        check()


@examples(40)
@given(ids=st.lists(TEXTS | st.text(max_size=300), max_size=4), batch_id=st.none() | TEXTS)
@example(ids=["\ud800"], batch_id=None)
@example(ids=["\0"], batch_id="\0")
def test_a_replay_of_anything_claims_nothing_it_should_not(
    stores: PipelineStores, ids: list[str], batch_id: str | None
) -> None:
    waiting = stores.store.store("waits")
    batch = Batch(stores, "replay", FLOWS)
    with suppress(HomingError):
        assert batch.reclaim([*ids, *(batch.unfinished(batch_id) if batch_id else [])]) == 0
        assert len(batch.unknown(ids, batch_id)) == len(ids) + bool(batch_id)
    assert stores.store.view.present([waiting]) == {waiting}
    stores.store.settle(stores.store.claim(10))
