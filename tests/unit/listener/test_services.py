"""What a service asks for, and is given: content by type, the Message, many at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from homing import Message, PartialFailure, StoreListener
from homing.errors import ConfigurationError


@dataclass
class DataOrder:
    number: int


class StructOrder(msgspec.Struct):
    number: int


class DictOrder(TypedDict):
    number: int


class ModelOrder(pydantic.BaseModel):
    number: int


def by_data(order: DataOrder) -> Any:
    return order


def by_struct(order: StructOrder) -> Any:
    return order


def by_dict(order: DictOrder) -> Any:
    return order


def by_model(order: ModelOrder) -> Any:
    return order


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (by_data, DataOrder(7)),
        (by_struct, StructOrder(7)),
        (by_dict, {"number": 7}),
        (by_model, ModelOrder(number=7)),
    ],
)
def test_content_is_bound_to_the_annotation(plain: Any, listen: Any, until: Any, function: Any, expected: Any) -> None:
    seen: list[Any] = []

    class Service:
        def on_message(self, order: Any) -> None:
            seen.append(order)

    Service.on_message.__annotations__["order"] = function.__annotations__["order"]
    plain.store({"number": 7})
    listen(plain, Service())
    until(lambda: seen)
    assert seen == [expected]
    assert type(seen[0]) is type(expected)


def test_content_that_does_not_fit_is_a_processing_failure(
    plain: Any, plain_dead: Any, listen: Any, until: Any
) -> None:
    seen: list[Any] = []

    def on_message(order: DataOrder) -> None:
        seen.append(order)

    plain.store({"number": "seven"})
    listen(plain, on_message, dead_letter_store=plain_dead)
    until(lambda: plain_dead.available)
    letter = plain_dead.available[0]
    assert letter.content == {"number": "seven"}
    assert letter.headers["homing-dead-letter-reason"] == "homing.errors.BindingError"
    assert "DataOrder" in letter.headers["homing-dead-letter-description"]
    assert seen == []


def test_service_that_asks_for_the_message_gets_its_id_and_headers(plain: Any, listen: Any, until: Any) -> None:
    seen: list[Message] = []

    def on_message(message: Message) -> None:
        seen.append(message)

    plain.store(7, id="m7", headers={"tenant": "eu"})
    listen(plain, on_message)
    until(lambda: seen)
    assert (seen[0].id, seen[0].content, seen[0].headers) == ("m7", 7, {"tenant": "eu"})


def test_service_may_ask_for_content_and_message(plain: Any, listen: Any, until: Any) -> None:
    seen: list[Any] = []

    def on_message(order: DataOrder, message: Message) -> None:
        seen.append((order, message.id))

    plain.store({"number": 7}, id="m7")
    listen(plain, on_message)
    until(lambda: seen == [(DataOrder(7), "m7")])


def test_parameter_named_message_without_annotation_gets_the_content(plain: Any, listen: Any, until: Any) -> None:
    seen: list[Any] = []

    class Service:
        def on_message(self, message):  # type: ignore[no-untyped-def]
            seen.append(message)

    plain.store("hello")
    listen(plain, Service())
    until(lambda: seen == ["hello"])


def test_service_with_impossible_parameters_is_refused(plain: Any) -> None:
    def three(a: Any, b: Any, c: Any) -> None: ...

    def unknown(order: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for service in (three, unknown, lambda: None):
        with pytest.raises(ConfigurationError):
            StoreListener(plain).attach(service)


class Batches:
    """Takes many at once; says what it is told to say about them."""

    def __init__(self, answer: Any = None) -> None:
        self.batches: list[list[Any]] = []
        self.answer = answer

    def on_messages(self, contents: list[Any]) -> Any:
        self.batches.append(list(contents))
        return self.answer(contents) if self.answer else None

    @property
    def seen(self) -> list[Any]:
        return [content for batch in self.batches for content in batch]


def fill(store: Any, *contents: Any) -> None:
    for content in contents:
        store.store(content)


def test_batch_service_gets_many_at_once_and_all_are_acknowledged(any_store: Any, listen: Any, until: Any) -> None:
    fill(any_store, *range(25))
    service = Batches()
    listener = listen(any_store, service, batch_size=10)
    until(lambda: listener.metrics().processed == 25)
    assert [len(batch) for batch in service.batches] == [10, 10, 5]
    assert service.seen == list(range(25))
    assert any_store.retrieve() is None


def test_batch_service_may_ask_for_typed_contents_or_messages(plain: Any, listen: Any, until: Any) -> None:
    seen: list[Any] = []

    class Typed:
        def on_messages(self, orders: list[DataOrder]) -> None:
            seen.extend(orders)

    class Whole:
        def on_messages(self, messages: list[Message]) -> None:
            seen.extend(message.id for message in messages)

    plain.store({"number": 7}, id="m7")
    listener = listen(plain, Typed())
    until(lambda: seen == [DataOrder(7)])
    listener.graceful_stop()
    plain.store(8, id="m8")
    listen(plain, Whole())
    until(lambda: seen == [DataOrder(7), "m8"])


@pytest.mark.parametrize("how", ["list", "raise"])
def test_only_the_failed_messages_of_a_batch_are_tried_again_and_dead_lettered(
    any_store: Any, plain_dead: Any, listen: Any, until: Any, how: str
) -> None:
    def answer(contents: list[Any]) -> Any:
        failed: dict[int | str, BaseException | str] = {
            place: ValueError("odd") for place, content in enumerate(contents) if content % 2
        }
        if how == "raise":
            raise PartialFailure(failed)
        return [failed.get(place) for place in range(len(contents))]

    fill(any_store, *range(6))
    service = Batches(answer)
    listener = listen(any_store, service, max_retries=1, dead_letter_store=plain_dead)
    until(lambda: listener.metrics().dead_lettered == 3)
    metrics = listener.metrics()
    assert (metrics.processed, metrics.retried) == (3, 3)
    assert sorted(service.seen) == [0, 1, 1, 2, 3, 3, 4, 5, 5]
    assert sorted(letter.content for letter in plain_dead.available) == [1, 3, 5]


def test_batch_that_fails_without_saying_which_is_handed_over_one_by_one(
    plain: Any, plain_dead: Any, listen: Any, until: Any
) -> None:
    def answer(contents: list[Any]) -> None:
        if 2 in contents:
            raise SystemExit("bad row")

    fill(plain, 1, 2, 3)
    service = Batches(answer)
    listener = listen(plain, service, max_retries=1, dead_letter_store=plain_dead)
    until(lambda: listener.metrics().dead_lettered == 1)
    until(lambda: listener.metrics().processed == 2)
    assert service.batches[0] == [1, 2, 3]
    assert sorted(map(tuple, service.batches[1:])) == [(1,), (2,), (2,), (3,)]
    assert plain_dead.available[0].content == 2


def test_content_that_does_not_fit_fails_alone(plain: Any, plain_dead: Any, listen: Any, until: Any) -> None:
    seen: list[int] = []

    class Typed:
        def on_messages(self, orders: list[DataOrder]) -> None:
            seen.extend(order.number for order in orders)

    fill(plain, {"number": 1}, {"number": "two"}, {"number": 3})
    listen(plain, Typed(), dead_letter_store=plain_dead)
    until(lambda: plain_dead.available)
    until(lambda: seen == [1, 3])


@pytest.mark.parametrize("rubbish", [7, "ok", [None] * 3, {1: 2}])
def test_rubbish_returned_for_a_batch_fails_all_of_it_and_loses_nothing(
    plain: Any, plain_dead: Any, listen: Any, until: Any, rubbish: Any
) -> None:
    fill(plain, 1, 2)
    service = Batches(lambda contents: rubbish)
    listen(plain, service, max_retries=1, dead_letter_store=plain_dead)
    until(lambda: len(plain_dead.available) == 2)
    assert sorted(service.seen) == [1, 1, 2, 2]
    assert "one result or exception per message" in plain_dead.available[0].headers["homing-dead-letter-description"]


def test_message_is_frozen_and_its_content_is_its_payload() -> None:
    message = Message("m1", {"number": 7})
    assert message.payload is message.content
    with pytest.raises(AttributeError):
        message.id = "m2"  # type: ignore[misc]
