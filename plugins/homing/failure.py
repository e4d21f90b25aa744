"""The failure record: what is kept of a message that could not be delivered everywhere, whichever part gives it up.

One format, for chains, listeners and settlements alike. `FailureRecord` is what all of them write and read. It has the
original message and properties, which is what a replay starts from; the destinations that are done, which a replay
skips; and for people the errors and the state at the point of failure. It is written down in one of two ways:

- As a message of the content type FAILURE_TYPE, whose content is the record, a JSON object. A failure store holds only
  such messages. So does a dead-letter store, of what failed in a chain.
- As a listener's dead letter. It has the content of the message as it was, for consumers that read dead letters as
  messages. The facts of the record are in its headers: `homing-message-id`, `homing-dead-letter-reason`,
  `-description`, `-handler`, `-attempts`, `-stack` and `-source`. What was written on the message is in headers called
  `homing-<name>`.

`FailureRecord.of` reads both. Such a message is a copy of the one that failed. Its id in a failure store is the name of
that message (`MessageRef.name`), and in a dead-letter store it is `dead_letter_id`. So where the message is known, its
copy can be found.

A record is believed only in a failure store or a dead-letter store, which Homing alone writes. What a producer says of
a message is a claim: a listener takes FAILURE_TYPE off a message that it gives up, unless a chain made the record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Annotated, Any

import msgspec

from homing.errors import UnreadableMessageError, UnstorableContentError
from homing.excerpts import excerpt
from homing.ids import new_id, random_hex
from homing.json_values import DEEPEST_PART, copy_json
from homing.message import Message, MessageRef, decode, encode

#: Marks a message whose content is a failure record.
FAILURE_TYPE = "application/vnd.homing.failure+json"
#: What the failure store of a pipeline is called after: its store, and this.
FAILURE_STORE = "_failures"

MARK = "failure"
VERSION = 1
#: The key of the source flow in `errors` and `snapshot`; every other key is the name of a destination flow.
SOURCE = ""
#: What errors, results and snapshots of one record may take, each of the three.
EXPLAINING = 64 * 2**10

#: The type of the error of a message that crashes its worker.
WORKER_CRASH = "homing.WorkerCrash"

# The headers of a listener's dead letter.
MESSAGE_ID = "homing-message-id"
REASON = "homing-dead-letter-reason"
_DESCRIPTION = "homing-dead-letter-description"
_SOURCE = "homing-dead-letter-source"
_HANDLER = "homing-dead-letter-handler"
_ATTEMPTS = "homing-dead-letter-attempts"
_STACK = "homing-dead-letter-stack"
_OURS = (MESSAGE_ID, REASON, _DESCRIPTION, _SOURCE, _HANDLER, _ATTEMPTS, _STACK)
_KEPT = ("content_type", "correlation_id", "session_id", "partition_key", "subject", "to", "reply_to")

_MAX_ID = 255
_REPR_LIMIT = 1000
# The lease it was held under means nothing any more once it is replayed.
_FORGOTTEN = frozenset({"content", "headers", "lock_token", "state"})

ErrorInfo = dict[str, Any]


# -- errors, and their texts ---------------------------------------------------------------------------------------


def error_info(kind: str, message: str, handler: str, *, stack: str = "", attempt: int = 1) -> ErrorInfo:
    """An error as records, ledger and dead letters have it."""
    return {"type": kind, "message": message, "stack": stack, "handler": handler, "attempt": attempt}


def worker_crash(handler: str, times: int = 1) -> ErrorInfo:
    """Returns the error of a message that probably crashes its worker: `times` workers died while they held it."""
    one = "its worker crashed while it handled this message"
    return error_info(WORKER_CRASH, one if times == 1 else f"{times} workers that held this message crashed", handler)


def crash_text(times: int) -> str:
    """Returns why a store gives up a message that it handed out `times` times and that was never settled."""
    return f"it was handed out {times} times and never settled: it probably crashes its consumer"


# -- the record ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FailureRecord:
    """A failure record, read. `done` and `errors` are keyed by destination flow, or SOURCE.

    `chain` is the name of the chain that it failed in; empty where no chain had it, and then any may replay it.
    `batch_id` is that of the run it failed in, if it was one.
    """

    message: Message
    properties: dict[str, Any]
    errors: dict[str, dict[str, Any]]
    done: dict[str, Any]
    batch_id: str | None
    chain: str
    ref: MessageRef

    @classmethod
    def of(cls, copy: Message) -> FailureRecord:
        """The record in a message of a failure store, a replay store or a dead-letter store, where it is believed.

        Raises UnreadableMessageError for any other message.
        """
        return read_record(_letter_record(copy) if is_letter(copy) else copy.content)


class _Written(msgspec.Struct):
    """The shape of a record, for checking what another program may have written."""

    homing: str
    version: int
    chain: str
    message: dict[str, Any]
    properties: dict[str, Any]
    errors: dict[str, dict[str, Any]]
    done: dict[str, Any]
    batch_id: str | None = None
    taken_in: tuple[str, int] | None = None


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
    ref: MessageRef | None = None,
) -> dict[str, Any]:
    """The failure record of `message`, which must be the original one, with its original properties.

    `ref` says which message it is, where a table took it in; else that is known by its id alone.

    `errors` maps each flow that failed (SOURCE for the source flow) to what `describe` says; `snapshot` is
    keyed in the same way; `done` maps each flow that needs no further delivery to its result. What JSON
    cannot carry in results and snapshots is kept as its repr, and what is long as an excerpt, so that building a
    record never fails for their sake, and it never has much more bytes than its message.
    """
    taken_in = {} if ref is None else {"taken_in": [ref.table_id, ref.sequence]}
    return {
        "homing": MARK,
        "version": VERSION,
        "chain": chain,
        "batch_id": batch_id,
        **taken_in,
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
    """Reads a failure store's content; raises UnreadableMessageError if it is not a failure record."""
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
        ref=ref_of(content),
    )


