"""A failure record is believed where settlements write it, and nowhere else: whoever sends a message that says it is
the record of another's failure has sent a message."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from homing import Message
from homing.delivery.intake import take_in
from homing.failure import FAILURE_TYPE, build_record
from homing.stores import open_store
from tests.unit.delivery.shop import Shop, bodies, opened


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    with opened(f"{database}?store=orders", f"{database}?store=dead") as opened_shop:
        yield opened_shop


def forged(shop: Shop) -> Message:
    """A message that says it is the record of somebody else's failure, who has it all delivered but for nothing."""
    ((_, _, victim),) = shop.stores.store.view.states(["victim"])
    said = {"type": "E", "message": "m", "handler": "crm", "stack": "", "attempt": 1}
    message = Message("victim", "forged", sequence_number=victim.sequence)
    record = build_record(
        message, {}, errors={"crm": said}, done={}, snapshot={}, chain="orders", batch_id="run", ref=victim
    )
    return Message("evil", record, content_type=FAILURE_TYPE)


def by_store(shop: Shop, message: Message, _request: Any) -> None:
    shop.stores.store.store(message)


def by_sql(shop: Shop, message: Message, _request: Any) -> None:
    insert = "insert into homing_orders (id, message, encoding, content_type) values (:id, :body, 'json', :kind)"
    values = {"id": message.id, "body": json.dumps(message.content), "kind": message.content_type}
    with shop.stores.store._database._engine.begin() as connection:
        connection.execute(sa.text(insert), values)


def by_memory(shop: Shop, message: Message, _request: Any) -> None:
    with open_store(f"memory://{uuid4()}") as source:
        source.store(message)
        assert take_in(source, shop.stores.store, 10) == 1


def by_rabbitmq(shop: Shop, message: Message, request: Any) -> None:
    broker = request.getfixturevalue("rabbitmq")
    with open_store(f"{broker.url}?store=forged") as source:
        source.store(message)
        assert take_in(source, shop.stores.store, 10) == 1


Send = Callable[[Shop, Message, Any], None]


@pytest.mark.parametrize("send", [by_store, by_sql, by_memory, by_rabbitmq])
def test_a_forged_record_is_a_message_like_any_other(shop: Shop, send: Send, request: pytest.FixtureRequest) -> None:
    shop.stores.store.store("precious", id="victim")
    message = forged(shop)
    send(shop, message, request)

    batch = shop.batch("run")
    assert batch.claim(10) == 2
    assert sorted(head.message_id for head in batch.messages()) == ["evil", "victim"]
    settled = shop.run("run")

    assert settled.delivered == 2
    assert "precious" in shop.got
    assert message.content in shop.got
    assert shop.books().balanced


@pytest.mark.parametrize("send", [by_store, by_sql])
def test_a_forged_record_acknowledges_nothing_when_it_comes_first(
    shop: Shop, send: Send, request: pytest.FixtureRequest
) -> None:
    """What it names is not delivered by it, be it delivered, failed or dead-lettered itself."""
    shop.stores.store.store("precious", id="victim")
    send(shop, forged(shop), request)
    first = shop.batch("first")
    assert first.claim(10) == 2
    shop.stores.store.settle_batch(first.held()[0].lease, ["victim"], success=False)
    shop._deliver(first, False)
    assert first.settle().delivered == 1

    assert shop.run("second").delivered == 1

    assert shop.got[-1] == "precious"


def test_a_message_of_that_content_type_fails_and_is_replayed_as_it_was(shop: Shop) -> None:
    shop.stores.store.store("precious", id="victim")
    message = forged(shop)
    shop.stores.store.store(message)

    assert shop.run("run", away=True).failed == 2
    assert shop.replay("replay", ["victim", "evil"]).acknowledged == 2

    assert sorted(map(str, shop.got)) == sorted(["precious", str(message.content)])
    assert shop.books().balanced


def test_a_dead_letter_of_one_pipeline_in_the_store_of_another_is_content(database: str, shop: Shop) -> None:
    with opened(f"{database}?store=invoices", f"{database}?store=dead") as other:
        for each in (shop, other):
            each.stores.store.store(f"of {each.stores.store.name}", id="1")
        shop.run("run", away=True)
        shop.replay("replay", ["1"], away=True)
        (letter,) = shop.stores.dead_letters.browse()

        other.stores.store.store(Message("moved", letter.content, content_type=letter.content_type))

        assert other.run("run").delivered == 2
        assert sorted(map(str, other.got)) == sorted(["of invoices", str(letter.content)])
        assert other.books().balanced


@pytest.mark.parametrize("place", ["failures", "dead_letters"])
def test_a_dead_letter_of_one_pipeline_among_the_failures_of_another_touches_none_of_its_messages(
    database: str, shop: Shop, place: str
) -> None:
    with opened(f"{database}?store=invoices", f"{database}?store=others") as other:
        for each in (shop, other):
            each.stores.store.store(f"of {each.stores.store.name}", id="1")
            each.run("run", away=True)
        shop.replay("replay", ["1"], away=True)
        (letter,) = shop.stores.dead_letters.browse()
        getattr(other.stores, place).store(Message("moved", letter.content, content_type=letter.content_type))
        assert other.books().total.waiting == 1

        other.replay("replay", ["moved", "1"])
        other.replay("replay 2", ["1"])

        assert "of invoices" in other.got
        assert bodies(shop.stores.dead_letters) == ["of orders"]
        assert other.books().total.delivered == 1
        assert other.books().balanced
