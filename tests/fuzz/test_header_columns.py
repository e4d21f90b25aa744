"""Any header × any type of column: what is accepted comes back, what is not is refused alone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import example, given
from hypothesis import strategies as st

from homing import Message
from homing.delivery.intake import take_in
from homing.errors import UnstorableContentError
from homing.message import encode_json
from homing.stores.memory.store import MemoryStore
from homing.stores.sql import SqlStore
from tests.fuzz.profile import ANYTHING, SQL_TEXTS, examples
from tests.unit.stores.databases import opened

COLUMNS = {
    "region": "text",
    "customer": "bigint",
    "price": "decimal",
    "weight": "double",
    "due": "time",
    "paid": "boolean",
    "details": "json",
}
_TIMES = st.datetimes(timezones=st.sampled_from([timezone.utc, timezone(timedelta(hours=-9, minutes=-30))]))
_HEADERS = st.one_of(
    ANYTHING,
    SQL_TEXTS,
    st.text(st.sampled_from("0123456789+-. _"), max_size=22),
    st.integers(-(2**64), 2**64),
    st.sampled_from(
        ["x" * 255, "x" * 256, "ü" * 255, "1_0", " 1", "٣", "", 2**63 - 1, -(2**63), "-9223372036854775808"]
    ),
    st.decimals(-(10**16), 10**16, places=9).map(str),
    st.floats(),
    st.floats().map(repr),
    st.booleans(),
    _TIMES.map(datetime.isoformat),
    st.sampled_from(
        ["true", "True", "2026-11-18T20:15Z", "2026-11-18", "2026-02-30T00:00Z", "0001-01-01T00:00+14:00", "0" * 60]
    ),
)


@pytest.fixture
def store(database: str) -> Iterator[SqlStore]:
    with opened(database, columns=",".join(f"{name}:{kind}" for name, kind in COLUMNS.items())) as store:
        yield store


@pytest.fixture
def engine(database: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(database)
    yield engine
    engine.dispose()


def read_back(store: SqlStore, engine: sa.Engine, name: str, message_id: str) -> Any:
    """The header that plain SQL makes which writes the same into the column, and knows nothing of headers."""
    statement = (
        f"insert into homing_orders (id, message, {name}) select :new, 'x', {name} from homing_orders where id = :id"  # noqa: S608
    )
    with engine.begin() as connection:
        connection.execute(sa.text(statement), {"id": message_id, "new": f"{message_id}-sql"})
    (message,) = store.browse(1, ids=[f"{message_id}-sql"])
    return message.headers.get(name)


def expected(header: Any, kind: str) -> Any:
    """What comes of a header out of a column of this kind."""
    if header is None or kind == "json":
        return header
    if kind == "text":
        return header if isinstance(header, str) else encode_json(header)
    if kind == "time":
        return datetime.fromisoformat(header.replace("Z", "+00:00")).astimezone(timezone.utc).isoformat()
    return {"bigint": int, "decimal": float, "double": float, "boolean": lambda it: it in (True, "true")}[kind](header)


@pytest.mark.services
@pytest.mark.parametrize("name", COLUMNS)
def test_what_a_column_takes_comes_back_and_what_it_does_not_is_refused_by_name(
    store: SqlStore, engine: sa.Engine, name: str
) -> None:
    @examples(120)
    @given(header=_HEADERS, many=st.booleans())
    @example(header=1.5, many=False)
    @example(header="1e5", many=True)
    def check(header: Any, many: bool) -> None:
        ids = [uuid.uuid4().hex for _ in range(60 if many else 1)]  # so many go in by COPY on PostgreSQL
        bad = Message(ids[-1], "x", headers={name: header})
        before, refused = store.count(), None
        try:
            store.store_many([*(Message(each, "x") for each in ids[:-1]), bad])
        except UnstorableContentError as error:
            refused = error
        if refused is not None:
            assert store.count() == before, "all or none"
            assert refused.__cause__ is None
            # What is not even JSON is refused before any column is looked at.
            assert "column" not in str(refused) or (bad.id in str(refused) and repr(name) in str(refused))
            return
        assert read_back(store, engine, name, bad.id) == expected(header, COLUMNS[name])
        (held,) = store.browse(10, ids=[bad.id])
        assert held.headers == {name: header}

    check()


@pytest.mark.services
def test_one_in_the_midst_of_many_is_refused_alone(store: SqlStore) -> None:
    @examples(40)
    @given(headers=st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(COLUMNS, _HEADERS)), max_size=12))
    def check(headers: list[dict[str, Any]]) -> None:
        source = MemoryStore(uuid.uuid4().hex)
        ids = []
        for each in headers:
            message = Message(uuid.uuid4().hex, "x", headers=each)
            try:
                ids.append(source.store(message))
            except UnstorableContentError:
                continue  # no store takes it
        fits = set()
        for message in source.browse(100):
            try:
                store.store(Message(uuid.uuid4().hex, "x", headers=message.headers))
                fits.add(message.id)
            except UnstorableContentError:
                pass

        assert take_in(source, store, 100) == len(fits)

        assert {message.id for message in store.browse(100, ids=ids)} == fits
        assert {message.id for message in source.browse(100, state="dead")} == set(ids) - fits

    check()
