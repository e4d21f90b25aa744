"""The failure record: what a failure store holds about a message that could not be delivered everywhere.

A JSON object. It has the original message and properties, which is what a replay starts from; the
destinations that are done, which a replay skips; and for people the errors and the state at the point of
failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Annotated, Any

import msgspec

from homing.calling.content import accept_json
from homing.calling.traces import describe
from homing.errors import UnreadableMessageError, UnstorableContentError
from homing.excerpts import excerpt
from homing.message import Message, decode, encode

__all__ = ["MARK", "SOURCE", "VERSION", "FailureRecord", "build_record", "describe", "done_of", "read_record"]

MARK = "failure"
VERSION = 1
#: The key of the source flow in `errors` and `snapshot`; every other key is the name of a destination flow.
SOURCE = ""
#: What errors, results and snapshots of one record may take, each of the three.
EXPLAINING = 64 * 2**10

_REPR_LIMIT = 1000
# The lease it was held under means nothing any more once it is replayed.
_FORGOTTEN = frozenset({"content", "headers", "lock_token", "state"})


@dataclass(frozen=True)
class FailureRecord:
    """A failure record, read. `done` and `errors` are keyed by destination flow, or SOURCE."""

    message: Message
    properties: dict[str, Any]
    errors: dict[str, dict[str, Any]]
    done: dict[str, Any]
    batch_id: str | None
    chain: str


class _Written(msgspec.Struct):
    """The shape of a record, for checking what somebody else may have written."""

    homing: str
    version: int
    chain: str
    message: dict[str, Any]
    properties: dict[str, Any]
    errors: dict[str, dict[str, Any]]
    done: dict[str, Any]
    batch_id: str | None = None


class _Named(msgspec.Struct):
    """What the delivery protocol needs of the message in a record, be the rest unreadable."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern="^[^\\x00]*$")]
    sequence_number: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None


def build_record(
    message: Message,
    properties: Mapping[str, Any] | None,
    *,
    errors: Mapping[str, Mapping[str, Any]],
    done: Mapping[str, Any],
    snapshot: Mapping[str, Any],
    chain: str,
    batch_id: str | None = None,
) -> dict[str, Any]:
    """The failure record of `message`, which must be the original one, with its original properties.

    `errors` maps each flow that failed (SOURCE for the source flow) to what `describe` says; `snapshot` is
    keyed in the same way; `done` maps each flow that needs no further delivery to its result. What JSON
    cannot carry in results and snapshots is kept as its repr, and what is long as an excerpt, so that building a
    record never fails for their sake, and it never has much more bytes than its message.
    """
    return {
        "homing": MARK,
        "version": VERSION,
        "chain": chain,
        "batch_id": batch_id,
        "failed_at": datetime.now(timezone.utc).isoformat(),
        "message": _write_message(message),
        "properties": as_json(dict(properties or {})),
        "errors": explained({flow: dict(error) for flow, error in errors.items()}),
        "done": explained(done),
        "snapshot": explained(snapshot),
    }


def explained(by_flow: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says of each flow, for people: all of it together has at most EXPLAINING bytes."""
    share = EXPLAINING // max(1, len(by_flow))
    return {flow: excerpt(as_json(value), share) for flow, value in by_flow.items()}


def read_record(content: Any) -> FailureRecord:
    """Reads a failure store's content; raises UnreadableMessageError if it is no failure record."""
    try:
        written = msgspec.convert(content, _Written)
    except msgspec.ValidationError as error:
        raise UnreadableMessageError(f"this is not a failure record: {error}") from error
    if written.homing != MARK:
        raise UnreadableMessageError(f"this is not a failure record but a {written.homing!r}")
    if written.version != VERSION:
        raise UnreadableMessageError(
            f"the failure record has version {written.version} and this Homing reads {VERSION}"
        )
    return FailureRecord(
        message=_read_message(written.message),
        properties=written.properties,
        errors=written.errors,
        done=written.done,
        batch_id=written.batch_id,
        chain=written.chain,
    )


def is_record(content: Any) -> bool:
    """Whether this content is a failure record of ours, though the message in it may not be readable."""
    return fault_of(content) is None


def fault_of(content: Any) -> str | None:
    """Why a pipeline cannot take this content for a failure record of ours; None when it can."""
    try:
        written = msgspec.convert(content, _Written)
    except msgspec.ValidationError as error:
        return str(error)
    if (written.homing, written.version) != (MARK, VERSION):
        return f"it says {written.homing!r}, version {written.version!r}"
    try:
        msgspec.convert(written.message, _Named)
    except msgspec.ValidationError as error:
        return f"{error} of its message"
    if not all({"type", "handler", "message"} <= error.keys() for error in written.errors.values()):
        return "one of its errors has no type, handler or message"
    return None


def done_of(content: Any, chain: str) -> dict[str, Any] | None:
    """What is done already, if this content is a failure record of this chain; None for any other content."""
    if type(content) is not dict or content.get("homing") != MARK:
        return None
    try:
        record = read_record(content)
    except UnreadableMessageError:
        return None
    return record.done if record.chain == chain else None


def _write_message(message: Message) -> dict[str, Any]:
    body = encode(message.content)
    known = msgspec.to_builtins(replace(message, content=None, headers={}))
    written = {name: value for name, value in known.items() if value is not None and name not in _FORGOTTEN}
    return {
        **written,
        "encoding": body.encoding,
        "body": body.body,
        "headers": as_json(dict(message.headers)),
    }


def _read_message(written: dict[str, Any]) -> Message:
    fields = dict(written)
    try:
        encoding, body = fields.pop("encoding"), fields.pop("body")
        content = decode(encoding, msgspec.convert(body, str), fields["id"])
        return msgspec.convert({**fields, "content": content}, Message)
    except KeyError as error:
        raise UnreadableMessageError(f"the failure record's message has no {error}") from error
    except msgspec.ValidationError as error:
        raise UnreadableMessageError(f"the failure record's message is broken: {error}") from error


def as_json(value: Any) -> Any:
    """The value, with whatever JSON cannot carry in it replaced by its repr. Never fails."""
    try:
        return accept_json(value)
    except UnstorableContentError:
        if type(value) is dict:
            return {_capped(key) if type(key) is str else _capped_repr(key): _json_or_repr(value[key]) for key in value}
        return _capped_repr(value)


def _json_or_repr(value: Any) -> Any:
    try:
        return accept_json(value)
    except UnstorableContentError:
        return _capped_repr(value)


def _capped_repr(value: Any) -> str:
    try:
        text = repr(value)
    except (Exception, SystemExit, GeneratorExit):  # noqa: BLE001 - a result's repr is its author's code
        text = f"<{type(value).__qualname__}>"
    return _capped(text)


def _capped(text: str) -> str:
    return text[:_REPR_LIMIT].encode("utf-8", "replace").decode("utf-8")
