"""What half-way settlements, and people, leave behind: one message that cannot be moved holds up no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from homing import Message
from homing.delivery import Settlement
from homing.failure import dead_letter_id
from homing.message import ACKNOWLEDGED
from tests.unit.delivery.conftest import Crash
from tests.unit.delivery.shop import Shop, bodies, opened


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    with opened(f"{database}?store=orders", f"{database}?store=dead") as opened_shop:
        yield opened_shop


def without_identity(shop: Shop, *tables: str) -> None:
    """The messages there are as they were stored before tables had identities."""
    with shop.stores.store._database._engine.begin() as connection:
        for table in tables:
            connection.execute(sa.text(f"update {table} set table_id = ''"))  # noqa: S608


@pytest.mark.parametrize("place", ["failures", "dead_letters"])
def test_an_acknowledged_copy_of_the_same_message_makes_way(shop: Shop, place: str) -> None:
    shop.stores.store.store_many([Message("x", "x"), Message("y", "y")])
    if place == "dead_letters":
        shop.run("run", away=True)
    target = getattr(shop.stores, place)
    ((_, _, ref),) = shop.stores.store.view.states(["x"])
    left = dead_letter_id("orders", ref.name) if place == "dead_letters" else ref.name
    target.store("left behind", id=left)
    target.settle(target.claim(1))

    if place == "failures":
        assert shop.run("run", away=True) == Settlement(failed=2)
    else:
        assert shop.replay("replay", ["x", "y"], away=True) == Settlement(dead_lettered=2)

    assert sorted(map(str, bodies(target))) == ["x", "y"]
    assert target.count()[ACKNOWLEDGED] == 0
    assert shop.books().balanced


def test_a_settlement_that_died_after_its_copy_was_dead_lettered_is_finished_by_the_next(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy in the failure store is acknowledged by then, and the message itself still held."""
    shop.stores.store.store_many([Message("x", "x"), Message("y", "y")])
    batch = shop.batch("run")
    batch.claim(10)
    shop._deliver(batch, True)
    settle, calls = shop.stores.store.settle_batch, list[object]()

    def die_at_the_second(*arguments: object, **more: object) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise Crash
        settle(*arguments, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(shop.stores.store, "settle_batch", die_at_the_second)
        with pytest.raises(Crash):
            batch.settle()
    with shop.stores.failures._database._engine.begin() as connection:
        connection.execute(sa.text("update homing_orders_failures set time_next = null, time_dead = 1"))
    assert shop.batch("dead").move_dead() == 2
    assert shop.stores.failures.count()[ACKNOWLEDGED] == 2

    assert shop.batch("run").settle() == Settlement(failed=2)

    assert shop.replay("replay", ["x", "y"]).acknowledged == 2
    assert sorted(map(str, shop.got)) == ["x", "y"]
    assert shop.books().balanced


def test_one_whose_place_another_has_stays_and_the_rest_is_settled(shop: Shop) -> None:
    """Without an identity, a message's copy has its bare id: an earlier one of that id may be there still."""
    shop.stores.store.store("v1", id="x")
    without_identity(shop, "homing_orders")
    assert shop.run("run 1", away=True) == Settlement(failed=1)
    shop.stores.store.purge(0)
    shop.stores.store.store_many([Message("x", "v2"), Message("y", "y")])
    without_identity(shop, "homing_orders")

    assert shop.run("run 2", away=True) == Settlement(failed=1, released=1)

    assert sorted(map(str, bodies(shop.stores.failures))) == ["v1", "y"]
    assert [message.content for message in shop.stores.store.browse(9, state="available")] == ["v2"]
    assert shop.replay("replay", ["x", "y"]).acknowledged == 2
    assert shop.run("run 3").acknowledged == 1
    assert sorted(map(str, shop.got)) == ["v1", "v2", "y"]
    assert shop.books().balanced


def test_one_dead_letter_whose_place_another_has_stays_and_the_rest_is_moved(shop: Shop) -> None:
    shop.stores.store.store("v1", id="x")
    without_identity(shop, "homing_orders")
    shop.run("run 1", away=True)
    shop.replay("replay 1", ["x"], away=True)
    shop.stores.store.purge(0)
    shop.stores.store.store_many([Message("x", "v2"), Message("y", "y")])
    without_identity(shop, "homing_orders")
    for held in shop.stores.store.claim(10):
        shop.stores.store.dead_letter(held, reason="crashed")

    assert shop.batch("run 2").move_dead() == 1

    assert sorted(map(str, bodies(shop.stores.dead_letters))) == ["v1", "y"]
    assert [message.content for message in shop.stores.store.browse(9, state="dead")] == ["v2"]
    assert shop.books().balanced


@pytest.mark.parametrize("place", ["failures", "dead_letters"])
def test_something_else_under_the_id_of_a_copy_is_not_taken_for_the_copy(shop: Shop, place: str) -> None:
    shop.stores.store.store_many([Message("x", "x"), Message("y", "y")])
    if place == "dead_letters":
        shop.run("run", away=True)
    ((_, _, ref),) = shop.stores.store.view.states(["x"])
    taken = dead_letter_id("orders", ref.name) if place == "dead_letters" else ref.name
    getattr(shop.stores, place).store("somebody else's", id=taken)

    if place == "failures":
        assert shop.run("run", away=True) == Settlement(failed=1, released=1)
    else:
        assert shop.replay("replay", ["x", "y"], away=True) == Settlement(dead_lettered=1, released=1)

    waits, name = (shop.stores.store, "x") if place == "failures" else (shop.stores.failures, ref.name)
    assert waits.view.present([name]) == {name}
    assert shop.books().balanced
