"""Ledger: the delivery loop of one Spark task to a destination that does nothing, with the ledger on beside off."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from bench.content import payload
from bench.contestants.contestant import timed
from bench.figures import Row
from bench.rounds import Case, Comparison, rows, take_turns
from bench.scale import Scale
from bench.services import Services
from homing.delivery.arrow.columns import PROCESSED, to_batch
from homing.ledger import Fence, Ledger, LedgerEntries
from homing.message import MessageRef
from homing.spark.task import Task
from homing.stores import open_store
from homing.stores.sql import SqlStore

#: Ours takes at most twice as long, unless it delivers this many a second on its one core.
BAR, ENOUGH = 1 / 0.5, 15_000
CHAIN = "bench.spark_chains:messages"


def ledger(scale: Scale, services: Services) -> Iterator[Row]:
    url = f"sqlite:///{services.folder}/ledger.db?store=bench"
    yield from deliveries("SQLite", url, scale.ledger_messages, scale.spark_rounds)
    url = f"{services.postgresql.empty_database()}?store=bench"
    yield from deliveries("PostgreSQL", url, scale.ledger_messages, scale.spark_rounds)


class NoLedger(Ledger):
    """Remembers nothing."""

    def open_step(self, run_id: str, step: str, lease: float) -> Fence:
        return Fence(run_id, step, "")

    def known(self, message_ids: Any) -> LedgerEntries:
        return {}

    def unfinished(self, batch_id: str) -> list[MessageRef]:
        return []

    def of_batch(self, batch_id: str, limit: int) -> list[MessageRef]:
        return []

    def left_open(self, run_id: str) -> list[str]:
        return []

    def is_open(self, run_id: str, step: str) -> bool:
        return False

    def published(self, run_id: str) -> dict[str, str] | None:
        return None

    @property
    def table_name(self) -> str:
        return ""

    def done_before(self, seconds: float) -> Iterator[list[MessageRef]]:
        return iter(())

    def remove(self, refs: Any) -> int:
        return 0

    def busy_until(self, run_ids: Any) -> None:
        return None

    def publish(self, fence: Fence, files: Any) -> None: ...
    def record(self, fence: Fence, entries: Any) -> None: ...
    def renew_step(self, fence: Fence, lease: float) -> None: ...
    def suspect(self, fence: Fence, suspect: str | None, entries: Any = ()) -> None: ...
    def close_step(self, fence: Fence) -> None: ...
    def close_steps(self, run_id: str) -> None: ...


class Unrecorded(Task):
    """A task whose ledger remembers nothing."""

    def ledger(self) -> Ledger:
        return NoLedger()


def deliveries(server: str, url: str, messages: int, rounds: int) -> Iterator[Row]:
    with open_store(url) as store:
        assert isinstance(store, SqlStore)
        fence = store.ledger().open_step("run", "deliver.nowhere", 86_400)
        fence = Fence(fence.run_id, fence.step, fence.owner)

        def loop(kind: type[Task]) -> float:
            batches = processed(messages)  # of messages nobody has seen before: known ones would be skipped
            return timed(lambda: list(kind(CHAIN, url, fence).deliver("nowhere", iter(batches)))) / messages

        on, off = Case("ledger on", lambda: loop(Task)), Case("ledger off", lambda: loop(Unrecorded))
        take_turns([on, off], rounds)
    bar = max(BAR, 1 / ENOUGH / statistics.median(off.seconds)) if off.seconds else BAR
    yield from rows("Spark", [Comparison(f"{server}: delivery loop of {messages:,}", on, "ledger off", off, bar)])


def processed(messages: int) -> list[pa.RecordBatch]:
    """Messages as the source flow leaves them, in batches of Spark's size."""
    names = dict.fromkeys(PROCESSED.names)
    start = time.time_ns()
    rows = [
        {
            **names, "id": f"{start + n:020x}", "sequence": n, "message": json.dumps(payload()), "encoding": "json",
            "properties": "{}", "batch_id": "run", "epoch": 1, "crashes": 0, "priority": 0, "time_created": start,
            "time_scheduled": start, "time_next": start,
        }
        for n in range(messages)
    ]  # fmt: skip
    return [to_batch(rows[first : first + 10_000], PROCESSED) for first in range(0, messages, 10_000)]
