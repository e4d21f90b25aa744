"""Rows: expressions for the state of a row, and for whether a message is fresh, with nothing but its content."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from homing import message as m
from homing.errors import UnreadableMessageError
from homing.message import LEASED, TEXT, Message, decode
from homing.row import RARE, READ, faults, from_nanoseconds
from homing.stores.sql.header_columns import OWN

#: What is read of a fresh message: one that is nothing but its content, and as `store()` left it. The rest follows.
FRESH = ("sequence", "time_next", "id", "message", "encoding")
FRESH_ROW = len(FRESH) + 1  # values, the last of them what `beyond_fresh` says; no other row has so many

_ID = READ.index("id")
_new, _set = object.__new__, object.__setattr__


def read_fresh(row: tuple[Any, ...], lock_token: str) -> Message:
    """The Message in these values of FRESH, leased for the first time; raises UnreadableMessageError likewise."""
    sequence, created, message_id, body, encoding, _ = row
    if not (type(created) is int and type(message_id) is type(body) is str):
        raise UnreadableMessageError(faults(row, FRESH))
    fields = {
        "id": message_id,
        "content": body if encoding == TEXT else decode(encoding, body, message_id),
        "headers": {},
        "sequence_number": sequence,
        "delivery_count": 1,
        "enqueued_at": from_nanoseconds(created),
        "lock_token": lock_token,
        "state": LEASED,
    }
    message = _new(Message)
    _set(message, "__dict__", fields)
    return message


def id_of(row: tuple[Any, ...]) -> Any:
    """The id in these values of READ or FRESH."""
    return row[FRESH.index("id") if len(row) == FRESH_ROW else _ID]


def is_fresh(row: tuple[Any, ...]) -> bool:
    """Whether these values of READ are of a fresh message."""
    _, due, epoch, _, token, scheduled, life, created, priority, _, _, _, headers, *rare = row
    return (
        due == scheduled == created
        and epoch == priority == 0
        and token is life is headers is None
        and rare.count(None) == len(rare)
    )


def beyond_fresh(table: sa.Table) -> sa.ColumnElement[Any]:
    """An expression that is NULL for fresh messages."""
    c = table.c
    nothing = (c.lock_token, c.time_to_live, c.headers, beyond_plain(table), *(c[name] for name in table.info[OWN]))
    fresh = sa.and_(
        c.time_scheduled == c.time_next,
        c.time_created == c.time_next,
        *(c[name] == sa.literal_column("0") for name in ("epoch", "priority")),
        *(each.is_(None) for each in nothing),
    )
    return sa.case((fresh, None), else_=sa.literal_column("1"))


def beyond_plain(table: sa.FromClause) -> sa.ColumnElement[Any]:
    """An expression that is NULL for messages that have nothing beyond PLAIN."""
    return sa.func.coalesce(*(table.c[name] for name in RARE))


def state_of(table: sa.FromClause, now: int) -> sa.Label[str]:
    """The state of a row, as an expression."""
    c = table.c
    return sa.case(
        (c.time_acked.is_not(None), m.ACKNOWLEDGED),
        (c.time_dead.is_not(None), m.DEAD),
        (c.time_next.is_(None), m.DEFERRED),
        ((c.time_next == 0) & (c.time_scheduled > now), m.SCHEDULED),
        (c.time_next <= now, m.AVAILABLE),
        (c.lock_token.is_not(None), m.LEASED),
        else_=m.SCHEDULED,
    ).label("state")
