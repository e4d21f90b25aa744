"""What is finished is removed in the end, its ledger last, and nothing that is still needed."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from homing.delivery import PipelineStores, open_pipeline_stores, retention, run_audit
from homing.delivery.retention import count_trimmable, tidy_up, trim_ledger
from homing.errors import StoreUnavailableError
from homing.failure import dead_letter_id
from homing.ledger import DELIVERED, DROPPED, FAILED, SOURCE_FLOW, Entry
from homing.stores.sql import SqlStore, ledger
from tests.unit.delivery.conftest import FLOWS, Crash, Pipeline, opened
from tests.unit.delivery.shop import Shop


def delivered(pipeline: Pipeline, run_id: str = "run") -> str:
    """A message that was delivered everywhere, and acknowledged."""
    batch, (message_id,) = pipeline.claimed(run_id, {"n": 1})
    pipeline.delivered(run_id, message_id, *FLOWS)
    batch.settle()
    return message_id


def test_the_ledger_of_a_message_that_is_done_with_goes_after_the_message(pipeline: Pipeline) -> None:
    stores = pipeline.stores
    message_id = delivered(pipeline)

    assert trim_ledger(stores, 0) == 0  # the books need it: the message is still there
    assert run_audit(stores, FLOWS).total.delivered == 1

    stores.store.purge(0)
    assert trim_ledger(stores, 3600) == 0  # it is too young
    assert (count_trimmable(stores, 0), len(stores.ledger.known([message_id]))) == (1, 1)
    assert trim_ledger(stores, 0) == 1

    assert stores.ledger.known([message_id]) == {}
    books = run_audit(stores, FLOWS)
    assert (books.balanced, books.total.accepted) == (True, 0)


def test_what_was_dropped_by_rule_goes_too(pipeline: Pipeline) -> None:
    batch, (dropped,) = pipeline.claimed("run", 1)
    pipeline.record("run", Entry(pipeline.ref(dropped), SOURCE_FLOW, DROPPED, batch_id="run"))
    batch.settle()
    pipeline.stores.store.purge(0)

    assert trim_ledger(pipeline.stores, 0) == 1


def test_a_message_that_failed_keeps_its_ledger_wherever_it_is(pipeline: Pipeline) -> None:
    stores = pipeline.stores
    batch, (failed,) = pipeline.claimed("run", 1)
    ref = pipeline.ref(failed)
    pipeline.delivered("run", failed, "lake")
    pipeline.failed("run", failed, "crm")
    batch.settle()
    stores.store.purge(0)
    assert trim_ledger(stores, 0) == 0

    replay = pipeline.batch("replay")
    replay.reclaim([ref])
    entry = Entry(ref, "crm", FAILED, error={"type": "ValueError", "message": "", "handler": "crm"}, batch_id="run")
    pipeline.record("replay", entry)
    replay.finish_replay()
    assert trim_ledger(stores, 0) == 0

    # Also where its dead letter is out of sight: another store may have been named.
    letter = dead_letter_id("orders", ref.name)
    (found,) = stores.dead_letters.browse(ids=[letter])
    assert found.sequence_number is not None
    stores.dead_letters.erasure.remove({found.sequence_number: letter})
    assert trim_ledger(stores, 0) == 0
    assert set(stores.ledger.known([failed])[ref]) == {"lake", "crm"}


def test_a_message_with_one_young_record_keeps_all(pipeline: Pipeline) -> None:
    batch, (message_id,) = pipeline.claimed("run", 1)
    ref = pipeline.ref(message_id)
    pipeline.record("run", Entry(ref, "lake", DELIVERED, batch_id="run", at=1))
    pipeline.delivered("run", message_id, "crm")
    batch.settle()
    pipeline.stores.store.purge(0)

    assert trim_ledger(pipeline.stores, 3600) == 0
    assert set(pipeline.stores.ledger.known([message_id])[ref]) == set(FLOWS)


@pytest.mark.parametrize("where", ["failures", "dead letters"])
def test_a_copy_that_a_replay_left_when_it_died_is_not_delivered_again(database: str, where: str) -> None:
    with opened(database) as stores:
        shop = Shop(stores)
        stores.store.store("a", id="a")
        shop.run("run", away=True)
        ref = next(iter(stores.ledger.known(["a"])))
        if where == "dead letters":
            shop.replay("replay", ["a"], away=True)
        # Delivered and recorded, and the replay dies before its copy is acknowledged.
        fence = stores.ledger.open_step("died", "replay", 60)
        stores.ledger.record(fence, [Entry(ref, "crm", DELIVERED, batch_id="run")])
        stores.ledger.close_step(fence)
        stores.store.purge(0)

        assert trim_ledger(stores, 0) == 0
        shop.replay("again", ["a"])

        assert shop.got == []
        assert trim_ledger(stores, 0) == 1  # now that the copy is gone


def test_a_cleared_run_of_an_old_batch_delivers_nothing_again(database: str) -> None:
    with opened(database) as stores:
        shop = Shop(stores)
        stores.store.store_many(["a", "b"])
        shop.run("run")
        stores.store.purge(0)
        assert trim_ledger(stores, 0) == 2

        shop.run("run")  # its claim, too

        assert sorted(map(str, shop.got)) == ["a", "b"]
        assert shop.books().balanced


def test_who_dies_between_message_and_ledger_leaves_what_the_next_one_removes(
    pipeline: Pipeline, crash: Callable[[object, str], None]
) -> None:
    stores = pipeline.stores
    message_id = delivered(pipeline)
    stores.store.configure(purge_after=1e-6, ledger_retention=1e-6)
    crash(stores.ledger, "remove")
    with pytest.raises(Crash):
        tidy_up(stores)
    assert (list(stores.store.view.states()), len(stores.ledger.known([message_id]))) == ([], 1)
    assert run_audit(stores, FLOWS).balanced

    tidy_up(stores)

    assert stores.ledger.known([message_id]) == {}


def test_many_are_removed_in_portions(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_OLD", 3)
    stores = pipeline.stores
    for number in range(8):
        delivered(pipeline, f"run {number}")
    kept = delivered(pipeline, "kept")
    stores.store.purge(0)
    late = pipeline.ref(kept)._replace(sequence=99)
    pipeline.record("late", Entry(late, "lake", FAILED, error={"type": "x", "message": "", "handler": ""}))
    sizes: list[int] = []
    remove = stores.ledger.remove
    monkeypatch.setattr(stores.ledger, "remove", lambda refs: (sizes.append(len(refs)), remove(refs))[1])

    assert trim_ledger(stores, 0) == 9

    assert (sum(sizes), len(sizes) >= 3, max(sizes) <= 3) == (9, True, True)
    assert list(stores.ledger.known([kept])) == [late]


def test_a_run_that_is_settled_removes_what_is_old_and_no_more(database: str) -> None:
    options = "purge_after=1e-6&ledger_retention=1e-6"
    with open_pipeline_stores(f"{database}?store=orders&{options}", f"{database}?store=dead") as stores:
        pipeline = Pipeline(stores)
        batch, (done, failed) = pipeline.claimed("run", 1, 2)
        refs = pipeline.ref(done), pipeline.ref(failed)
        pipeline.delivered("run", done, *FLOWS)
        pipeline.failed("run", failed, "crm")

        batch.settle()

        assert [ref for ref in refs if ref in stores.ledger.known([done, failed])] == [refs[1]]
        assert list(stores.store.view.states()) == []
        assert len(stores.failures.browse()) == 1


@pytest.mark.parametrize("options", ["", "&ledger_retention=1e-6", "&purge_after=1e-6"])
def test_nothing_is_removed_from_the_ledger_unless_both_are_set(database: str, options: str) -> None:
    with open_pipeline_stores(f"{database}?store=orders{options}", f"{database}?store=dead") as stores:
        message_id = delivered(Pipeline(stores))

        tidy_up(stores)

        assert len(stores.ledger.known([message_id])) == 1


def test_a_database_that_is_away_by_then_holds_up_no_settlement(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(_store: SqlStore) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(SqlStore, "properties", property(away))

    with caplog.at_level(logging.WARNING, logger=retention.__name__):
        tidy_up(pipeline.stores)

    assert "the old messages of store orders are not removed for now: away" in caplog.text


def test_a_ledger_that_cannot_be_trimmed_holds_up_no_settlement(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stores = pipeline.stores
    stores.store.configure(purge_after=1e-6, ledger_retention=1e-6)
    refuse(stores, monkeypatch)

    with caplog.at_level(logging.WARNING, logger=retention.__name__):
        message_id = delivered(pipeline)

    assert "the old messages of store orders are not removed for now" in caplog.text
    assert len(stores.ledger.known([message_id])) == 1


def refuse(stores: PipelineStores, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database refuses to make the index."""

    def denied(_table: sa.Table) -> None:
        with stores.store._database.translated("change the tables of"):
            raise sa.exc.ProgrammingError(None, None, Exception("permission denied"))

    monkeypatch.setattr(stores.store._database, "make", denied)


def test_only_who_removes_old_rows_pays_for_their_index(pipeline: Pipeline) -> None:
    stores = pipeline.stores
    delivered(pipeline)
    assert "homing_orders__ledger_time" not in indexes(stores)

    trim_ledger(stores, 0)
    trim_ledger(stores, 0)

    assert "homing_orders__ledger_time" in indexes(stores)


def indexes(stores: PipelineStores) -> set[str | None]:
    engine = sa.create_engine(stores.store._url)
    try:
        return {index["name"] for index in sa.inspect(engine).get_indexes("homing_orders__ledger")}
    finally:
        engine.dispose()
