"""Whose message it is: tables of the same name, tables made anew, and ids that come again are never taken for each
other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlalchemy as sa

from homing import Message
from homing.delivery.failures import read_failures
from homing.delivery.status import message_status
from homing.errors import ConfigurationError
from homing.ledger import DELIVERED, FAILED, Entry
from homing.message import MessageRef
from homing.stores.sql import SqlStore
from tests.unit.delivery.shop import Shop, bodies, opened


def drop(store: SqlStore) -> None:
    with store._database._engine.begin() as connection:
        connection.execute(sa.text(f"drop table {store._table.name}"))
        connection.execute(sa.text("delete from homing__tables where name = :name"), {"name": store._table.name})


@pytest.fixture
def twins(tmp_path: Path, database: str) -> Iterator[tuple[Shop, Shop]]:
    """Two databases, each with a store of the same name, that share a dead-letter store."""
    shared = f"{database}?store=dead"
    with ExitStack() as stack:
        here = stack.enter_context(opened(f"{database}?store=orders", shared))
        there = stack.enter_context(opened(f"sqlite:///{tmp_path}/other.db?store=orders", shared))
        yield here, there


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    url = f"{database}?store=orders&duplicate_window=0.001"
    with opened(url, f"{database}?store=dead") as opened_shop:
        yield opened_shop


def test_two_databases_with_the_same_store_share_a_dead_letter_store_and_each_keeps_its_own(
    twins: tuple[Shop, Shop],
) -> None:
    for number, each in enumerate(twins):
        each.stores.store.store(f"of {number}", id="order-1")
        assert each.run("run", away=True).failed == 1
    here, there = twins
    assert here.replay("replay", ["order-1"], away=True).dead_lettered == 1

    assert there.replay("replay", ["order-1"]).acknowledged == 1, "tried, although a dead letter has its id"

    assert there.got == ["of 1"]
    assert bodies(here.stores.dead_letters) == ["of 0"]
    assert (here.books().total.dead_lettered, there.books().total.delivered) == (1, 1)
    assert here.books().balanced
    assert there.books().balanced


def test_both_dead_letters_of_one_id_have_room_and_nobody_replays_the_others(twins: tuple[Shop, Shop]) -> None:
    for number, each in enumerate(twins):
        each.stores.store.store(f"of {number}", id="order-1")
        each.run("run", away=True)
        assert each.replay("replay", ["order-1"], away=True).dead_lettered == 1
    here, there = twins
    assert sorted(map(str, bodies(here.stores.dead_letters))) == ["of 0", "of 1"]
    assert [failure.dead for failure in read_failures(here.stores)] == [True]

    assert there.replay("again", ["order-1"]).acknowledged == 1

    assert (here.got, there.got) == ([], ["of 1"])
    assert bodies(here.stores.dead_letters) == ["of 0"]
    assert here.replay("again", ["order-1"]).acknowledged == 1
    assert here.got == ["of 0"]


def test_a_dead_letter_from_elsewhere_under_the_same_id_is_left_alone(twins: tuple[Shop, Shop]) -> None:
    here, there = twins
    here.stores.store.store("of 0", id="order-1")
    here.run("run", away=True)
    here.replay("replay", ["order-1"], away=True)
    (letter,) = here.stores.dead_letters.browse()

    assert there.batch("replay").reclaim(["order-1", letter.content["message"]["id"], letter.id.partition("/")[2]]) == 0

    assert there.batch("another").messages() == []
    assert here.batch("replay 2").reclaim(["order-1"]) == 1, "and nobody else holds it"


def test_a_table_made_anew_beside_its_old_ledger_delivers_what_it_takes_in(shop: Shop, database: str) -> None:
    shop.stores.store.store("before", id="order-1")
    assert shop.run("run").acknowledged == 1
    drop(shop.stores.store)
    with opened(f"{database}?store=orders", f"{database}?store=dead") as anew:
        anew.stores.store.store("after", id="order-1")
        assert next(iter(anew.stores.store.view.states()))[2].sequence == 1

        # Also a process that has the store open since before the table was made anew.
        assert shop.run("run 2").acknowledged == 1

        assert shop.got == ["before", "after"]
        assert anew.books().balanced


def test_what_failed_before_its_table_was_made_anew_is_still_replayed(shop: Shop, database: str) -> None:
    shop.stores.store.store("before", id="order-1")
    shop.run("run", away=True)
    drop(shop.stores.store)
    with opened(f"{database}?store=orders", f"{database}?store=dead") as anew:
        anew.stores.store.store("after", id="order-1")
        assert anew.run("run 2", away=True).failed == 1
        assert anew.replay("replay", ["order-1"]).acknowledged == 1
        assert anew.replay("replay 2", ["order-1"]).acknowledged == 1

        assert sorted(map(str, anew.got)) == ["after", "before"]


def test_every_table_has_its_own_identity_which_goes_with_each_row(shop: Shop) -> None:
    shop.stores.store.store("by us", id="a")
    with shop.stores.store._database._engine.begin() as connection:
        connection.execute(sa.text("insert into homing_orders (id, message) values ('b', 'by plain SQL')"))
    shop.stores.failures.store("elsewhere", id="a")

    (one, two), (other,) = shop.stores.store.view.states(), shop.stores.failures.view.states()

    assert one[2].table_id == two[2].table_id != other[2].table_id
    assert len(one[2].table_id) == len(other[2].table_id) == 16


@pytest.mark.parametrize("dead", [False, True])
def test_an_id_that_comes_again_while_its_earlier_failure_waits_has_its_own_place(shop: Shop, dead: bool) -> None:
    shop.stores.store.store("v1", id="x")
    shop.run("run 1", away=True)
    if dead:
        shop.replay("replay 1", ["x"], away=True)
    assert shop.stores.store.purge(0) == 1
    shop.stores.store.store("v2", id="x")
    assert shop.run("run 2", away=True).failed == 1
    assert shop.replay("replay 2", ["x"], away=True).dead_lettered == 1

    assert sorted(bodies(shop.stores.failures) + bodies(shop.stores.dead_letters)) == ["v1", "v2"]  # type: ignore[type-var]

    while shop.replay("the last", ["x"]).acknowledged:
        pass
    assert sorted(map(str, shop.got)) == ["v1", "v2"]
    assert bodies(shop.stores.failures) == bodies(shop.stores.dead_letters) == []
    assert shop.books().balanced


@pytest.mark.parametrize("away", [True, False], ids=["failed", "delivered"])
def test_the_audit_is_not_content_with_another_message_of_the_same_id(shop: Shop, away: bool) -> None:
    shop.stores.store.store("v1", id="x")
    shop.run("run 1", away=away)
    shop.stores.store.purge(0)
    shop.stores.store.store("v2", id="x")
    lost = shop.stores.store.claim(1)
    shop.stores.store.settle(lost)  # acknowledged by somebody who delivered nothing

    books = shop.books()

    assert (books.balanced, books.unaccounted) == (False, ["x"])


def test_people_are_told_of_each_message_of_an_id(shop: Shop) -> None:
    shop.stores.store.store("v1", id="x")
    shop.run("run 1", away=True)
    shop.stores.store.purge(0)
    shop.stores.store.store("v2", id="x")
    shop.run("run 2")
    first, second = (message_status(shop.stores, ["crm"], batch_id=run) for run in ("run 1", "run 2"))

    assert [story.outcome for story in (*first, *second)] == ["failed, to be replayed", "delivered"]
    assert [story.outcome for story in message_status(shop.stores, ["crm"], ids=["x"])] == [
        "failed, to be replayed",
        "delivered",
    ]


def test_a_message_can_be_asked_for_by_its_name(shop: Shop) -> None:
    shop.stores.store.store("v1", id="x")
    shop.run("run 1", away=True)
    ((_, _, ref),) = shop.stores.store.view.states()

    assert [story.outcome for story in message_status(shop.stores, ["crm"], ids=[ref.name])] == [
        "failed, to be replayed"
    ]
    assert shop.batch("replay").unknown([ref.name, "nobody"], None) == ["message nobody"]
    assert shop.batch("replay").reclaim([ref.name]) == 1


def test_the_ledger_keeps_messages_of_two_tables_apart(shop: Shop) -> None:
    ledger = shop.stores.ledger
    fence = ledger.open_step("run", "step", 60)
    one, other = MessageRef("a" * 16, 1, "x"), MessageRef("b" * 16, 1, "x")

    ledger.record(
        fence, [Entry(one, "crm", DELIVERED, batch_id="b", at=1), Entry(other, "crm", FAILED, batch_id="b", at=2)]
    )

    assert {ref: flows["crm"].state for ref, flows in ledger.known(["x"]).items()} == {one: DELIVERED, other: FAILED}
    assert ledger.unfinished("b") == [other]
    assert ledger.entries(["x"])["x"]["crm"].ref == other, "people see the last one"


@pytest.mark.parametrize("length", [1, 200, 255])
def test_a_name_fits_where_an_id_fits_and_is_of_one_message(shop: Shop, length: int) -> None:
    long = "i" * length
    shop.stores.store.store_many([Message(long, 1), Message("x" + long[1:], 2)])
    assert shop.run("run", away=True).failed == 2

    assert shop.replay("replay", [long, "x" + long[1:]], away=True).dead_lettered == 2

    assert len(bodies(shop.stores.dead_letters)) == 2
    assert shop.replay("replay 2", [long, "x" + long[1:]]).acknowledged == 2
    assert shop.books().balanced


def test_an_id_that_looks_like_the_name_of_another_message_takes_no_ones_place(shop: Shop) -> None:
    shop.stores.store.store("v1", id="x")
    ((_, _, ref),) = shop.stores.store.view.states()
    with shop.stores.store._database._engine.begin() as connection:
        forged = sa.text("insert into homing_orders (id, message, table_id) values (:id, 'forged', '')")
        connection.execute(forged, {"id": ref.name})

    assert shop.run("run", away=True).failed == 2

    assert sorted(map(str, bodies(shop.stores.failures))) == ["forged", "v1"]
    assert shop.books().balanced


def test_dead_letters_in_the_pipelines_own_table_by_another_name_of_its_place_are_refused(
    tmp_path: Path, database: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    same = database.replace("127.0.0.1", "localhost").replace(f"{tmp_path}/", f"{tmp_path}/link/")
    assert same != database
    for name in ("orders", "orders_failures"):
        with opened(f"{database}?store=orders", f"{same}?store={name}") as shop:
            shop.stores.store.store("a")

            with pytest.raises(ConfigurationError, match="is also the pipeline's store or failure store"):
                shop.batch("run").claim(1)

            assert shop.stores.store.count()["available"], "nothing was claimed"
    with opened(f"{database}?store=orders", f"{same}?store=dead") as shop:
        assert shop.batch("run").claim(9) == 2
