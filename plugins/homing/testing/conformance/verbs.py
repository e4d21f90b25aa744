"""The three verbs, as every store has them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from homing import Message
from homing.errors import LeaseLostError, NotInFlightError, UnstorableContentError
from homing.store import DEDUPLICATION, RENEW, Store
from homing.testing.conformance.subject import needs
from homing.testing.conformance.waiting import LEASE, drain, eventually, take

CONTENTS = [
    None, True, 0, -(2**53), 1.5, "", "123", "null", "héllo 🐦", "nul \0 inside", b"", b"\x00\xff", [], {},
    {"a": [1, {"b": None}], "ü": "ö"}, [[["deep"]]],
]  # fmt: skip


@pytest.mark.parametrize("content", CONTENTS, ids=repr)
def test_content_comes_back_equal_and_of_the_same_type(store: Store, content: Any) -> None:
    message_id = store.store(content)

    message = take(store)

    assert (message.id, message.content, type(message.content)) == (message_id, content, type(content))
    assert message.payload == content


@pytest.mark.parametrize(
    ("content", "path"),
    [({"a": [0, object()]}, r"content\.a\[1\]"), ({1: "x"}, "content"), (math.nan, "content"), ((1, 2), "content")],
    ids=["object", "key", "nan", "tuple"],
)
def test_anything_else_is_refused_with_the_path_of_the_bad_value(store: Store, content: Any, path: str) -> None:
    with pytest.raises(UnstorableContentError, match=path):
        store.store(content)

    assert store.retrieve() is None


def test_headers_and_properties_survive(store: Store) -> None:
    sent = Message(
        "m1", {"n": 1}, content_type="application/json", headers={"trace": "x", "n": [1, None]}, correlation_id="c",
        session_id=None, partition_key="p", subject="s", to="t", reply_to="r",
    )  # fmt: skip
    store.store(sent)

    got = take(store)

    for name in (
        "id", "content", "content_type", "headers", "correlation_id", "session_id", "partition_key", "subject", "to",
        "reply_to",
    ):  # fmt: skip
        assert getattr(got, name) == getattr(sent, name), name
    assert got.delivery_count == 1
    assert got.enqueued_at is not None
    assert got.enqueued_at.tzinfo is not None


def test_a_message_is_there_for_another_consumer(store: Store, other: Store) -> None:
    message_id = store.store("a", id="m1", headers={"k": "v"})

    message = take(other)

    assert (message_id, message.id, message.headers) == ("m1", "m1", {"k": "v"})
    other.acknowledge(message)


def test_retrieving_leases_and_does_not_remove(store: Store, other: Store) -> None:
    store.store("a")
    take(store)

    assert other.retrieve() is None


def test_an_empty_store_has_nothing_to_retrieve(store: Store) -> None:
    assert store.retrieve() is None


def test_messages_come_in_the_order_they_were_stored(store: Store) -> None:
    for content in "abc":
        store.store(content)

    assert [message.content for message in drain(store, 3)] == ["a", "b", "c"]


def test_an_acknowledged_message_never_comes_back(hasty: Store) -> None:
    hasty.store("a")
    hasty.acknowledge(take(hasty).id)

    with pytest.raises(AssertionError, match="nothing came"):
        take(hasty, timeout=1.5 * LEASE)


def test_a_released_message_can_be_retrieved_again_at_once(store: Store) -> None:
    store.store("a")
    first = take(store)
    store.acknowledge(first, success=False)

    second = take(store)

    assert second.id == first.id
    assert second.delivery_count == 2
    store.acknowledge(second)


def test_acknowledging_what_is_not_in_flight_raises(store: Store) -> None:
    message_id = store.store("a")
    for unknown in (message_id, "unknown"):
        with pytest.raises(NotInFlightError, match=unknown):
            store.acknowledge(unknown)
    message = take(store)
    store.acknowledge(message)
    for finished in (message, message.id):
        with pytest.raises(NotInFlightError, match=message.id):
            store.acknowledge(finished)


@needs(DEDUPLICATION)
def test_an_id_is_stored_once(store: Store) -> None:
    store.store("first", id="m1")
    store.store("again", id="m1")

    assert [message.content for message in drain(store, 1)] == ["first"]
    store.store("again", id="m1")
    assert store.retrieve() is None


def test_closing_twice_is_harmless(store: Store) -> None:
    store.store("a")
    store.close()
    store.close()


@needs(RENEW)
def test_a_lease_that_ran_out_returns_the_message_and_acknowledges_nothing(hasty: Store, other: Store) -> None:
    hasty.store("a")
    late = take(hasty)
    current = eventually(other.retrieve)

    for attempt in (late, late.id):
        with pytest.raises(LeaseLostError, match=late.id):
            hasty.acknowledge(attempt)

    assert current.delivery_count == 2
    other.acknowledge(current)
