"""What handlers can ask of a MessageContext."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from homing.errors import BindingError, UnstorableContentError
from homing.message import Message
from homing.pipeline import MessageContext


@dataclass
class Order:
    id: int


def context(content: Any = None, **properties: Any) -> MessageContext:
    return MessageContext(Message("m1", content, headers={"tenant": "eu"}), properties)


def test_context_knows_id_content_and_message() -> None:
    ctx = context({"id": 7})
    assert ctx.get_id() == "m1"
    assert ctx.get_content() == {"id": 7}
    assert ctx.message == Message("m1", {"id": 7}, headers={"tenant": "eu"})


@pytest.mark.parametrize("content", [None, True, 1, 1.5, "123", b"\x00\xff", [1, [2]], {"a": {"b": None}}])
def test_content_comes_back_equal_and_of_the_same_type(content: Any) -> None:
    got = context(content).get_content()
    assert got == content
    assert type(got) is type(content)


def test_content_with_type_is_an_object_of_that_type() -> None:
    assert context({"id": 7}).get_content_with_type(Order) == Order(7)


def test_content_with_type_that_does_not_fit_names_the_type() -> None:
    with pytest.raises(BindingError, match="Order"):
        context({"id": "seven"}).get_content_with_type(Order)


def test_property_that_was_set_is_there_until_it_is_removed() -> None:
    ctx = context()
    ctx.set_property("region", {"code": "eu"})
    assert ctx.has_property("region")
    assert ctx.get_property("region") == {"code": "eu"}
    ctx.remove_property("region")
    assert not ctx.has_property("region")


def test_property_set_to_none_is_set() -> None:
    ctx = context()
    ctx.set_property("region", None)
    assert ctx.has_property("region")
    assert ctx.get_property("region", "default") is None


def test_property_with_type_is_an_object_of_that_type() -> None:
    assert context(order={"id": 7}).get_property_with_type("order", Order) == Order(7)


def test_property_with_type_that_does_not_fit_names_property_and_type() -> None:
    with pytest.raises(BindingError, match=r"property 'order'.*Order"):
        context(order=7).get_property_with_type("order", Order)


def test_property_that_is_not_set_raises_and_says_which_are() -> None:
    ctx = context(region="eu")
    for ask in (ctx.get_property, ctx.remove_property):
        with pytest.raises(KeyError, match=r"m1 has no property 'reigon'; set are: region"):
            ask("reigon")
    with pytest.raises(KeyError):
        ctx.get_property_with_type("reigon", str)


def test_property_that_is_not_set_gives_the_default() -> None:
    assert context().get_property("region", "eu") == "eu"
    assert context().get_property("region", None) is None


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes", {"a": float("nan")}, {1: 2}])
def test_property_that_is_not_json_is_refused_by_name(value: Any) -> None:
    ctx = context()
    with pytest.raises(UnstorableContentError, match="property 'odd'"):
        ctx.set_property("odd", value)
    assert not ctx.has_property("odd")


def test_property_changed_in_place_after_it_was_set_or_got_stays_as_it_is() -> None:
    ctx = context()
    value = [1]
    ctx.set_property("list", value)
    value.append(2)
    ctx.get_property("list").append(3)
    assert ctx.get_property("list") == [1]


def test_properties_given_at_the_start_are_copied() -> None:
    given = {"list": [1]}
    ctx = MessageContext(Message("m1", None), given)
    given["list"].append(2)
    given["more"] = [3]
    assert ctx.to_record()["properties"] == {"list": [1]}


def test_copy_is_independent_in_both_directions() -> None:
    first = context({"a": [1]}, shared=[1])
    second = first.copy()
    second.set_property("only", "second")
    second.get_content()["a"].append(2)
    second.replace_content("changed")
    first.set_property("only_here", "first")

    assert first.get_content() == {"a": [1]}
    assert not first.has_property("only")
    assert second.get_content() == "changed"
    assert not second.has_property("only_here")
    assert second.get_property("shared") == [1]


def test_context_may_start_from_content_that_was_processed_elsewhere() -> None:
    ctx = MessageContext(Message("m1", "raw"), content="processed")
    assert (ctx.message.content, ctx.get_content()) == ("raw", "processed")
    assert ctx.copy().get_content() == "processed"


def test_record_shows_id_content_headers_and_properties() -> None:
    assert context({"a": 1}, region="eu").to_record() == {
        "id": "m1",
        "content": {"a": 1},
        "headers": {"tenant": "eu"},
        "properties": {"region": "eu"},
    }


def test_record_shows_bytes_as_base64() -> None:
    assert context(b"\x00\xff").to_record()["content"] == {"encoding": "base64", "body": "AP8="}


def test_record_is_a_copy() -> None:
    ctx = context({"a": [1]}, list=[1])
    record = ctx.to_record()
    record["content"]["a"].append(2)
    record["properties"]["list"].append(2)
    record["headers"].clear()
    assert ctx.to_record() == context({"a": [1]}, list=[1]).to_record()


def test_header_that_was_set_is_there_until_it_is_removed() -> None:
    ctx = context()
    ctx.set_header("trace", {"span": [1]})
    assert ctx.get_header("trace") == {"span": [1]}
    assert ctx.get_headers() == {"tenant": "eu", "trace": {"span": [1]}}
    ctx.remove_header("trace")
    ctx.remove_header("tenant")
    assert ctx.get_headers() == {}
    assert ctx.get_header("tenant", None) is None


def test_header_that_is_not_there_raises_naming_message_and_those_that_are() -> None:
    for missing in (context().get_header, context().remove_header):
        with pytest.raises(KeyError, match="m1 has no header 'trace'; set are: tenant"):
            missing("trace")


@pytest.mark.parametrize(
    ("key", "value"),
    [("trace", object()), ("trace", {1: 2}), ("trace", float("nan")), ("trace", "\ud800"), ("\ud800", 1), (7, 1)],
)
def test_header_that_no_store_takes_is_refused_and_changes_nothing(key: Any, value: Any) -> None:
    ctx = context()
    with pytest.raises(UnstorableContentError, match="cannot set the header"):
        ctx.set_header(key, value)
    assert ctx.get_headers() == {"tenant": "eu"}


def test_headers_in_hand_are_copies() -> None:
    ctx = context()
    value = {"span": [1]}
    ctx.set_header("trace", value)
    value["span"].append(2)
    ctx.get_headers()["trace"]["span"].append(3)
    ctx.get_header("trace")["span"].append(4)
    assert ctx.get_headers() == {"tenant": "eu", "trace": {"span": [1]}}


def test_changed_headers_are_those_of_the_processed_message_and_the_record_not_of_the_message_that_entered() -> None:
    ctx = context()
    ctx.set_header("trace", "t")
    assert ctx.processed_message().headers == {"tenant": "eu", "trace": "t"}
    assert ctx.to_record()["headers"] == {"tenant": "eu", "trace": "t"}
    assert ctx.message.headers == {"tenant": "eu"}


def test_headers_changed_on_a_copy_are_changed_for_no_other() -> None:
    ctx = context()
    ctx.set_header("trace", "t")
    twin = ctx.copy()
    twin.set_header("trace", "other")
    twin.remove_header("tenant")
    assert (ctx.get_headers(), twin.get_headers()) == ({"tenant": "eu", "trace": "t"}, {"trace": "other"})
