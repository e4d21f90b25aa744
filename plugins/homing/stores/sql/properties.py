"""The settings of a SQL store: those a URL gives to one consumer, and those `configure` gives to all consumers."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Final, Literal

import sqlalchemy as sa
from msgspec import Meta
from sqlalchemy import Table
from sqlalchemy.engine import URL, Connection

from homing.arguments import refuse_unknown
from homing.constraints import (
    AtLeastOne,
    Count,
    Factor,
    NotNegative,
    Positive,
    Share,
    check_fields,
    constraints,
    read_text,
)
from homing.errors import ConfigurationError
from homing.message import JSON, decode, encode_json
from homing.retry import RetryPolicy
from homing.row import NANOSECONDS
from homing.size_limit import DEFAULT_BYTES, HIGHEST_BYTES
from homing.stores.options import NOT_IN_URL, option_names
from homing.stores.sql import driver_options
from homing.stores.sql.column_types import COLUMN_TYPES
from homing.stores.sql.database import TIMEOUT, Database
from homing.stores.sql.durability import FULL

_NAME = re.compile(r"(?=.{1,40}$)[a-z][a-z0-9]*(_[a-z0-9]+)*")
_REFRESH = 5.0  # seconds
_STEPS = 100  # after so many deliveries no delay grows any more
_COLUMN = re.compile(r"[a-z][a-z0-9_]{0,50}")


KEPT: Final = "kept"
ARCHIVED: Final = "archived"
REMOVED: Final = "removed"

#: More than 0 seconds, so that a claim takes no time to run out.
Lease = Annotated[float, Meta(ge=1e-6)]


@dataclass(frozen=True)
class SqlProperties:
    """How a store behaves. Durations in seconds; changes reach running consumers within seconds."""

    #: How long a retrieved message is leased the first time; doubled with each delivery.
    ack_wait: Lease = 30.0
    #: No lease of the store's own lasts longer.
    max_ack_wait: Lease = 3600.0
    #: Leases after the first are longer (at the longest, shorter) by up to this share, so that messages that failed
    #: together come back at different times.
    jitter: NotNegative = 0.1
    #: How often a lease may run out before the message is kept aside as dead.
    max_deliveries: AtLeastOne = 5
    #: How long a released message waits; 0: not at all.
    backoff: NotNegative = 0.0
    #: Each further wait is so many times as long as the one before, up to `max_backoff`.
    backoff_multiplier: Factor = 2.0
    max_backoff: Positive = 3600.0
    #: Each wait is shorter by up to this share, so that messages that were released together come back apart.
    backoff_jitter: Share = 0.0
    #: For how long an id is known after its message was stored; 0: as long as the message is kept.
    duplicate_window: NotNegative = 0.0
    #: Acknowledged messages are removed so long after their acknowledgement; 0: only when purge() says so.
    purge_after: NotNegative = 0.0
    #: The ledger of a message that is done with is removed so long after its last record, once the message itself was
    #: purged; 0: kept for good.
    ledger_retention: NotNegative = 0.0
    #: What becomes of an acknowledged message: `kept` until it is purged, its id still known; `archived`, in a table
    #: of its own that is purged by days, on PostgreSQL; or `removed` at once.
    acknowledged: Literal["kept", "archived", "removed"] = KEPT
    #: How many messages a claim takes that does not say how many.
    batch_size: AtLeastOne = 100
    #: At most so many messages are claimed per second by this consumer; 0: no limit.
    rate: NotNegative = 0.0
    #: No message of more bytes is taken in: its content and headers as they are written down, and its other texts.
    max_message_bytes: Annotated[int, Meta(ge=1, le=HIGHEST_BYTES)] = DEFAULT_BYTES

    def __post_init__(self) -> None:
        check_fields(self)
        self.backoff_policy()

    def changed(self, values: Mapping[str, Any]) -> SqlProperties:
        """These properties with some replaced; raises ConfigurationError for one that does not exist or fit."""
        types = constraints(type(self))
        refuse_unknown(values, types, of="a SQL store")
        read = {name: read_text(f"the store option {name}", value, types[name]) for name, value in values.items()}
        return replace(self, **read)

    @property
    def after_acknowledging(self) -> str:
        """KEPT, ARCHIVED or REMOVED: a window in which ids are known needs their messages."""
        return KEPT if self.duplicate_window else self.acknowledged

    @property
    def kept_for(self) -> float:
        """For how long an acknowledged message is kept at least: as long as its id is to be known."""
        return max(self.purge_after, self.duplicate_window)

    def doublings(self, first: float) -> list[int]:
        """`first`, doubled with each delivery up to `max_ack_wait`, in nanoseconds; the last holds from there on."""
        return _delays(RetryPolicy(interval=first, multiplier=2.0, max_interval=self.max_ack_wait))

    def backoffs(self) -> list[int]:
        """What a released message waits, delivery by delivery, in nanoseconds; the last holds from there on."""
        return _delays(self.backoff_policy())

    def backoff_policy(self) -> RetryPolicy:
        """How released messages wait, its jitter aside; raises ConfigurationError for numbers that make no policy."""
        RetryPolicy(jitter=self.backoff_jitter)
        first = self.backoff or self.max_backoff
        return RetryPolicy(interval=first, multiplier=self.backoff_multiplier, max_interval=self.max_backoff)


def _delays(policy: RetryPolicy) -> list[int]:
    delays = [policy.delay(1)]
    while len(delays) < _STEPS and (longer := policy.delay(len(delays) + 1)) > delays[-1]:
        delays.append(longer)
    return [int(delay * NANOSECONDS) for delay in delays]


@dataclass(frozen=True)
class SqlOptions:
    """What a consumer says when it opens a store: which store, how to reach it, and the properties it starts from."""

    name: str = "messages"
    #: Into how many parts the store is cut, so that consumers can share it out; 0: not at all.
    partitions: Count = 0
    #: Columns of the application's own, name to type, filled from the headers of the same name, read back too.
    columns: str = ""
    #: After so many seconds without an answer the database is away; SQLite waits so long for another's transaction.
    timeout: Annotated[float, Meta(ge=1e-3)] = TIMEOUT
    #: `full` refuses a server that may forget what it confirmed; `relaxed` takes it as it is.
    durability: Literal["full", "relaxed"] = FULL
    #: Whether a server is spoken to only by TLS.
    require_tls: bool = False
    properties: SqlProperties = field(default_factory=SqlProperties)
    #: Whether nothing may be written, not even a table that is missing.
    read_only: bool = field(default=False, metadata=NOT_IN_URL)

    def __post_init__(self) -> None:
        check_fields(self)
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"a store name must be lower-case words joined by single _, at most 40 long, got {self.name!r:.60}"
            )
        self.column_types  # noqa: B018 - raises for columns that cannot be

    @cached_property
    def column_types(self) -> dict[str, str]:
        """The types of the application's columns, by their names."""
        return _read_columns(self.columns)


