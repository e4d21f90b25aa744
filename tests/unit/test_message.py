"""Content comes back equal and of the same type, or is refused with the path of what is wrong."""

from __future__ import annotations

import math
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.errors import UnreadableMessageError, UnstorableContentError
from homing.message import decode, decode_headers, encode, encode_headers

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)


def same(left: object, right: object) -> bool:
    """Equal, and of the same type all the way down: True is not 1, 1 is not 1.0, -0.0 is not 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return left == right


@given(JSON | st.binary())
def test_any_json_value_text_or_bytes_comes_back_equal_and_of_the_same_type(content: object) -> None:
    encoded = encode(content)

    assert same(decode(encoded.encoding, encoded.body), content)


def test_a_text_that_looks_like_a_number_stays_a_text() -> None:
    encoded = encode("123")

    assert decode(encoded.encoding, encoded.body) == "123"


def test_plain_text_is_written_down_as_it_is() -> None:
    assert encode("hello world").body == "hello world"


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (
            {"order": {"placed": datetime(2026, 1, 1, tzinfo=timezone.utc)}},
            "content.order.placed is of type datetime",
        ),
        ([1, (2, 3)], r"content\[1\] is of type builtins.tuple"),
        ({"a": [{1: "x"}]}, r"content.a\[0\] has the key 1"),
        ({"price": math.nan}, "content.price is nan"),
        ("\ud800", "content contains a lone surrogate"),
        (bytearray(b"x"), "content is of type builtins.bytearray"),
        ({1, 2}, "content is of type builtins.set"),
        ({"prices": [1, 10**5000]}, r"content.prices\[1\] is a number or another value that cannot be written"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_path(content: object, path: str) -> None:
    with pytest.raises(UnstorableContentError, match=path):
        encode(content)


def test_content_nested_too_deeply_is_refused_and_not_a_crash() -> None:
    content: list[object] = []
    for _ in range(100_000):
        content = [content]

    with pytest.raises(UnstorableContentError, match="nested too deeply"):
        encode(content)


@pytest.mark.parametrize(("encoding", "body"), [("json", "{"), ("json", '"\\ud800"'), ("base64", "%"), ("xml", "<a/>")])
def test_what_cannot_be_read_is_an_error_that_names_the_message(encoding: str, body: str) -> None:
    with pytest.raises(UnreadableMessageError, match="message m1"):
        decode(encoding, body, "m1")


@given(st.dictionaries(TEXT, JSON))
def test_headers_come_back_equal(headers: dict[str, object]) -> None:
    assert same(decode_headers(encode_headers(headers)), headers)


def test_headers_that_are_no_json_are_refused() -> None:
    with pytest.raises(UnstorableContentError, match=r"headers\.x"):
        encode_headers({"x": object()})


def test_headers_that_are_no_object_are_unreadable() -> None:
    with pytest.raises(UnreadableMessageError, match="m1"):
        decode_headers("[1]", "m1")
