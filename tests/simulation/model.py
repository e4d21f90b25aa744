"""What the delivery protocol asks of the SQL store and its ledger, in dictionaries: a hundred times faster.

The rows are the real ones, made by `homing.stores.sql.rows`. That it does what the SQL store does is tested: a schedule
must take the same course, call by call, on both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from homing.errors import LeaseLostError, NotInFlightError
from homing.ledger import DELIVERED, FAILED, PROCESSED, Entry, Fence, Known
from homing.message import ACKNOWLEDGED, AVAILABLE, DEAD, LEASED, Message, MessageRef
from homing.store import CRASHED, BatchLease
from homing.stores.sql import rows
from homing.stores.sql.properties import Properties
from homing.stores.sql.schema import messages_table

NANOSECONDS = 1_000_000_000
Row = dict[str, Any]

_BLANK: Row = {column.name: None for column in messages_table("any").columns}
_BLANK.update(priority=0, epoch=0, crashes=0, table_id="0123456789abcdef")
_TOKENS = count(1)


class ModelStore:
    """One table of messages."""

    def __init__(self, name: str, clock: Callable[[], int], *, max_deliveries: int = 5) -> None:
        self.name = name
        self._clock, self._max_deliveries = clock, max_deliveries
        self._rows: dict[str, Row] = {}
        self._sequence = count(1)

    def reset(self) -> None:
        self._rows.clear()

    def store(self, content: Any, *, id: str) -> str:
        return self.store_many([Message(id, content)])[0]

    def store_many(self, messages: Iterable[Message]) -> list[str]:
        new = [rows.to_row(message, self._clock()) for message in messages]
        for row in new:
            if row["id"] not in self._rows:
                self._rows[row["id"]] = {**_BLANK, **row, "sequence": next(self._sequence)}
        return [row["id"] for row in new]

    # -- batches -----------------------------------------------------------------------------------------------

    def lease_batch(
        self, limit: int, *, batch_id: str, lease: float, ids: Collection[str] | None = None
    ) -> BatchLease | None:
        now, mine = self._clock(), self._of_batch(batch_id)
        held = [row for row in mine if row["lock_token"] is not None]
        live = {row["lock_token"] for row in held if row["time_next"] > now}
        token, until = live.pop() if len(live) == 1 else f"t{next(_TOKENS)}", now + int(lease * NANOSECONDS)
        size = self._lease(held, batch_id, token, until, by_id=ids is not None)
        if not mine or ids is not None:
            size += self._lease(self._free(limit, batch_id, ids), batch_id, token, until, by_id=ids is not None)
        return BatchLease(batch_id, token, size) if size else None

    def _free(self, limit: int, batch_id: str, ids: Collection[str] | None) -> list[Row]:
        now = self._clock()
        due = [row for row in self._rows.values() if row["time_next"] is not None and row["time_next"] <= now]
        if ids is None:
            return sorted(due, key=lambda row: (row["time_next"], row["sequence"]))[:limit]
        free = [row for row in self._rows.values() if row["time_dead"] is not None or row in due]
        elsewhere = [row for row in free if row["batch_id"] != batch_id or row["lock_token"] is None]
        return [row for row in elsewhere if row["id"] in set(ids)]

    def _lease(self, found: list[Row], batch_id: str, token: str, until: int, *, by_id: bool) -> int:
        now, size = self._clock(), 0
        for row in found:
            late = row["batch_id"] == batch_id
            ran_out = row["lock_token"] is not None and row["time_next"] <= now and not late
            row["crashes"] += ran_out
            if ran_out and row["crashes"] >= self._max_deliveries:
                why = f"its lease ran out {self._max_deliveries} times: whoever handles it dies"
                row.update(time_dead=now, time_next=None, lock_token=None, dead_letter_reason=CRASHED)
                row.update(dead_letter_description=why, dead_letter_source=self.name)
                continue
            row.update(time_next=until, lock_token=token, batch_id=batch_id)
            if by_id:
                row["time_dead"] = None
            size += 1
        return size

    def knows_batch(self, batch_id: str) -> bool:
        return bool(self._of_batch(batch_id))

    def held_batch(self, batch_id: str) -> BatchLease | None:
        held = [row for row in self._of_batch(batch_id) if row["lock_token"] and row["time_next"] > self._clock()]
        return BatchLease(batch_id, min(row["lock_token"] for row in held), len(held)) if held else None

    def batch_rows(self, held: BatchLease, *, ids: Collection[str] | None = None) -> Iterator[Row]:
        mine = [row for row in self._of_batch(held.batch_id) if row["lock_token"] == held.lock_token]
        mine = [row for row in mine if ids is None or row["id"] in ids]
        return iter([dict(row) for row in sorted(mine, key=lambda row: row["sequence"])])

    def batch_values(self, held: BatchLease, columns: Sequence[str], *, page: int = 1000) -> Iterator[tuple[Any, ...]]:
        return (tuple(row[name] for name in columns) for row in self.batch_rows(held))

    def renew(self, held: BatchLease, lease: float) -> None:
        mine = [row for row in self._of_batch(held.batch_id) if self._is_held(row, held)]
        if not mine:
            raise LeaseLostError(held.batch_id)
        for row in mine:
            row["time_next"] = self._clock() + int(lease * NANOSECONDS)

    def settle_batch(self, held: BatchLease, ids: Collection[str], success: bool = True) -> None:
        for one in ids:
            row = self._rows.get(one)
            if row is None or row["lock_token"] is None:
                raise NotInFlightError(one)
            if not self._is_held(row, held):
                raise LeaseLostError(one)
        now = self._clock()
        done = {"time_acked": now, "time_next": None, "lock_token": None}
        for one in ids:
            self._rows[one].update(done if success else {"time_next": now, "lock_token": None, "batch_id": None})

    def count_crash(self, held: BatchLease, ids: Collection[str]) -> None:
        for one in ids:
            if one in self._rows and self._is_held(self._rows[one], held):
                self._rows[one]["crashes"] += 1

    @property
    def properties(self) -> Properties:
        return Properties(max_deliveries=self._max_deliveries)

    def forget_batch(self, held: BatchLease, ids: Collection[str]) -> None:
        if not all(one in self._rows and self._is_held(self._rows[one], held) for one in ids):
            raise LeaseLostError(held.batch_id)
        for one in ids:
            del self._rows[one]

    def forget_finished(self, ids: Collection[str]) -> None:
        for one in ids:
            if one in self._rows and self._rows[one]["time_acked"] is not None:
                del self._rows[one]

    def dead_messages(self, skip: int = 0) -> list[Row]:
        return [dict(row) for row in self._rows.values() if row["time_dead"] is not None][skip:]

    def finish_dead(self, ids: Collection[str]) -> None:
        for one in ids:
            if one in self._rows and self._rows[one]["time_dead"] is not None:
                self._rows[one].update(time_acked=self._clock(), time_dead=None)

    # -- looking -----------------------------------------------------------------------------------------------

    def present(self, ids: Collection[str]) -> set[str]:
        return {one for one in ids if one in self._rows and self._rows[one]["time_acked"] is None}

    def batches_of(self, ids: Collection[str]) -> dict[str, str]:
        return {one: self._rows[one]["batch_id"] for one in ids if one in self._rows and self._rows[one]["batch_id"]}

    def overdue(self, seconds: float) -> list[str]:
        since = self._clock() - int(seconds * NANOSECONDS)
        found = [row for row in self._rows.values() if row["time_next"] is not None and row["time_next"] <= since]
        return [row["id"] for row in sorted(found, key=lambda row: row["time_next"])]

    def states(self, ids: Collection[str] | None = None) -> Iterator[tuple[str, str, MessageRef]]:
        for row in sorted(self._rows.values(), key=lambda row: row["sequence"]):
            if ids is not None and row["id"] not in ids:
                continue
            due = row["time_next"] is not None and row["time_next"] <= self._clock()
            dead = DEAD if row["time_dead"] is not None else (AVAILABLE if due else LEASED)
            ref = MessageRef(row["table_id"], row["sequence"], row["id"])
            yield row["id"], ACKNOWLEDGED if row["time_acked"] is not None else dead, ref

    def browse(self, limit: int, *, ids: Collection[str] | None = None) -> list[Message]:
        found = [row for row in self._rows.values() if ids is None or row["id"] in ids]
        return [rows.to_message(row) for row in found[:limit]]

    def look(self, ids: Collection[str] | None = None) -> Iterator[Message]:
        found = [row for row in self._rows.values() if ids is None or row["id"] in ids]
        return (rows.to_message(row) for row in found if row["time_acked"] is None)

    def refusal(self, message: Message) -> None:
        """Takes any size."""

    def close(self) -> None:
        pass

    def _of_batch(self, batch_id: str) -> list[Row]:
        return [row for row in self._rows.values() if row["batch_id"] == batch_id]

    def _is_held(self, row: Row, held: BatchLease) -> bool:
        return row["lock_token"] == held.lock_token and row["time_next"] > self._clock()


class ModelLedger:
    """One ledger."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._known: Known = {}
        self._steps: dict[tuple[str, str], tuple[str, int, str | None]] = {}

    def reset(self) -> None:
        self._known.clear()
        self._steps.clear()

    def open_step(self, run_id: str, step: str, lease: float) -> Fence:
        before, owner = self._steps.get((run_id, step)), f"o{next(_TOKENS)}"
        self._steps[run_id, step] = (owner, self._until(lease), None)
        return Fence(run_id, step, owner, crashed=before is not None, suspect=before[2] if before else None)

    def renew_step(self, fence: Fence, lease: float) -> None:
        self._check(fence)
        self._put(fence, until=self._until(lease))

    def record(self, fence: Fence, entries: Iterable[Entry]) -> None:
        self._check(fence)
        for entry in entries:
            self._add(entry._replace(run_id=fence.run_id, deliveries=int(entry.state == DELIVERED)))

    def suspect(self, fence: Fence, suspect: str | None, entries: Iterable[Entry] = ()) -> None:
        self.record(fence, entries)
        self._put(fence, suspect=suspect)

    def close_step(self, fence: Fence) -> None:
        if self._steps.get((fence.run_id, fence.step), ("",))[0] == fence.owner:
            del self._steps[fence.run_id, fence.step]

    def left_open(self, run_id: str) -> list[str]:
        return sorted(step for run, step in self._steps if run == run_id)

    def close_steps(self, run_id: str) -> None:
        for key in [key for key in self._steps if key[0] == run_id]:
            del self._steps[key]

    def known(self, message_ids: Iterable[str]) -> Known:
        wanted = set(message_ids)
        return {key: dict(flows) for key, flows in self._known.items() if key.id in wanted}

    def unfinished(self, batch_id: str) -> list[MessageRef]:
        return sorted(
            {
                ref
                for ref, flows in self._known.items()
                if any(entry.batch_id == batch_id and entry.state == FAILED for entry in flows.values())
            }
        )

    def _add(self, new: Entry) -> None:
        flows = self._known.setdefault(new.ref, {})
        old = flows.get(new.flow)
        if old is None:
            flows[new.flow] = new
            return
        sums = {"attempts": old.attempts + new.attempts, "deliveries": old.deliveries + new.deliveries}
        kept = new if old.state in (FAILED, PROCESSED) else old
        flows[new.flow] = kept._replace(**sums)

    def _check(self, fence: Fence) -> None:
        owner, expires, _ = self._steps.get((fence.run_id, fence.step), ("", 0, None))
        if owner != fence.owner or expires <= self._clock():
            raise LeaseLostError(f"{fence.step} of {fence.run_id}")

    def _put(self, fence: Fence, **changed: Any) -> None:
        if (fence.run_id, fence.step) in self._steps:
            owner, until, suspect = self._steps[fence.run_id, fence.step]
            new = {"until": until, "suspect": suspect, **changed}
            self._steps[fence.run_id, fence.step] = (owner, new["until"], new["suspect"])

    def _until(self, lease: float) -> int:
        return self._clock() + int(lease * NANOSECONDS)
