"""Makes failure records of messages that failed, for the failure and dead-letter stores, and reads them from there.

A record is believed in those two stores only, where only Homing writes. In the message store, everything is a message,
whatever its content type: that is only what its producer says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from homing.errors import UnreadableMessageError
from homing.failure import (
    FAILURE_TYPE,
    MESSAGE_ID,
    as_json,
    build_record,
    error_info,
    explained,
    fault_of,
    is_record,
    read_record,
    record_in,
    ref_of,
    to_copy,
    to_dead_letter,
)
from homing.ledger import DELIVERED, FAILED, SOURCE_FLOW, Entry
from homing.message import BASE64, Message, MessageRef, decode, encode
from homing.row import text_of, to_message

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Origin:
    """The message an author's chain starts from, and the batch it came in."""

    message: Message
    properties: Mapping[str, Any]
    batch_id: str


def may_hold_record(content_type: Any, headers: Any) -> bool:
    """Whether a row with these columns, of a failure or dead-letter store, may be a failure record."""
    return content_type == FAILURE_TYPE or (isinstance(headers, str) and MESSAGE_ID in headers)


def origin_of(row: Row, *, copies: bool) -> Origin:
    """Returns the message that this row is about, and its batch.

    In a store with `copies`, a row that is a failure record is about the message that failed. Any other row is about
    itself. Raises UnreadableMessageError when that message cannot be decoded, or when a copy says that it is a failure
    record and is not.
    """
    if copies and row["content_type"] == FAILURE_TYPE:
        fault = fault_of(_content(row))
        if fault is not None:
            raise UnreadableMessageError(
                f"message {row['id']} has the content type of a failure record and is not one: {fault}"
            )
    record = _record_in(row, copies)
    if record is None:
        return Origin(to_message(row), {}, row["batch_id"] or "")
    read = read_record(record)
    return Origin(read.message, read.properties, read.batch_id or "")


def is_failure(row: Row, *, copies: bool) -> bool:
    """Whether this row is the record of a message's failure, and not the message itself."""
    return _record_in(row, copies) is not None


def about(row: Row, *, copies: bool) -> Entry:
    """Returns the entry to record if the message that this row is about fails: see `origin_of`."""
    record = _record_in(row, copies)
    if record is None:
        ref, batch_id = MessageRef.of(row["table_id"], int(row["sequence"]), row["id"]), row["batch_id"]
    else:
        ref, batch_id = ref_of(record), record.get("batch_id")
    return Entry(ref, SOURCE_FLOW, FAILED, batch_id=batch_id or "")


def recorded_entries(row: Row, run_id: str) -> list[Entry]:
    """Returns what the ledger has to know of a failure that a chain or a listener recorded, and not a run.

    A run records it before it replays the message. So destinations that are done stay done.
    """
    record = _record_in(row, copies=True)
    if record is None:
        return []
    blank = Entry(ref_of(record), SOURCE_FLOW, FAILED, batch_id=record.get("batch_id") or run_id)
    done = [blank._replace(flow=flow, state=DELIVERED, result=record["done"][flow]) for flow in record["done"]]
    return [*done, *(blank._replace(flow=flow, error=record["errors"][flow]) for flow in record["errors"])]


def chain_of(row: Row) -> str:
    """The name of the chain that the message failed in whose failure this row records; empty where no chain had it."""
    record = _record_in(row, copies=True)
    return "" if record is None else str(record["chain"])


def failure(row: Row, entries: Mapping[str, Entry], chain: str, batch_id: str, *, copies: bool) -> Message:
    """The failure-store entry for a message that failed. Its session is that of the message, which waits for it."""
    record = _record(row, entries, chain, batch_id, copies)
    return replace(to_copy(record), session_id=text_of(row["session_id"]))


def dead_letter(
    row: Row, entries: Mapping[str, Entry], chain: str, batch_id: str, store: str, *, copies: bool
) -> Message:
    """The dead-letter entry for a message of this store, with its reason in words."""
    return to_dead_letter(_record(row, entries, chain, batch_id, copies), store)


def given_up(row: Row, run_id: str, *, copies: bool) -> Entry:
    """The ledger entry for a message that its store kept aside."""
    blank = about(row, copies=copies)
    return blank._replace(batch_id=blank.batch_id or run_id, error=_store_error(row))


def _content(row: Row) -> Any:
    return decode(row["encoding"], row["message"], row["id"])


def _record_in(row: Row, copies: bool) -> dict[str, Any] | None:
    """The failure record this row holds; None for any other message, and for one that only says it holds one: that is
    an author's like any other, and must not hold up its batch."""
    if not (copies and may_hold_record(row["content_type"], row["headers"])):
        return None
    try:
        if row["content_type"] != FAILURE_TYPE:
            return record_in(to_message(row))
        content = _content(row)
    except UnreadableMessageError:
        return None
    return content if is_record(content) else None


def _store_error(row: Row) -> dict[str, Any]:
    reason = row["dead_letter_reason"]
    return error_info(reason, row["dead_letter_description"] or reason, "store")


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
            "chain": record["chain"] or chain,
            "errors": explained(errors or record["errors"]),
            "done": explained({**record["done"], **done}),
            "snapshot": explained(snapshot),
        }
    ref = about(row, copies=False).ref
    found = {"errors": errors, "done": done, "snapshot": snapshot, "chain": chain, "batch_id": batch_id, "ref": ref}
    return _first_record(row, found)


def _first_record(row: Row, found: dict[str, Any]) -> dict[str, Any]:
    try:
        return build_record(to_message(row), {}, **found)
    except UnreadableMessageError:
        # Kept to the letter: once whatever wrote it is understood, it can still be read.
        record = build_record(Message(row["id"], "", sequence_number=row["sequence"]), {}, **found)
        letters = {"encoding": row["encoding"], "body": row["message"], "raw_headers": row["headers"]}
        if isinstance(row["message"], bytes):
            letters.update(encoding=BASE64, body=encode(row["message"]).body)
        record["message"].update({name: as_json(value) for name, value in letters.items()})
        return record
