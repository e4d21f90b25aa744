"""What AMQP has no room for is refused before the SDK sees it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from homing import message as m
from homing.bus import Message
from homing.bus.service.messages import to_sdk
from homing.errors import UnstorableContentError
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
