"""What AMQP has no room for is refused before the SDK sees it."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from azure.servicebus import exceptions

from homing import message as m
from homing.bus import Message
from homing.bus.azure.messages import to_sdk
from homing.bus.embedded.rows import _ENVELOPE
from homing.errors import StoreUnavailableError, UnstorableContentError
from homing.stores.servicebus.bodies import ENCODING, HEADERS, PARTITION, PRIORITY, as_headers
from homing.stores.servicebus.envelope import pack
from homing.stores.servicebus.sdk import translated


@pytest.mark.parametrize(
    "written",
    [{"application_properties": {"n": 2**63}}, {"application_properties": {"n": -(2**63) - 1}}, {"time_to_live": 5e6}],
    ids=["a number too large", "a number too small", "a life too long"],
)
def test_what_amqp_cannot_say_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(UnstorableContentError):
        to_sdk(Message(body=1, **written))


def test_a_life_is_counted_in_milliseconds() -> None:
    assert to_sdk(Message(body=1, time_to_live=0.0001)).time_to_live == timedelta(milliseconds=1)
    assert pack(m.Message("1", 1, time_to_live=timedelta(seconds=1.9))).time_to_live == timedelta(seconds=1.9)
    with pytest.raises(UnstorableContentError, match="49"):
        pack(m.Message("1", 1, time_to_live=timedelta(days=50)))


def test_a_strangers_property_of_a_kind_no_header_has_is_a_text() -> None:
    known = uuid.uuid4()
    properties = {
        "id": known,
        "at": datetime(2026, 1, 2, 3, tzinfo=timezone.utc),
        "raw": b"\xff\x00",
        "n": 1,
        "no": None,
    }

    assert as_headers(properties) == {
        "id": str(known), "at": "2026-01-02T03:00:00+00:00", "raw": "/wA=", "n": 1, "no": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (exceptions.ServiceBusQuotaExceededError, "quota"),
        (exceptions.MessagingEntityDisabledError, "disabled"),
        (exceptions.ServiceBusServerBusyError, "busy"),
        (exceptions.ServiceBusConnectionError, "cannot be reached"),
    ],
)
def test_what_can_be_tried_again_later_says_what_it_waits_for(raised: type[Exception], says: str) -> None:
    with pytest.raises(StoreUnavailableError, match=says) as caught, translated("send to 'q'"):
        raise raised(message="told by the service")

    assert "reached" in says or "cannot be reached" not in str(caught.value)


@pytest.mark.parametrize("name", [_ENVELOPE, ENCODING, HEADERS, PRIORITY, PARTITION])
def test_a_property_by_a_name_of_ours_is_refused(name: str) -> None:
    with pytest.raises(UnstorableContentError, match=name):
        Message(body=1, application_properties={name: "mine"}).check()


@pytest.mark.parametrize("value", [["geheim"], {"geheim": 1}, b"geheim"])
def test_a_property_that_is_refused_is_told_by_its_type_and_not_by_its_value(value: object) -> None:
    with pytest.raises(UnstorableContentError, match=f"'k' is of type {type(value).__name__}") as caught:
        Message(body=1, application_properties={"k": value}).check()

    assert "geheim" not in str(caught.value)