def is_marked(content: Any) -> bool:
    """Whether this content says that it is a failure record of ours, as any content may."""
    return type(content) is dict and content.get("homing") == MARK


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


def progress_in(content: Any, chain: str) -> FailureRecord | None:
    """What is left of a message, if this content is a failure record of this chain; None for any other content.

    A listener stores that among the messages of producers, who may write the same. So it is not believed which message
    it is: it may name another message, whose dead letter this one's would be taken for.
    """
    if not is_marked(content):
        return None
    try:
        record = read_record({key: value for key, value in content.items() if key != "taken_in"})
    except UnreadableMessageError:
        return None
    return record if record.chain == chain else None


def ref_of(record: Mapping[str, Any]) -> MessageRef:
    """The message whose failure this record is of."""
    message = record["message"]
    table_id, sequence = record.get("taken_in") or ("", message.get("sequence_number") or 0)
    return MessageRef.of(table_id, int(sequence), str(message["id"]))


def record_in(copy: Message) -> dict[str, Any] | None:
    """The record in a message of a failure or dead-letter store; None for whatever else lies there."""
    if is_letter(copy):
        return _letter_record(copy)
    return copy.content if copy.content_type == FAILURE_TYPE and is_record(copy.content) else None


def ref_in(copy: Message) -> MessageRef | None:
    """The message that this message of a failure or dead-letter store is a copy of; None if it is not a copy."""
    record = record_in(copy)
    return None if record is None else ref_of(record)


def failed_at(copy: Message, record: Mapping[str, Any]) -> datetime:
    """When it failed; where the record does not say so, when it was stored."""
    try:
        return datetime.fromisoformat(record["failed_at"]).astimezone(timezone.utc)
    except (KeyError, TypeError, ValueError):  # another program's record
        return copy.enqueued_at or datetime.now(timezone.utc)


# -- copies --------------------------------------------------------------------------------------------------------


def to_copy(record: dict[str, Any]) -> Message:
    """Returns the message that holds this record in a failure store.

    Its id is the name of the message that failed, so that the failure of a message is stored once.
    """
    headers = {"homing-batch": record["batch_id"]} if record["batch_id"] else {}
    return Message(ref_of(record).name, record, content_type=FAILURE_TYPE, headers=headers)


def new_copy(record: dict[str, Any], identity: str) -> Message:
    """Returns the message that holds this record in a failure store, when no table took in the message that failed.

    `identity` is that of the failure store. The record then says that this store took the message in, under a random
    number. So the copy has a new id each time; also when `identity` is empty.
    """
    if not identity:
        return replace(to_copy(record), id=new_id())
    record["taken_in"] = [identity, int(random_hex(16), 16) >> 1]
    return to_copy(record)


