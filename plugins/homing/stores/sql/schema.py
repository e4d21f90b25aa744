"""The tables. One message table per store, with Vitess's column names, so that its SQL recipes work on it:

    insert into homing_orders (id, message) values ('1', 'hello world')
    update homing_orders set time_acked = :now, time_next = null where id in (...) and time_acked is null
    update homing_orders set time_next = :when, epoch = :epoch where id in (...) and time_acked is null

All times are Unix nanoseconds. `time_next` says everything about when a message may be handed out: the time it is due,
or the end of its lease while `lock_token` is set; NULL once it is acknowledged, dead or deferred.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table, Text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.sql.functions import FunctionElement

# SQLite counts its own rows only in a column that is exactly INTEGER.
_SEQUENCE = BigInteger().with_variant(Integer, "sqlite")


class NowInNanoseconds(FunctionElement[int]):
    """The database's clock as Unix nanoseconds: what a row inserted by plain SQL gets for its times."""

    type = BigInteger()
    inherit_cache = True


@compiles(NowInNanoseconds, "sqlite")
def _sqlite_now(_element: NowInNanoseconds, _compiler: Any, **_options: Any) -> str:
    return "(CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000000)"


def create(connection: Connection, table: Table) -> None:
    """Makes the table and its indexes where they are missing. Safe when two processes start at once."""
    connection.execute(CreateTable(table, if_not_exists=True))
    for index in table.indexes:
        connection.execute(CreateIndex(index, if_not_exists=True))


def messages_table(store: str) -> Table:
    """The messages of one store."""
    prefix = f"homing_{store}"
    table = Table(
        prefix,
        MetaData(),
        Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
        Column("id", String(255), nullable=False, unique=True),
        Column("priority", Integer, nullable=False, server_default="0"),
        Column("time_scheduled", BigInteger, nullable=False, server_default=NowInNanoseconds()),
        Column("time_next", BigInteger, server_default=NowInNanoseconds()),
        Column("epoch", Integer, nullable=False, server_default="0"),
        Column("time_created", BigInteger, nullable=False, server_default=NowInNanoseconds()),
        Column("time_acked", BigInteger),
        Column("message", Text, nullable=False),
        Column("encoding", String(8), nullable=False, server_default="text"),
        Column("content_type", String(255)),
        Column("headers", Text),
        Column("correlation_id", String(255)),
        Column("session_id", String(255)),
        Column("partition_key", String(255)),
        Column("subject", String(255)),
        Column("recipient", String(255)),
        Column("reply_to", String(255)),
        Column("time_to_live", BigInteger),
        Column("lock_token", String(36)),
        Column("batch_id", String(255)),
        Column("crashes", Integer, nullable=False, server_default="0"),
        Column("time_dead", BigInteger),
        Column("dead_letter_reason", Text),
        Column("dead_letter_description", Text),
        Column("dead_letter_source", String(255)),
        sqlite_autoincrement=True,
    )
    due = table.c.time_next.is_not(None)
    Index(f"{prefix}__due", table.c.priority, table.c.time_next, table.c.sequence, sqlite_where=due)
    Index(f"{prefix}__batch", table.c.batch_id, table.c.sequence, sqlite_where=table.c.batch_id.is_not(None))
    Index(f"{prefix}__dead", table.c.time_dead, sqlite_where=table.c.time_dead.is_not(None))
    return table


def ledger_table(store: str) -> Table:
    """One row per (message, flow)."""
    prefix = f"homing_{store}"
    table = Table(
        f"{prefix}__ledger",
        MetaData(),
        Column("message_id", String(255), primary_key=True),
        # The destination flow, or "" for the source flow. A flow behind a router delivers to one of several
        # destinations: `destination` says to which.
        Column("flow", String(255), primary_key=True),
        Column("destination", String(255), nullable=False),
        Column("state", String(16), nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("deliveries", Integer, nullable=False),
        Column("result", Text),
        Column("error", Text),
        Column("snapshot", Text),
        Column("batch_id", String(255), nullable=False),
        Column("run_id", String(255), nullable=False),
        Column("time_recorded", BigInteger, nullable=False),
    )
    Index(f"{prefix}__ledger_batch", table.c.batch_id, table.c.state)
    return table


def steps_table(store: str) -> Table:
    """Who may write for a step of a run, and until when."""
    return Table(
        f"homing_{store}__steps",
        MetaData(),
        Column("run_id", String(255), primary_key=True),
        Column("step", String(255), primary_key=True),
        Column("owner", String(36), nullable=False),
        Column("time_expires", BigInteger, nullable=False),
    )
