"""Requests to `<entity>/$management`: schedule, cancel, renew, peek, deferred messages, sessions."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from tests.servicebus.broker import DEFERRED, SCHEDULED, Broker, Entry, Queue, Refusal, lock_lost, too_large
from tests.servicebus.codec import Array, Described, Int, Symbol, Timestamp, ULong, decode, encode
from tests.servicebus.letters import APPLICATION, PROPERTIES, Letter, read_letter

if TYPE_CHECKING:
    from tests.servicebus.server import Connection

_VALUE = 0x77


def response(request: Letter, said: dict[str, Any], body: Any) -> bytes:
    """The answer to a request, correlated by its message-id, whose type is kept."""
    properties = [None, None, None, None, None, request.properties["message_id"]]
    said = {key: Int(value) if isinstance(value, int) else value for key, value in said.items()}
    parts = ((PROPERTIES, properties), (APPLICATION, said), (_VALUE, body))
    return b"".join(encode(Described(ULong(code), value)) for code, value in parts)


def answer(connection: Connection, path: str, raw: bytes) -> bytes:
    request = read_letter(raw)
    operation = str(request.application["operation"]).removeprefix("com.microsoft:")
    body, _ = decode(request.body)
    try:
        status, answered = _OPERATIONS[operation](connection.broker, path, body.value or {})
    except Refusal as refusal:
        said = {"statusCode": refusal.status, "statusDescription": refusal.text,
                "errorCondition": Symbol(refusal.condition)}  # fmt: skip
        return response(request, said, {})
    finally:
        connection.deliver()
    return response(request, {"statusCode": status, "statusDescription": "OK"}, answered)


def _schedule(broker: Broker, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    limit, size = broker.inbox(path).settings.max_message_size, sum(len(item["message"]) for item in body["messages"])
    if size > limit:
        raise too_large(size, limit)
    letters = [read_letter(item["message"]) for item in body["messages"]]
    broker.send(path, letters)
    # A duplicate has the number of the first of its id, as far as that is still there.
    numbers = {
        entry.letter.properties.get("message_id"): entry.sequence for entry in broker.inbox(path).entries.values()
    }
    return 200, {"sequence-numbers": Array(numbers.get(letter.properties.get("message_id"), 0) for letter in letters)}


def _cancel(broker: Broker, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    queue = broker.inbox(path)
    for number in body["sequence-numbers"]:
        entry = queue.entries.get(number)
        if entry is None or entry.state != SCHEDULED:
            raise Refusal("com.microsoft:message-not-found", f"No scheduled message has the number {number}.", 404)
        del queue.entries[number]
    return 200, {}


def _renew(broker: Broker, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    queue = broker.receivable(path)
    until = time.time() + queue.settings.lock_duration
    for token in body["lock-tokens"]:
        queue.by_token(token).locked_until = until
    return 200, {"expirations": Array(Timestamp(int(until * 1000)) for _ in body["lock-tokens"])}


def _peek(broker: Broker, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    queue = broker.receivable(path)
    found = [
        {"message": wire(entry, locked=False)}
        for number, entry in sorted(queue.entries.items())
        if number >= body["from-sequence-number"]
    ][: body["message-count"]]
    return (200, {"messages": found}) if found else (204, {})


def _receive_deferred(broker: Broker, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    queue = broker.receivable(path)
    found: list[Entry] = []
    for number in body["sequence-numbers"]:
        entry = queue.entries.get(number)
        if entry is None or entry.state != DEFERRED or entry.token is not None:
            raise Refusal("com.microsoft:message-not-found", f"No deferred message has the number {number}.", 404)
        found.append(entry)
    messages = []
    for entry in found:
        queue.lock(entry)
        locked = body["receiver-settle-mode"] == 1
        messages.append({"lock-token": entry.token or uuid.UUID(int=0), "message": wire(entry, locked=locked)})
        if not locked:
            queue.complete(entry)
    return 200, {"messages": messages}


def _update(broker: Broker, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    queue = broker.receivable(path)
    for token in body["lock-tokens"]:
        entry = queue.by_token(token)
        status = body["disposition-status"]
        if status == "completed":
            queue.complete(entry)
        elif status == "abandoned":
            queue.abandon(entry)
        elif status == "defered":
            queue.defer(entry)
        else:
            queue.bury(entry, body.get("deadletter-reason"), body.get("deadletter-description"))
    return 200, {}


def _renew_session(broker: Broker, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    queue: Queue = broker.receivable(path)
    hold = queue.sessions.get(body["session-id"])
    if hold is None or hold.until <= time.time():
        raise lock_lost("The session lock has expired.")
    hold.until = time.time() + queue.settings.lock_duration
    for entry in queue.entries.values():
        if entry.token is not None and entry.session == body["session-id"]:
            entry.locked_until = hold.until
    return 200, {"expiration": Timestamp(int(hold.until * 1000))}


def wire(entry: Entry, *, locked: bool) -> bytes:
    """A message as it goes to a receiver."""
    annotations: dict[str, Any] = {
        "x-opt-sequence-number": entry.sequence,
        "x-opt-enqueue-sequence-number": entry.enqueued_sequence,
        "x-opt-enqueued-time": Timestamp(int(entry.enqueued * 1000)),
        "x-opt-message-state": Int(entry.state),
    }
    if locked:
        annotations["x-opt-locked-until"] = Timestamp(int(entry.locked_until * 1000))
    delivery = {"x-opt-lock-token": entry.token} if locked else None
    return entry.letter.encoded(delivery_count=entry.delivery_count, annotations=annotations, delivery=delivery)


_OPERATIONS = {
    "schedule-message": _schedule,
    "cancel-scheduled-message": _cancel,
    "renew-lock": _renew,
    "peek-message": _peek,
    "receive-by-sequence-number": _receive_deferred,
    "update-disposition": _update,
    "renew-session-lock": _renew_session,
}
