"""Data of the version before tables had identities: it is brought up to date, and understood as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from homing import HandlerChain, Message, MessageContext, destination
from homing.delivery import Batch, PipelineStores, keep_books, open_pipeline_stores
from homing.delivery.failures import Selection, select
from homing.delivery.replaying import replay_here
from homing.failure import FAILURE_TYPE
from homing.message import MessageRef
from homing.stores.sql.upgrade import VERSION

FLOWS = ("lake", "crm")
ERROR = {"type": "E", "message": "m", "handler": "crm", "stack": "", "attempt": 1}

_LEDGER_3 = """
create table homing_orders__ledger (
    message_id varchar(255) not null, life bigint default 0 not null, flow varchar(255) not null,
    destination varchar(255) not null, state varchar(16) not null, attempts integer not null,
    deliveries integer not null, result text, error text, snapshot text, batch_id varchar(255) not null,
    run_id varchar(255) not null, time_recorded bigint not null, primary key (message_id, life, flow))
"""
_ROW_3 = """
insert into homing_orders__ledger
    (message_id, life, flow, destination, state, attempts, deliveries, error, batch_id, run_id, time_recorded)
    values (:id, :life, :flow, :flow, :state, 1, :delivered, :error, 'run', 'run', 1)
"""


def record(message_id: str, life: int) -> str:
    """A failure record as version 3 wrote it: lake has it, crm has not."""
    return json.dumps(
        {
            "homing": "failure", "version": 1, "chain": "orders", "batch_id": "run",
            "failed_at": "2026-11-01T00:00:00+00:00",
            "message": {"id": message_id, "sequence_number": life, "encoding": "text", "body": message_id},
            "properties": {}, "errors": {"crm": ERROR}, "done": {"lake": None}, "snapshot": {},
        }
    )  # fmt: skip


def write_version_3(database: str) -> None:
    """One message that waits, one that is delivered, one that waits for its replay, and one that is dead."""
    with open_pipeline_stores(f"{database}?store=orders", f"{database}?store=dead") as stores:
        ids = ("waits", "delivered", "failed", "lost")
        stores.store.store_many([Message(one, one) for one in ids])
        stores.store.settle(stores.store.claim(10), [one != "waits" for one in ids])
        made = {"content_type": FAILURE_TYPE, "encoding": "json"}
        stores.failures.store("x", id="failed")
        stores.dead_letters.store(Message("orders/lost", "x", dead_letter_reason="E", dead_letter_source="orders"))
        changes = (("homing_orders_failures", record("failed", 3)), ("homing_dead", record("lost", 4)))
    engine = sa.create_engine(database)
    with engine.begin() as connection:
        for table, body in changes:
            update = sa.table(table, *map(sa.column, ("message", "content_type", "encoding"))).update()
            connection.execute(update, {"message": body, **made})
        for table in ("homing_orders", "homing_orders_failures", "homing_dead"):
            connection.execute(sa.text(f"alter table {table} drop column table_id"))
        connection.execute(sa.text("drop table if exists homing_orders__ledger"))
        connection.execute(sa.text(_LEDGER_3))
        connection.execute(
            sa.text("create index homing_orders__ledger_batch on homing_orders__ledger (batch_id, state)")
        )
        connection.execute(sa.text("delete from homing__tables where name = 'homing_orders__ledger'"))
        connection.execute(sa.text("insert into homing__tables (name, version) values ('homing_orders__ledger', 3)"))
        connection.execute(sa.text("update homing__tables set version = 3"))
        for life, one in ((2, "delivered"), (3, "failed"), (4, "lost")):
            for flow in FLOWS:
                done = flow == "lake" or one == "delivered"
                state, error = ("delivered", None) if done else ("failed", json.dumps(ERROR))
                values = {"id": one, "life": life, "flow": flow, "state": state, "delivered": int(done), "error": error}
                connection.execute(sa.text(_ROW_3), values)
    engine.dispose()


@pytest.fixture
def stores(database: str) -> Iterator[PipelineStores]:
    write_version_3(database)
    with open_pipeline_stores(f"{database}?store=orders", f"{database}?store=dead") as opened:
        yield opened


def deliver(stores: PipelineStores, batch: Batch) -> list[tuple[str, Any]]:
    """What the destinations got of what the batch holds."""
    got: list[tuple[str, Any]] = []

    @destination
    def lake(ctx: MessageContext) -> None:
        got.append(("lake", ctx.get_content()))

    @destination
    def crm(ctx: MessageContext) -> None:
        got.append(("crm", ctx.get_content()))

    replay_here(stores, batch, HandlerChain("orders", destinations_flow=[lake, crm]))
    return sorted(got)


def test_the_books_of_the_version_before_balance(stores: PipelineStores) -> None:
    total = keep_books(stores, FLOWS).total

    assert (total.accepted, total.delivered, total.waiting, total.dead_lettered) == (4, 1, 2, 1)
    assert total.balanced


def test_what_failed_before_is_replayed_where_it_failed_and_nowhere_else(stores: PipelineStores) -> None:
    assert sorted(failure.message_id for failure in select(stores, Selection())) == ["failed", "lost"]
    replay = Batch(stores, "replay", FLOWS, chain="orders")

    assert replay.reclaim(replay.unfinished("run")) == 2
    assert deliver(stores, replay) == [("crm", "failed"), ("crm", "lost")]
    assert replay.finish_replay().delivered == 2

    assert stores.failures.count()["available"] == stores.dead_letters.count()["available"] == 0
    assert keep_books(stores, FLOWS).total.delivered == 3


def test_what_waited_before_is_delivered_and_what_was_delivered_is_not(stores: PipelineStores) -> None:
    run = Batch(stores, "next run", FLOWS, chain="orders")

    assert run.claim(10) == 1
    assert deliver(stores, run) == [("crm", "waits"), ("lake", "waits")]
    assert run.settle().delivered == 1


def test_a_settlement_that_died_before_the_upgrade_is_finished_after_it(stores: PipelineStores) -> None:
    with stores.store._database._engine.begin() as connection:
        held = "time_acked = null, time_next = 1, lock_token = 't', batch_id = 'run'"
        connection.execute(sa.text(f"update homing_orders set {held} where id = 'failed'"))  # noqa: S608
    run = Batch(stores, "run", FLOWS, chain="orders")

    assert run.claim(10) == 2

    assert [part.store.name for part in run.held()] == ["orders_failures", "dead"], "the copy is the message now"
    assert stores.store.present(["failed"]) == set()


def test_what_comes_after_the_upgrade_has_an_identity_and_none_of_the_old_records(stores: PipelineStores) -> None:
    assert stores.store.purge(0) == 3
    stores.store.store("again", id="delivered")
    refs = {one: ref for one, _, ref in stores.store.states()}

    assert refs["waits"] == MessageRef("", 1, "waits")
    assert len(refs["delivered"].table_id) == 16
    run = Batch(stores, "next run", FLOWS, chain="orders")
    assert run.claim(10) == 2
    assert ("crm", "again") in deliver(stores, run)


def test_the_upgrade_is_made_once_and_leaves_no_difference_to_a_new_table(
    stores: PipelineStores, database: str
) -> None:
    keep_books(stores, FLOWS)  # which asks them all
    stores.store.store("one", id="one")
    with open_pipeline_stores(f"{database}?store=orders", f"{database}?store=dead") as again:
        again.store.store("two", id="two")
        refs = {one: ref for one, _, ref in again.store.states(["one", "two"])}
    assert refs["one"].table_id == refs["two"].table_id
    engine = sa.create_engine(database)
    with engine.begin() as connection:
        versions = connection.execute(sa.text("select version from homing__tables")).scalars().all()
    key = sa.inspect(engine).get_pk_constraint("homing_orders__ledger")["constrained_columns"]
    engine.dispose()
    assert set(versions) == {VERSION}
    assert set(key) == {"message_id", "table_id", "sequence", "flow"}
