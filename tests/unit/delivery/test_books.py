"""The books count every accepted message once, and say so when one is nowhere."""

from __future__ import annotations

import pytest

from homing.delivery import run_audit
from homing.delivery.audit import AuditReport, Totals
from homing.ledger import DELIVERED, DROPPED, FILTERED, SOURCE_FLOW, Entry
from tests.unit.delivery.conftest import FLOWS, Pipeline


def test_every_outcome_has_its_place(pipeline: Pipeline) -> None:
    batch, (sent, dropped, failed, _) = pipeline.claimed("run", 1, 2, 3, 4)
    pipeline.record(
        "run",
        Entry(pipeline.ref(sent), "lake", DELIVERED, batch_id="run"),
        Entry(pipeline.ref(sent), "crm", FILTERED, batch_id="run"),
        Entry(pipeline.ref(dropped), SOURCE_FLOW, DROPPED, batch_id="run"),
    )
    pipeline.failed("run", failed, "crm")
    batch.settle()

    books = run_audit(pipeline.stores, FLOWS)

    total = books.total
    assert (total.accepted, total.delivered, total.dropped, total.dead_lettered, total.waiting) == (
        4,
        1,
        1,
        0,
        2,
    )
    assert books.destinations["lake"].accepted == 3
    assert books.destinations["lake"].delivered == 1
    assert books.destinations["crm"].dropped == 1
    assert books.balanced
    assert "The books balance." in str(books)


def test_a_message_that_is_nowhere_is_named(pipeline: Pipeline) -> None:
    batch, (lost,) = pipeline.claimed("run", 1)
    for held in batch.held():
        held.store.settle_batch(held.lease, [lost])  # acknowledged although nobody delivered it

    books = run_audit(pipeline.stores, FLOWS)

    assert not books.balanced
    assert books.unaccounted == [lost]
    assert lost in str(books)


def test_a_destination_that_was_left_out_is_noticed(pipeline: Pipeline) -> None:
    batch, (message_id,) = pipeline.claimed("run", 1)
    pipeline.delivered("run", message_id, "lake")
    for held in batch.held():
        held.store.settle_batch(held.lease, [message_id])

    books = run_audit(pipeline.stores, FLOWS)

    assert books.destinations["lake"].balanced
    assert not books.destinations["crm"].balanced


def test_a_second_delivery_is_counted(pipeline: Pipeline) -> None:
    batch, (message_id,) = pipeline.claimed("run", 1)
    pipeline.delivered("run", message_id, *FLOWS)
    pipeline.delivered("run", message_id, "crm")
    batch.settle()

    books = run_audit(pipeline.stores, FLOWS)

    assert (books.total.delivered, books.total.duplicates) == (1, 1)
    assert books.destinations["crm"].duplicates == 1
    assert books.balanced


def test_the_books_say_since_when_they_count(pipeline: Pipeline) -> None:
    stores = pipeline.stores
    assert run_audit(stores, FLOWS).since is None
    batch, (message_id,) = pipeline.claimed("run", 1)
    pipeline.delivered("run", message_id, *FLOWS)
    batch.settle()
    stores.store.store(2)
    first, second = (message.enqueued_at for message in stores.store.browse())

    assert run_audit(stores, FLOWS).since == first
    stores.store.purge(0)
    assert run_audit(stores, FLOWS).since == second
    assert "Counted since 20" in str(run_audit(stores, FLOWS))


@pytest.mark.parametrize("side", ["destinations", "batches"])
def test_books_in_which_one_column_does_not_balance_do_not_balance(side: str) -> None:
    missing = Totals(accepted=2, delivered=1)

    assert not AuditReport(**{side: {"crm": missing}}).balanced  # type: ignore[arg-type]
