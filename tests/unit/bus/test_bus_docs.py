"""docs/bus.md lists everything that was asked for, and what it says is here is here."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from homing import bus
from homing.bus import Message, MessageBatch, MessageReceiver, MessageSender, RetryOptions

_TEXT = (Path(__file__).parents[3] / "docs" / "bus.md").read_text(encoding="utf-8")
_ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in _TEXT.partition("<!-- seed")[2].partition("<!-- /seed -->")[0].splitlines()
    if line.startswith("| `")
]


#: Every type, field, function and parameter that was asked for.
_ASKED = {
    "Message": "body contentType messageId to replyTo replyToSessionId label sessionId correlationId partitionKey "
    "timeToLive sequenceNumber lockToken applicationProperties deliveryCount enqueuedTime enqueuedSequenceNumber "
    "deadLetterErrorDescription deadLetterReason deadLetterSource state",
    "ApplicationProperties": "properties",
    "MessageBatch": "messageCount messages",
    "AmqpRetryOptions": "maxRetries delay maxDelay tryTimeout retryMode",
    "ASBServiceSenderConfig": "entityType topicOrQueueName connectionString amqpRetryOptions",
    "ASBServiceReceiverConfig": "connectionString entityConfig receiveMode maxAutoLockRenewDuration amqpRetryOptions",
    "TopicSubsConfig": "topicName subscriptionName",
    "QueueConfig": "queueName",
    "MessageSender": "send sendPayload schedule cancel sendBatch close",
    "MessageReceiver": "receive receivePayload receiveBatch complete abandon deadLetter defer receiveDeferred "
    "renewLock close",
    "": "EntityType AmqpRetryMode ReceiveMode Listener Administrator serverWaitTime T deadLettered maxMessageCount",
}


def snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found.group(1).lower()}", name)


def test_every_row_says_something_of_both_buses() -> None:
    assert len(_ROWS) > 45
    assert all(len(row) == 4 and all(row) for row in _ROWS)


def test_everything_that_was_asked_for_has_a_row() -> None:
    asked = {f"{owner}.{name}".lstrip(".") for owner, names in _ASKED.items() for name in names.split()}

    assert asked == {name for row in _ROWS for name in re.findall(r"`([\w.]+)`", row[0])}


def test_what_the_table_names_exists() -> None:
    for _, here, *_ in _ROWS:
        for kind, name in re.findall(r"`([A-Z]\w+)\.(\w+)`", here):
            found = getattr(bus, kind)
            assert hasattr(found, name) or name in {field.name for field in fields(found)}, f"{kind}.{name}"


def test_every_field_and_function_is_in_the_table() -> None:
    here = " ".join(row[1] for row in _ROWS)
    for kind in (Message, MessageBatch, RetryOptions):
        for field in fields(kind):
            assert f"`{kind.__name__}.{field.name}`" in here, field.name
    for owner in (MessageSender, MessageReceiver):
        for name in vars(owner):
            if not name.startswith("_"):
                assert f"`{owner.__name__}.{name}`" in here, name


def test_the_names_asked_for_are_the_names_here_in_pythons_spelling() -> None:
    for asked, here, *_ in _ROWS:
        owner, _, name = asked.strip("`").partition(".")
        if owner in ("Message", "MessageBatch", "MessageSender", "MessageReceiver"):
            assert f"`{owner}.{snake(name)}`" in here
