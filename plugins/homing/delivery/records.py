"""Failure records on their way: from a message that failed, into the failure and dead-letter stores, and back.

A record is believed in those two stores only, where settlements write them. Whatever lies in the message store is a
message, and its content type is what its producer says of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from homing.errors import UnreadableMessageError
from homing.ledger import FAILED, SOURCE_FLOW, Entry
from homing.message import BASE64, Message, MessageRef, decode, encode
from homing.pipeline.failure import as_json, build_record, explained, fault_of, is_record, read_record
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


def origin_of(row: Row, *, copies: bool) -> Origin:
    """What this row is about: itself, or where there are `copies` the message whose failure it records.

    Raises UnreadableMessageError when that message cannot be decoded, or a copy says it is a record and is none.
    """
    if not (copies and row["content_type"] == FAILURE_TYPE):
        return Origin(rows.to_message(row), {}, row["batch_id"] or "")
    content = _content(row)
    fault = fault_of(content)
    if fault is not None:
        raise UnreadableMessageError(f"message {row['id']} says it is a failure record, and is none: {fault}")
    record = read_record(content)
    return Origin(record.message, record.properties, record.batch_id or "")


def is_failure(row: Row, *, copies: bool) -> bool:
    """Whether this row is the record of a message's failure, and not the message itself."""
    return _record_in(row, copies) is not None


def about(row: Row, *, copies: bool) -> Entry:
    """What the ledger is to say of the message this row is about, should it fail: itself, or where there are `copies`
    the message whose failure it records."""
    record = _record_in(row, copies)
    if record is None:
        ref, batch_id = MessageRef.of(row["table_id"], int(row["sequence"]), row["id"]), row["batch_id"]
    else:
        ref, batch_id = ref_of(record), record.get("batch_id")
    return Entry(ref, SOURCE_FLOW, FAILED, batch_id=batch_id or "")


def ref_in(copy: Message) -> MessageRef | None:
    """The message that this copy in the failure or dead-letter store is of; None when it is no copy."""
    return ref_of(copy.content) if copy.content_type == FAILURE_TYPE and is_record(copy.content) else None


def ref_of(record: Mapping[str, Any]) -> MessageRef:
    """The message whose failure this record is of."""
    message = record["message"]
    return MessageRef.of(message.get("table_id"), int(message.get("sequence_number") or 0), str(message["id"]))


def dead_letter_id(store: str, name: str) -> str:
    """The id of a dead letter of this store, of the message whose reference has this name. Readable, the same for every
    settlement, and another one for every other message: pipelines may share a dead-letter store."""
    plain = f"{store}/{name}"
    if len(plain) <= _MAX_ID:
        return plain
    ref = MessageRef.of_name(name)
    known_by = f"{ref.table_id}-{ref.sequence}" if ref else hashlib.sha256(name.encode()).hexdigest()
    return f"{store}/{known_by}"


def failure(row: Row, entries: Mapping[str, Entry], chain: str, batch_id: str, *, copies: bool) -> Message:
    """The failure-store entry for a message that failed. Its id is the name of the message, so it is stored once. Its
    session is that of the message, which waits for it."""
    record = _record(row, entries, chain, batch_id, copies)
    return replace(_copy(record), session_id=rows.text_of(row["session_id"]))


def dead_letter(
    row: Row, entries: Mapping[str, Entry], chain: str, batch_id: str, store: str, *, copies: bool
) -> Message:
    """The dead-letter entry for a message of this store, with its reason in words."""
    entry = _copy(_record(row, entries, chain, batch_id, copies))
    errors = entry.content["errors"].values()
    return replace(
        entry,
        id=dead_letter_id(store, entry.id),
        dead_letter_reason="; ".join(dict.fromkeys(error["type"] for error in errors)),
        dead_letter_description="; ".join(dict.fromkeys(f"{error['handler']}: {error['message']}" for error in errors)),
        dead_letter_source=store,
    )


def given_up(row: Row, run_id: str, *, copies: bool) -> Entry:
    """The ledger entry for a message that its store kept aside."""
    blank = about(row, copies=copies)
    return blank._replace(batch_id=blank.batch_id or run_id, error=_store_error(row))


def _copy(record: dict[str, Any]) -> Message:
    headers = {"homing-batch": record["batch_id"]}
    return Message(ref_of(record).name, record, content_type=FAILURE_TYPE, headers=headers)


def _content(row: Row) -> Any:
    return decode(row["encoding"], row["message"], row["id"])


def _record_in(row: Row, copies: bool) -> dict[str, Any] | None:
    """The failure record this row holds; None for any other message, and for one that only says it holds one: that is
    an author's like any other, and must not hold up its batch."""
    if not (copies and row["content_type"] == FAILURE_TYPE):
        return None
    try:
        content = _content(row)
    except UnreadableMessageError:
        return None
    return content if is_record(content) else None


def _store_error(row: Row) -> dict[str, Any]:
    description = row["dead_letter_description"] or row["dead_letter_reason"]
    return {"type": row["dead_letter_reason"], "message": description, "handler": "store", "stack": "", "attempt": 1}


def _record(row: Row, entries: Mapping[str, Entry], chain: str, batch_id: str, copies: bool) -> dict[str, Any]:
    """The failure record of this row: a new one, or the one it holds with what the ledger knows by now."""
    errors = {flow: entry.error for flow, entry in entries.items() if not entry.done and entry.error is not None}
    done = {flow: entry.result for flow, entry in entries.items() if entry.done}
    snapshot = {flow: entry.snapshot for flow, entry in entries.items() if flow in errors}
    if row["dead_letter_reason"]:
        errors[SOURCE_FLOW] = _store_error(row)
    record = _record_in(row, copies)
    if record is not None:
        return {
            **record,
            "errors": explained(errors or record["errors"]),
            "done": explained({**record["done"], **done}),
            "snapshot": explained(snapshot),
        }
    found = {"errors": errors, "done": done, "snapshot": snapshot, "chain": chain, "batch_id": batch_id}
    record = _first_record(row, found)
    record["message"]["table_id"] = about(row, copies=False).ref.table_id
    return record


def _first_record(row: Row, found: dict[str, Any]) -> dict[str, Any]:
    try:
        return build_record(rows.to_message(row), {}, **found)
    except UnreadableMessageError:
        # Kept to the letter: once whatever wrote it is understood, it can still be read.
        record = build_record(Message(row["id"], "", sequence_number=row["sequence"]), {}, **found)
        letters = {"encoding": row["encoding"], "body": row["message"], "raw_headers": row["headers"]}
        if isinstance(row["message"], bytes):
            letters.update(encoding=BASE64, body=encode(row["message"]).body)
        record["message"].update({name: as_json(value) for name, value in letters.items()})
        return record