def to_dead_letter(record: dict[str, Any], store: str) -> Message:
    """Returns the dead letter that holds this record; `store` is the name of the store that the message came from."""
    copy, errors = to_copy(record), record["errors"].values()
    return replace(
        copy,
        id=dead_letter_id(store, copy.id),
        dead_letter_reason="; ".join(dict.fromkeys(error["type"] for error in errors)),
        dead_letter_description="; ".join(dict.fromkeys(f"{error['handler']}: {error['message']}" for error in errors)),
        dead_letter_source=store,
    )


def dead_letter_id(store: str, name: str) -> str:
    """Returns the id of a message's dead letter, from the name of its store and the name of its `MessageRef`.

    A chain, a listener and a settlement give a message the same id, and no two messages of any store share one:
    pipelines may share a dead-letter store.
    """
    plain = f"{store}/{name}"
    if len(plain) <= _MAX_ID:
        return plain
    ref = MessageRef.of_name(name)
    known_by = f"{ref.table_id}-{ref.sequence}" if ref else hashlib.sha256(name.encode()).hexdigest()
    return f"{store}/{known_by}"


def letter_headers(message: Message, error: ErrorInfo, store: str) -> dict[str, Any]:
    """The headers of a listener's dead letter: those of the message, what was written on it, and what went wrong."""
    kept = {f"homing-{name}": getattr(message, name) for name in _KEPT if getattr(message, name) is not None}
    return {
        **message.headers,
        **kept,
        MESSAGE_ID: message.id,
        REASON: error["type"],
        _DESCRIPTION: error["message"],
        _SOURCE: store,
        _HANDLER: error["handler"],
        _ATTEMPTS: error["attempt"],
        _STACK: error["stack"],
    }


def is_letter(copy: Message) -> bool:
    """Whether this message of a dead-letter store is a listener's: the message as it was, the rest in its headers."""
    named = isinstance(copy.headers, Mapping) and copy.headers.keys() >= {MESSAGE_ID, REASON}
    return named and copy.content_type != FAILURE_TYPE and copy.headers.get("homing-content_type") != FAILURE_TYPE


def _letter_record(copy: Message) -> dict[str, Any]:
    """The facts of a listener's dead letter as a record."""
    said = copy.headers
    kept = {name: said.get(f"homing-{name}") for name in _KEPT}
    ours = {*_OURS, *(f"homing-{name}" for name in _KEPT)}
    theirs = {key: value for key, value in said.items() if key not in ours}
    texts: dict[str, Any] = {name: value for name, value in kept.items() if isinstance(value, str)}
    message_id, source = str(said[MESSAGE_ID]), str(said.get(_SOURCE, ""))
    name = copy.id.removeprefix(f"{source}/")
    known = MessageRef.of_name(name) or MessageRef.of_name(f"{name}/{message_id}")
    blank = replace(copy, dead_letter_reason=None, dead_letter_description=None, dead_letter_source=None)
    attempts = said.get(_ATTEMPTS)
    error = error_info(
        *(str(said.get(key, "")) for key in (REASON, _DESCRIPTION, _HANDLER)),
        stack=str(said.get(_STACK, "")),
        attempt=attempts if type(attempts) is int else 1,
    )
    record = build_record(
        replace(blank, id=message_id, headers=theirs, sequence_number=known and known.sequence, **texts),
        {},
        errors={SOURCE: error},
        done={},
        snapshot={},
        chain="",
        ref=known and known._replace(id=message_id),
    )
    return {**record, "failed_at": copy.enqueued_at and copy.enqueued_at.isoformat()}


# -- messages and values in a record -------------------------------------------------------------------------------


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
        return copy_json(value, levels=DEEPEST_PART)
    except UnstorableContentError:
        if type(value) is dict:
            return {_capped(key) if type(key) is str else _capped_repr(key): _json_or_repr(value[key]) for key in value}
        return _capped_repr(value)


def _json_or_repr(value: Any) -> Any:
    try:
        return copy_json(value, levels=DEEPEST_PART)
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
