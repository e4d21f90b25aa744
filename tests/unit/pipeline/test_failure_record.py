"""The failure record: written, stored as JSON, and read again."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from homing.errors import BindingError, HandlerError, UnreadableMessageError
from homing.failure import build_record, read_record
from homing.invocation.error_info import describe
from homing.message import Message


def record(message: Message | None = None, **changes: Any) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "properties": {"tenant": "eu"},
        "errors": {"crm": describe(OSError("refused"), "crm", 3)},
        "done": {"lake": {"rows": 1}},
        "snapshot": {"crm": {"content": 1}},
        "batch_id": "b7",
        "chain": "orders",
    }
    return build_record(message or Message("m1", {"a": 1}), **{**parts, **changes})


def test_record_survives_json() -> None:
    read = read_record(json.loads(json.dumps(record())))
    assert read.message == Message("m1", {"a": 1})
    assert read.properties == {"tenant": "eu"}
    assert read.done == {"lake": {"rows": 1}}
    assert read.errors["crm"]["message"] == "refused"
    assert (read.chain, read.batch_id) == ("orders", "b7")


@pytest.mark.parametrize("content", [None, True, 2**70, 1.5, "123", "nul\0", b"\x00\xff", [1], {"a": [None]}])
def test_original_content_comes_back_equal_and_of_the_same_type(content: Any) -> None:
    read = read_record(json.loads(json.dumps(record(Message("m1", content)))))
    assert read.message.content == content
    assert type(read.message.content) is type(content)


def test_other_properties_of_the_message_come_back() -> None:
    message = Message(
        "m1",
        "x",
        content_type="text/plain",
        headers={"tenant": {"code": "eu"}},
        correlation_id="c",
        session_id="s",
        partition_key="p",
        subject="sub",
        to="to",
        reply_to="reply",
        priority=3,
        time_to_live=timedelta(days=2, milliseconds=5),
        sequence_number=9,
        delivery_count=2,
        enqueued_at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc),
        scheduled_at=datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=1))),
        dead_letter_reason="r",
        dead_letter_description="d",
        dead_letter_source="src",
    )
    assert read_record(json.loads(json.dumps(record(message)))).message == message


def test_lease_of_the_message_is_forgotten() -> None:
    read = read_record(record(Message("m1", "x", lock_token="token", state="leased")))  # noqa: S106
    assert read.message == Message("m1", "x")


@pytest.mark.parametrize("result", [{1, 2}, b"bytes", object(), (1, 2), float("nan"), datetime(2026, 1, 1)])  # noqa: DTZ001
def test_result_that_is_not_json_is_kept_as_its_repr(result: Any) -> None:
    assert read_record(record(done={"lake": result})).done == {"lake": repr(result)}


def test_part_of_a_result_that_is_not_json_leaves_the_rest_readable() -> None:
    done = {"lake": {"rows": 1, "at": 1j}}
    assert read_record(record(done=done)).done == {"lake": {"rows": 1, "at": "1j"}}


def test_result_whose_repr_is_long_is_capped() -> None:
    assert len(record(done={"lake": {"x" * 5000}})["done"]["lake"]) == 1000


def test_result_whose_repr_raises_or_that_holds_itself_is_no_error() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    circle: dict[str, Any] = {}
    circle["self"] = circle
    done = record(done={"odd": Odd(), "circle": circle})["done"]
    assert "Odd" in done["odd"]
    assert json.loads(json.dumps(done))["circle"]["self"].startswith("{")


def test_record_is_independent_of_what_it_was_built_from() -> None:
    properties = {"list": [1]}
    built = record(properties=properties)
    properties["list"].append(2)
    assert built["properties"] == {"list": [1]}


@pytest.mark.parametrize("content", [None, "text", 7, [], {}, {"order": 7}, b"bytes"])
def test_what_is_no_record_is_unreadable(content: Any) -> None:
    with pytest.raises(UnreadableMessageError, match="not a failure record"):
        read_record(content)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"homing": "order"}, "not a failure record"),
        ({"version": 2}, "version 2"),
        ({"done": []}, "done"),
        ({"message": {}}, "no 'encoding'"),
        ({"message": {"id": 7, "encoding": "text", "body": "x"}}, "broken"),
        ({"message": {"id": "m1", "encoding": "odd", "body": "x"}}, "unknown encoding"),
        ({"message": {"id": "m1", "encoding": "json", "body": "{"}}, "not readable as json"),
        ({"message": {"id": "m1", "encoding": "json", "body": 7}}, "broken"),
        ({"message": {"id": "m1", "encoding": "text", "body": 7}}, "broken"),
        ({"message": {"id": "m1", "encoding": [], "body": "x"}}, "unknown encoding"),
        ({"message": {"id": "m1", "encoding": "text", "body": "x", "headers": 7}}, "broken"),
        ({"message": {"id": "m1", "encoding": "text", "body": "x", "enqueued_at": "soon"}}, "broken"),
    ],
)
def test_damaged_record_is_unreadable_and_says_why(change: Any, reason: str) -> None:
    with pytest.raises(UnreadableMessageError, match=reason):
        read_record({**record(), **change})


def test_description_has_type_message_handler_and_attempt() -> None:
    described = describe(BindingError("no fit"), "crm", 3)
    assert (described["type"], described["message"]) == ("homing.errors.BindingError", "no fit")
    assert (described["handler"], described["attempt"]) == ("crm", 3)


def test_description_of_a_handler_error_is_that_of_its_cause() -> None:
    error = HandlerError("text", "crm")
    error.__cause__ = OSError("refused")
    assert describe(error, "crm", 1)["type"] == "OSError"


def test_stack_shows_the_frames_of_the_author_and_of_causes() -> None:
    def innermost() -> None:
        raise KeyError("sku")

    try:
        try:
            innermost()
        except KeyError as error:
            raise ValueError("no price") from error
    except ValueError as error:
        stack = describe(error, "crm", 1)["stack"]
    assert 'raise KeyError("sku")' in stack
    assert "direct cause" in stack
    assert stack.rstrip().endswith("ValueError: no price")


def test_long_stack_keeps_its_end() -> None:
    stack = describe(ValueError("x" * 20000 + " the end"), "crm", 1)["stack"]
    assert len(stack) < 8192
    assert stack.rstrip().endswith("the end")


def test_what_explains_a_failure_is_cut_and_the_content_is_not() -> None:
    long = "x" * 1_000_000
    written = record(
        Message("m1", long),
        errors={flow: describe(OSError(long), flow, 3) for flow in ("crm", "mail")},
        done={"lake": {"rows": [long]}},
        snapshot={"crm": {"id": "m1", "content": long}},
    )

    assert read_record(written).message.content == long
    assert len(json.dumps(written)) < 1_000_000 + 200_000
    assert "(cut: " in json.dumps(written["done"])
    assert "(cut: " in written["snapshot"]["crm"]["content"]
    assert written["snapshot"]["crm"]["id"] == "m1"
    assert written["errors"]["mail"]["type"] == "OSError"
