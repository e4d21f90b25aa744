"""The tables. One message table per store, with Vitess's column names, so that its SQL recipes work on it:

    insert into homing_orders (id, message) values ('1', 'hello world')
    insert into homing_orders (id, message, time_scheduled) values ('1', 'hello world', :future_time)
    update homing_orders set time_acked = :now, time_next = null where id in (...) and time_acked is null
    update homing_orders set time_next = :when, epoch = :epoch where id in (...) and time_acked is null

All times are Unix nanoseconds. `time_next` says when a message may be handed out: when it is due, or while `lock_token`
is set, when its lease ends. It is NULL for a message that is acknowledged, dead or deferred. Plain SQL that stores a
message leaves it at 0: such a message is due at `time_scheduled`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    func,
    literal_column,
)
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement

from homing.ids import random_hex
from homing.stores.sql.column_types import COLUMN_TYPES
from homing.stores.sql.header_columns import OWN

# SQLite counts its own rows only in a column that is exactly INTEGER.
_SEQUENCE = BigInteger().with_variant(Integer, "sqlite")
# MySQL's TEXT ends at 64 KiB.
_LONG = Text().with_variant(LONGTEXT, "mysql", "mariadb")

#: Stands for a time that is NULL; never written.
NEVER: ColumnElement[int] = literal_column("-9223372036854775807", BigInteger)


class Key(String):
    """Text compared by its characters: MySQL would take 'a', 'A' and 'a ' for one and the same."""


@compiles(Key, "mysql", "mariadb")
def _mysql_key(element: Key, compiler: Any, **_options: Any) -> str:
    collation = "utf8mb4_nopad_bin" if compiler.dialect.is_mariadb else "utf8mb4_0900_bin"
    return f"VARCHAR({element.length}) CHARACTER SET utf8mb4 COLLATE {collation}"


@compiles(Key, "postgresql")
def _postgresql_key(element: Key, _compiler: Any, **_options: Any) -> str:
    return f'VARCHAR({element.length}) COLLATE "C"'


class NowInNanoseconds(FunctionElement[int]):
    """The database's clock as Unix nanoseconds."""

    type = BigInteger()
    inherit_cache = True


@compiles(NowInNanoseconds, "sqlite")
def _sqlite_now(_element: NowInNanoseconds, _compiler: Any, **_options: Any) -> str:
    return "(CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000000)"


@compiles(NowInNanoseconds, "postgresql")
def _postgresql_now(_element: NowInNanoseconds, _compiler: Any, **_options: Any) -> str:
    return "((extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000)"


@compiles(NowInNanoseconds, "mysql", "mariadb")
def _mysql_now(_element: NowInNanoseconds, _compiler: Any, **_options: Any) -> str:
    return "(CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED) * 1000)"


#: In a table's `info`: it is cut into days.
DAYS = "days"

_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "sqlite_autoincrement": True}


def table_name(store: str) -> str:
    return f"homing_{store}"


def messages_table(store: str, columns: Mapping[str, str] | None = None, *, partitioned: bool = False) -> Table:
    """The messages of one store; `columns` are the application's own, name to type (see `column_types`)."""
    table = Table(
        table_name(store),
        MetaData(),
        Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
        Column("id", Key(255), nullable=False, unique=True),
        Column("priority", Integer, nullable=False, server_default="0"),
        Column("time_scheduled", BigInteger, nullable=False, server_default=NowInNanoseconds()),
        Column("time_created", BigInteger, nullable=False, server_default=NowInNanoseconds()),
        # What claiming and settling change stands together, before the contents: PostgreSQL logs a changed row from the
        # first changed value to the last, if there is room for it on its page.
        Column("time_next", BigInteger, server_default="0"),
        Column("time_acked", BigInteger),
        Column("time_dead", BigInteger),
        Column("epoch", Integer, nullable=False, server_default="0"),
        Column("crashes", Integer, nullable=False, server_default="0"),
        Column("lock_token", String(36)),
        Column("batch_id", Key(255)),
        Column("message", _LONG, nullable=False),
        Column("encoding", String(8), nullable=False, server_default="text"),
        Column("content_type", String(255)),
        Column("headers", _LONG),
        Column("correlation_id", String(255)),
        Column("session_id", Key(255)),
        Column("partition_key", String(255)),
        Column("subject", String(255)),
        Column("recipient", String(255)),
        Column("reply_to", String(255)),
        Column("time_to_live", BigInteger),
        Column("dead_letter_reason", _LONG),
        Column("dead_letter_description", _LONG),
        Column("dead_letter_source", String(255)),
        Column("bucket", Integer),
        # The identity of this very table, drawn when it is made. It goes with each row, whatever inserts it,
        # and a table that is made anew has another.
        Column("table_id", Key(16), nullable=False, server_default=random_hex(16)),
        # SQLite takes anything for a number. In other columns that is found and kept aside; here it never would be.
        CheckConstraint("typeof(time_next) IN ('integer', 'null')").ddl_if(dialect="sqlite"),
        *(Column(name, COLUMN_TYPES[kind].sql) for name, kind in (columns or {}).items()),
        info={OWN: dict(columns or {})},
        **_OPTIONS,
    )
    _index_messages(table, partitioned)
    return table


def archive_table(messages: Table) -> Table:
    """Where PostgreSQL keeps what is acknowledged, if it is asked to: the same columns, a partition for each day."""
    table = Table(
        f"{messages.name}__acked",
        MetaData(),
        *(Column(column.name, column.type, nullable=column.name != "time_acked") for column in messages.c),
        postgresql_partition_by="RANGE (time_acked)",
        info={DAYS: True},
    )
    Index(f"{table.name}_sequence", table.c.sequence)
    Index(f"{table.name}_batch", table.c.batch_id, postgresql_where=table.c.batch_id.is_not(None))
    return table


