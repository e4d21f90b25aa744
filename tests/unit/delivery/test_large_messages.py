"""Large messages: what a store accepts it can also move and dead-letter, and what it did not accept holds up nobody."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from homing import portions
from homing.delivery import Batch, PipelineStores, open_pipeline_stores
from homing.delivery.failures import Selection, select
from homing.delivery.intake import take_in
from homing.errors import TooLargeError
from homing.ledger import FAILED, Entry
from homing.message import Message, MessageRef
from homing.scans import ALL
from homing.stores import open_store
from homing.stores.sql import SqlStore, claim_query
from tests.servers import MariaDB, PostgreSQL

PACKET = 4 * 2**20
ERROR = {"type": "ValueError", "message": "no good", "handler": "crm", "stack": "s" * 8000, "attempt": 1}


@pytest.fixture
def small_packets(mariadb: MariaDB) -> Iterator[Callable[[int], None]]:
    """A MariaDB whose statements have 4 MiB at most; call it with another number."""
    engine = sa.create_engine(mariadb.url, isolation_level="AUTOCOMMIT")

    def set_to(size: int) -> None:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"SET GLOBAL max_allowed_packet = {size}")

    set_to(PACKET)
    yield set_to
    set_to(16 * 2**20)
    engine.dispose()


def opened(database: str) -> Any:
    return open_pipeline_stores(f"{database}?store=orders", f"{database}?store=orders_dead")


def fail(stores: PipelineStores, batch: Batch, run_id: str) -> None:
    """Records for each message that the batch holds that it failed, with the state at that point."""
    fence = stores.ledger.open_step(run_id, "step", 60)
    contents = {row["id"]: row["message"] for held in batch.held() for row in held.store.batch_rows(held.lease)}
    entries = [
        head.entry("crm", FAILED, error=ERROR)._replace(snapshot={"id": head.row_id, "content": contents[head.row_id]})
        for head in batch.messages()
    ]
    stores.ledger.record(fence, entries)
    stores.ledger.close_step(fence)


def fail_to_the_end(stores: PipelineStores) -> None:
    """A first pass and a replay in which everything fails."""
    batch = Batch(stores, "run", ["crm"], chain="orders")
    batch.claim(1000)
    fail(stores, batch, "run")
    batch.settle()
    replay = Batch(stores, "replay", ["crm"], chain="orders")
    replay.reclaim(replay.unfinished("run"))
    fail(stores, replay, "replay")
    replay.finish_replay()


def test_nine_megabytes_on_mariadbs_defaults_and_its_neighbours_end_as_dead_letters(mariadb: MariaDB) -> None:
    with opened(mariadb.empty_database()) as stores:
        big = "x" * 9_000_000
        stores.store.store_many([big, "small"])

        fail_to_the_end(stores)

        letters = list(stores.dead_letters.view.look())
        assert sorted(len(letter.content["message"]["body"]) for letter in letters) == [5, 9_000_000]
        assert {len(failure.errors) for failure in select(stores, Selection())} == {1}


MAKERS: dict[str, Callable[[int], Any]] = {
    "letters": lambda size: "x" * size,
    "quotes": lambda size: '"' * size,
    "apostrophes": lambda size: "'" * size,
    "lines": lambda size: "\n" * size,
    "control characters": lambda size: "\x01" * size,
    "umlauts": lambda size: "ä" * (size // 2),
    "bytes": lambda size: b"\x00" * size,
    "json": lambda size: [{"a": 'b"c\\', "d": n} for n in range(size // 25)],
    "headers": lambda size: Message("h", "x", headers={"h": '"\\' * (size // 4)}),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_the_largest_message_that_mariadb_accepts_can_be_moved_and_dead_lettered(
    kind: str, mariadb: MariaDB, small_packets: Callable[[int], None]
) -> None:
    make = MAKERS[kind]
    with opened(mariadb.empty_database()) as stores:
        stores.store.store("first")
        low, high = 1000, PACKET
        while high - low > 1000:
            middle = (low + high) // 2
            content = make(middle)
            message = content if isinstance(content, Message) else Message("m", content)
            low, high = (middle, high) if stores.store.refusal(message) is None else (low, middle)
        with pytest.raises(TooLargeError, match="max_allowed_packet"):
            stores.store.store(make(high))
        stores.store.store(make(low))

        fail_to_the_end(stores)

        assert stores.dead_letters.count()["available"] == 2
        assert stores.store.count()["acknowledged"] == 2


def test_what_plain_sql_wrote_and_is_too_large_to_be_moved_is_dead_where_it_is_and_holds_up_nobody(
    mariadb: MariaDB, small_packets: Callable[[int], None]
) -> None:
    url = mariadb.empty_database()
    engine = sa.create_engine(url)
    with opened(url) as stores:
        stores.store.store("small", id="small")
        with engine.begin() as connection:
            insert = sa.text("insert into homing_orders (id, message) values ('giant', repeat('\"', 3000000))")
            connection.execute(insert)
        batch = Batch(stores, "run", ["crm"], chain="orders")
        assert batch.claim(10) == 2
        fail(stores, batch, "run")

        settlement = batch.settle()

        assert (settlement.failed, settlement.dead_lettered, settlement.released) == (1, 1, 0)
        assert stores.failures.count()["available"] == 1
        (giant,) = stores.store.browse(state="dead")
        assert giant.dead_letter_reason == "too large"
        assert "max_allowed_packet" in (giant.dead_letter_description or "")

        # It does not hold up others that are dead, either, and goes on once there is room.
        stores.store.store("poison", id="poison")
        stores.store.dead_letter(stores.store.claim(1)[0], reason="crashed")
        assert Batch(stores, "next", ["crm"], chain="orders").move_dead() == 1
        assert stores.store.count()["dead"] == 1
    small_packets(64 * 2**20)
    with opened(url) as stores:
        assert Batch(stores, "later", ["crm"], chain="orders").move_dead() == 1
        letters = {letter.content["message"]["id"]: letter for letter in stores.dead_letters.view.look()}
        assert letters["giant"].content["message"]["body"] == '"' * 3_000_000
    engine.dispose()


def test_a_hundred_failures_of_eleven_megabytes_are_recorded_at_once_on_postgresql(postgresql: PostgreSQL) -> None:
    with opened(postgresql.empty_database()) as stores:
        fence = stores.ledger.open_step("run", "step", 60)
        content = "x" * 11_000_000
        entries = [
            Entry(
                MessageRef("t", n, f"m{n}"), "crm", FAILED, error=ERROR, snapshot={"content": content}, batch_id="run"
            )
            for n in range(100)
        ]

        stores.ledger.record(fence, entries)

        known = stores.ledger.known([f"m{n}" for n in range(100)])
        assert len(known) == 100
        (entry,) = known[MessageRef("t", 7, "m7")].values()
        assert entry.snapshot is not None
        assert entry.snapshot["content"].startswith("xxx")
        assert "(cut: 11000002 bytes in all)" in entry.snapshot["content"]


def test_the_ledger_is_written_in_portions_and_all_or_none(
    postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "MOST_BYTES", 20_000)
    longest = []

    def watch(*arguments: Any) -> None:
        longest.append(max((len(str(value)) for value in dict(arguments[3] or {}).values()), default=0))

    with opened(postgresql.empty_database()) as stores:
        fence = stores.ledger.open_step("run", "step", 60)
        entries = [Entry(MessageRef("t", n, f"m{n}"), "crm", FAILED, error=ERROR, batch_id="run") for n in range(20)]
        engine = stores.store._database._engine
        sa.event.listen(engine, "before_cursor_execute", watch)

        stores.ledger.record(fence, entries)

        assert len(stores.ledger.known([entry.message_id for entry in entries])) == 20
        assert 10_000 < max(longest) < 25_000


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "MOST_BYTES", 1000)
    monkeypatch.setattr(claim_query, "CLAIMED_BYTES", 1000)


@pytest.mark.usefixtures("small_portions")
def test_pages_have_a_portion_at_most_and_leave_nothing_out(database: str) -> None:
    contents = ["x" * size for size in (400, 400, 400, 3000, 10, 10, 900, 200)]
    with opened(database) as stores:
        ids = stores.store.store_many(contents)
        pages = list(stores.store.scans().message_pages(0, 2**62, which=ALL))
        assert [len(page) for page in pages] == [2, 1, 1, 3, 1]
        headed = stores.store.store(Message("headed", "x", headers={"h": "y" * 990}))
        pages = list(stores.store.scans().message_pages(0, 2**62, which=ALL))
        assert [len(page) for page in pages] == [2, 1, 1, 3, 1, 1]

        assert [message.id for message in stores.store.view.look()] == [*ids, headed]
        assert {message.id for message in stores.store.view.look(ids)} == set(ids)
        batch = Batch(stores, "run", ["crm"], chain="orders")
        batch.claim(100)
        (held,) = batch.held()
        rows = list(held.store.batch_rows(held.lease))
        assert [row["id"] for row in rows] == [*ids, headed]
        assert {row["id"] for row in held.store.batch_rows(held.lease, ids=ids)} == set(ids)

        fail_to_the_end_of(stores, batch)

        assert len(select(stores, Selection())) == 9
        assert stores.dead_letters.count()["available"] == 9


def fail_to_the_end_of(stores: PipelineStores, batch: Batch) -> None:
    fail(stores, batch, "run")
    assert batch.settle().failed == 9
    replay = Batch(stores, "replay", ["crm"], chain="orders")
    assert replay.reclaim(replay.unfinished("run")) == 9
    fail(stores, replay, "replay")
    assert replay.finish_replay().dead_lettered == 9


@pytest.mark.usefixtures("small_portions")
def test_a_claim_hands_out_what_is_light_enough_in_order_and_one_message_at_least(database: str) -> None:
    with open_store(f"{database}?store=orders") as store:
        assert isinstance(store, SqlStore)
        store.store(Message("late", "x" * 10, priority=1))
        store.store_many([Message(f"m{n}", "x" * size) for n, size in enumerate((400, 400, 400, 3000, 10))])
        store.store(Message("urgent", "x" * 10, priority=-1))

        claims = [[message.id for message in store.claim(100)] for _ in range(5)]

        assert claims == [["urgent", "m0", "m1"], ["m2"], ["m3"], ["m4", "late"], []]


@pytest.mark.usefixtures("small_portions")
def test_a_session_is_claimed_by_weight_too(database: str) -> None:
    with open_store(f"{database}?store=orders") as store:
        store.store_many([Message(f"m{n}", "x" * 400, session_id="s") for n in range(3)])
        assert [message.id for message in store.claim(100, session_id="s")] == ["m0", "m1"]


@pytest.mark.usefixtures("small_portions")
def test_the_dead_come_a_portion_at_a_time_and_all_are_moved(database: str) -> None:
    with opened(database) as stores:
        stores.store.store_many(["x" * 400] * 7)
        for _ in range(7):
            message = stores.store.retrieve()
            assert message is not None
            stores.store.dead_letter(message, reason="crashed")
        assert len(stores.store.dead_messages()) == 2

        assert Batch(stores, "run", ["crm"], chain="orders").move_dead() == 7
        assert stores.dead_letters.count()["available"] == 7


def test_one_that_is_too_large_to_be_taken_in_does_not_stop_the_others(database: str) -> None:
    with (
        open_store(f"memory://{uuid.uuid4().hex}") as source,
        open_store(f"{database}?store=in&max_message_bytes=500") as to,
    ):
        source.store_many([Message("a", "x"), Message("giant", "x" * 1000), Message("b", "x")])

        assert take_in(source, to, 100) == 2

        assert [message.id for message in to.browse()] == ["a", "b"]
        (dead,) = source.browse(state="dead")
        assert (dead.id, dead.dead_letter_reason) == ("giant", "too large")
        assert "max_message_bytes is 500" in (dead.dead_letter_description or "")