#: Every option of a URL that is the store's and not the database driver's.
OPTION_NAMES = tuple(option_names(SqlOptions, SqlProperties))


def check_rest(url: URL) -> None:
    """Raises ConfigurationError for what is left of a URL when our options are taken out, and makes no sense."""
    backend = url.get_backend_name()
    allowed = driver_options.ALLOWED[backend]
    refuse_unknown(url.query, [*OPTION_NAMES, *sorted(allowed)], of=f"a store on {backend}")
    # What stands where a server would, a driver would repeat in its error.
    elsewhere = url.host or url.username or url.password or url.port
    if backend == "sqlite" and (elsewhere or url.database in (None, "", ":memory:")):
        raise ConfigurationError(
            "a SQLite store is a file: sqlite:///relative.db or sqlite:////absolute.db. One in memory would lose "
            "what it accepted; for that, memory://name says so"
        )


class LiveProperties:
    """A store's properties as they stand in the database, looked up again every few seconds."""

    def __init__(self, database: Database, registry: Table, table: str, given: SqlProperties) -> None:
        self._database = database
        self._registry = registry
        self._table = table
        #: What this consumer's URL says.
        self.given = given
        self._current = given
        self._looked: float | None = None

    def current(self, transaction: Any = None) -> SqlProperties:
        """The properties, for what is done in the caller's `transaction` too."""
        if self._looked is None or time.monotonic() - self._looked > _REFRESH:
            self._current = self.given.changed(self._look(transaction))
            self._looked = time.monotonic()
        return self._current

    def _look(self, transaction: Any) -> dict[str, Any]:
        if transaction is None or self._database.dialect.locks_rows:
            return self._database.read(self._shared)
        # The caller may have the database for himself: on another connection we would wait for him in vain.
        with self._database.within(transaction) as connection:
            return self._shared(connection)

    def change(self, values: Mapping[str, Any]) -> SqlProperties:
        """Sets properties for every consumer; None gives one back to what each consumer says itself."""
        self.given.changed({name: value for name, value in values.items() if value is not None})

        def work(connection: Connection) -> None:
            # No other process may change one meanwhile: its change would be lost.
            shared = {**self._shared(connection, locked=self._database.dialect.locks_rows), **values}
            text = encode_json({name: value for name, value in shared.items() if value is not None})
            mine = self._registry.c.name == self._table
            connection.execute(self._registry.update().where(mine).values(properties=text))

        self._database.write(work)
        self._looked = None
        return self.current()

    def touch(self) -> None:
        """Writes what is there already, to find out whether anything can be written."""
        c = self._registry.c
        statement = self._registry.update().where(c.name == self._table).values(properties=c.properties)
        self._database.write(lambda connection: connection.execute(statement))

    def _shared(self, connection: Connection, *, locked: bool = False) -> dict[str, Any]:
        self._database.measure_clock(connection)
        statement = sa.select(self._registry.c.properties).where(self._registry.c.name == self._table)
        text = connection.execute(statement.with_for_update() if locked else statement).scalar()
        return dict(decode(JSON, text, self._table)) if text else {}


def _read_columns(text: str) -> dict[str, str]:
    columns = {}
    for item in filter(None, str(text).split(",")):
        name, _, kind = item.partition(":")
        if not _COLUMN.fullmatch(name) or (kind or "text") not in COLUMN_TYPES:
            raise ConfigurationError(
                f"columns must be written as name or name:type, type one of {', '.join(COLUMN_TYPES)}; got {item!r}"
            )
        columns[name] = kind or "text"
    return columns