def _index_messages(table: Table, partitioned: bool) -> None:
    c = table.c
    waiting = c.time_next.is_not(None)
    _index("due", (c.priority, c.time_next, c.sequence), waiting)
    _index("batch", (c.batch_id, c.sequence), c.batch_id.is_not(None))
    _index("dead", (c.time_dead,), c.time_dead.is_not(None))
    _index("session", (c.session_id, c.time_scheduled, c.sequence), c.session_id.is_not(None) & waiting)
    if partitioned:
        _index("bucket", (c.bucket, c.priority, c.time_next, c.sequence), waiting)


def apart(time: Column[int]) -> ColumnElement[int]:
    """This time, or NEVER where it is NULL, for a condition on messages that are found by their ids or numbers.

    It tells a planner nothing of NULLs. By `time_next > 0`, PostgreSQL would know that they are in the index of what is
    due, and would look through all of that where it takes the table for empty, as one that was at its last vacuum.
    """
    return func.coalesce(time, NEVER)


def _index(name: str, columns: Sequence[Column[Any]], where: ColumnElement[bool]) -> None:
    """An index of the rows that matter, where the database can leave out the others: finished messages cost nothing."""
    Index(f"{columns[0].table.name}__{name}", *columns, sqlite_where=where, postgresql_where=where)


def ledger_table(store: str, *, by_time: bool = False) -> Table:
    """One row per (message, flow). Which message of its id: the identity of its table, and its number there.

    `by_time` finds its oldest rows. Every record would pay for that index: only who removes old rows has it made.
    """
    prefix = table_name(store)
    table = Table(
        f"{prefix}__ledger",
        MetaData(),
        Column("message_id", Key(255), primary_key=True),
        Column("table_id", Key(16), primary_key=True),
        Column("sequence", BigInteger, primary_key=True, autoincrement=False),
        # The destination flow, or "" for the source flow. A flow behind a router delivers to one of several
        # destinations: `destination` says to which.
        Column("flow", Key(255), primary_key=True),
        Column("destination", String(255), nullable=False),
        Column("state", String(16), nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("deliveries", Integer, nullable=False),
        Column("result", _LONG),
        Column("error", _LONG),
        Column("snapshot", _LONG),
        Column("batch_id", Key(255), nullable=False),
        Column("run_id", Key(255), nullable=False),
        Column("time_recorded", BigInteger, nullable=False),
        **{**_OPTIONS, "sqlite_autoincrement": False},
    )
    Index(f"{prefix}__ledger_batch", table.c.batch_id, table.c.state)
    if by_time:
        Index(f"{prefix}__ledger_time", table.c.time_recorded)
    return table


def steps_table(store: str) -> Table:
    """Who may write for a step of a run, and until when."""
    return Table(
        f"{table_name(store)}__steps",
        MetaData(),
        Column("run_id", Key(255), primary_key=True),
        Column("step", Key(255), primary_key=True),
        Column("owner", String(36), nullable=False),
        Column("time_expires", BigInteger, nullable=False),
        Column("suspect", _LONG),
        **{**_OPTIONS, "sqlite_autoincrement": False},
    )


def operations_table(store: str) -> Table:
    """What people and DAGs did to a pipeline: rows are added, and never changed or removed."""
    prefix = table_name(store)
    table = Table(
        f"{prefix}__operations",
        MetaData(),
        # Several rows tell the story of one operation: that it began, and how it ended.
        Column("operation", Key(255), primary_key=True),
        Column("event", Key(16), primary_key=True),
        Column("time_recorded", BigInteger, nullable=False),
        Column("what", String(32), nullable=False),
        Column("who", String(255), nullable=False),
        Column("via", String(32), nullable=False),
        Column("why", _LONG),
        Column("messages", Integer),
        Column("selection", _LONG),
        Column("outcome", _LONG),
        **{**_OPTIONS, "sqlite_autoincrement": False},
    )
    Index(f"{prefix}__operations_at", table.c.time_recorded)
    return table


def forgotten_table(store: str) -> Table:
    """The messages that a person had removed, when and why. An id may identify a person: of that there is only a
    digest, of the whole reference."""
    return Table(
        f"{table_name(store)}__forgotten",
        MetaData(),
        Column("digest", String(64), primary_key=True),
        Column("table_id", Key(16), nullable=False),
        Column("sequence", BigInteger, nullable=False),
        Column("reason", _LONG, nullable=False),
        Column("time_asked", BigInteger, nullable=False),
        Column("time_done", BigInteger),
        **{**_OPTIONS, "sqlite_autoincrement": False},
    )


def work_table(store: str) -> Table:
    """What the steps of a run left in the work directory: a JSON object of files, and the digest of each."""
    return Table(
        f"{table_name(store)}__work",
        MetaData(),
        Column("run_id", Key(255), primary_key=True),
        Column("files", _LONG, nullable=False),
        **{**_OPTIONS, "sqlite_autoincrement": False},
    )


def registry_table() -> Table:
    """Every table of ours in this database: the version of its schema, and its store's shared properties.

    No store can be called so: the names of stores have no double underscore.
    """
    return Table(
        "homing__tables",
        MetaData(),
        Column("name", Key(255), primary_key=True),
        Column("version", Integer, nullable=False),
        Column("properties", _LONG),
        **{**_OPTIONS, "sqlite_autoincrement": False},
    )
