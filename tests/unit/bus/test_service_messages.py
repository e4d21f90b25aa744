"""What AMQP has no room for is refused before the SDK sees it."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from homing import message as m
from homing.bus import Message
from homing.bus.service.messages import to_sdk
from homing.errors import UnstorableContentError
from homing.stores.servicebus.bodies import as_headers
from homing.stores.servicebus.envelope import pack


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


@pytest.mark.parametrize("name", ["homing-bus", "homing-encoding", "homing-headers"])
def test_a_property_by_a_name_of_ours_is_refused(name: str) -> None:
    with pytest.raises(UnstorableContentError, match=name):
        Message(body=1, application_properties={name: "mine"}).check()
