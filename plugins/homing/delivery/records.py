"""Failure records on their way: from a message that failed, into the failure and dead-letter stores, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from homing.errors import UnreadableMessageError
from homing.ledger import FAILED, SOURCE_FLOW, Entry
from homing.message import BASE64, Message, decode, encode
from homing.pipeline.failure import as_json, build_record, fault_of, is_record, read_record
from homing.stores.sql import rows

#: Marks a message whose content is a failure record.
FAILURE_TYPE = "application/vnd.homing.failure+json"

_MAX_ID = 255

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Origin:
    """The message an author's chain starts from, and the batch it came in."""

    message: Message
    properties: Mapping[str, Any]
    batch_id: str


def origin_of(row: Row) -> Origin:
    """What this row is about: itself, or the message whose failure it records.

    Raises UnreadableMessageError when that message cannot be decoded, or says it is a record and is none.
    """
    if not claims_failure(row):
        return Origin(rows.to_message(row), {}, row["batch_id"] or "")
    content = _content(row)
    _refuse(row["id"], fault_of(content))
    record = read_record(content)
    if record.message.content_type == FAILURE_TYPE:
        # Kept as it came, when it was found to be no record: it is not one now.
        _refuse(record.message.id, fault_of(record.message.content) or "it is a record of itself")
    return Origin(record.message, record.properties, record.batch_id or "")


def _refuse(message_id: str, fault: str | None) -> None:
    if fault is not None:
        raise UnreadableMessageError(f"message {message_id} says it is a failure record, and is none: {fault}")


def claims_failure(row: Row) -> bool:
    """Whether this row says it is the record of a failure, as far as can be told without its content."""
    return bool(row["content_type"] == FAILURE_TYPE)


def is_failure(row: Row) -> bool:
    """Whether this row is the record of a message's failure, and not the message itself."""
    return _record_in(row) is not None


class Subject(NamedTuple):
    """The message a row is about: its id, the batch it came in, and which message of that id (see `Entry.life`)."""

    message_id: str
    batch_id: str
    life: int

    def entry(self, flow: str, state: str, error: Mapping[str, Any] | None = None) -> Entry:
        """What the ledger is to say of it."""
        return Entry(self.message_id, flow, state, error=error, batch_id=self.batch_id, life=self.life)


def subject(row: Row) -> Subject:
    """What this row is about: itself, or the message whose failure it records."""
    record = _record_in(row)
    if record is None:
        return Subject(row["id"], row["batch_id"] or "", int(row["sequence"]))
    message = record["message"]
    return Subject(str(message["id"]), record.get("batch_id") or "", int(message.get("sequence_number") or 0))


def life_in(copy: Message) -> int | None:
    """The life of the message that this copy in another store is of; None when it is no copy."""
    return int(copy.content["message"].get("sequence_number") or 0) if is_record(copy.content) else None


def dead_letter_id(store: str, message_id: str) -> str:
    """The id of a message's dead letter. Pipelines may share a dead-letter store, and their messages ids."""
    plain = f"{store}/{message_id}"
    return plain if len(plain) <= _MAX_ID else f"{store}/{hashlib.sha256(message_id.encode()).hexdigest()}"


def failure(row: Row, entries: Mapping[str, Entry], chain: str, batch_id: str) -> Message:
    """The failure-store entry for a message that failed. It has the message's own id, so it is stored once."""
    record = _record(row, entries, chain, batch_id)
    return Message(row["id"], record, content_type=FAILURE_TYPE, headers={"homing-batch": record["batch_id"]})


def dead_letter(row: Row, entries: Mapping[str, Entry], chain: str, batch_id: str, store: str) -> Message:
    """The dead-letter entry for a message of this store, with its reason in words."""
    entry = failure(row, entries, chain, batch_id)
    errors = entry.content["errors"].values()
    return replace(
        entry,
        id=dead_letter_id(store, subject(row).message_id),
        dead_letter_reason="; ".join(dict.fromkeys(error["type"] for error in errors)),
        dead_letter_description="; ".join(dict.fromkeys(f"{error['handler']}: {error['message']}" for error in errors)),
        dead_letter_source=store,
    )


def given_up(row: Row, run_id: str) -> Entry:
    """The ledger entry for a message that its store kept aside."""
    about = subject(row)
    return about._replace(batch_id=about.batch_id or run_id).entry(SOURCE_FLOW, FAILED, _store_error(row))


def _content(row: Row) -> Any:
    return decode(row["encoding"], row["message"], row["id"])


def _record_in(row: Row) -> dict[str, Any] | None:
    """The failure record this row holds; None for any other message, and for one that only says it holds one: that is
    an author's like any other, and must not hold up its batch."""
    if not claims_failure(row):
        return None
    try:
        content = _content(row)
    except UnreadableMessageError:
        return None
    return content if is_record(content) else None


def _store_error(row: Row) -> dict[str, Any]:
    description = row["dead_letter_description"] or row["dead_letter_reason"]
    return {"type": row["dead_letter_reason"], "message": description, "handler": "store", "stack": "", "attempt": 1}


def _record(row: Row, entries: Mapping[str, Entry], chain: str, batch_id: str) -> dict[str, Any]:
    """The failure record of this row: a new one, or the one it holds with what the ledger knows by now."""
    errors = {flow: entry.error for flow, entry in entries.items() if not entry.done and entry.error is not None}
    done = {flow: entry.result for flow, entry in entries.items() if entry.done}
    snapshot = {flow: entry.snapshot for flow, entry in entries.items() if flow in errors}
    if row["dead_letter_reason"]:
        errors[SOURCE_FLOW] = _store_error(row)
    record = _record_in(row)
    if record is not None:
        return {
            **record,
            "errors": errors or record["errors"],
            "done": {**record["done"], **done},
            "snapshot": snapshot,
        }
    about = {"errors": errors, "done": done, "snapshot": snapshot, "chain": chain, "batch_id": batch_id}
    return _first_record(row, about)


def _first_record(row: Row, about: dict[str, Any]) -> dict[str, Any]:
    try:
        return build_record(rows.to_message(row), {}, **about)
    except UnreadableMessageError:
        # Kept to the letter: once whatever wrote it is understood, it can still be read.
        record = build_record(Message(row["id"], "", sequence_number=row["sequence"]), {}, **about)
        letters = {"encoding": row["encoding"], "body": row["message"], "raw_headers": row["headers"]}
        if isinstance(row["message"], bytes):
            letters.update(encoding=BASE64, body=encode(row["message"]).body)
        record["message"].update({name: as_json(value) for name, value in letters.items()})
        return record
