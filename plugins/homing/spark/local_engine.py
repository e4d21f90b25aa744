"""A batch too small to be worth a Spark session, worked on by this process alone: done before Spark would have started.

The steps, the ledger, the fences and what is left in the work directory are those of the Engine, so either can go on
where the other stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from homing.delivery import Batch, PipelineStores
from homing.delivery.work_files import LocalFiles, WorkDir
from homing.ledger import Fence
from homing.message import MessageRef
from homing.pipeline import HandlerChain
from homing.spark import steps
from homing.spark.columns import PROCESSED, rows_of
from homing.spark.engine import Pipeline, tell
from homing.spark.partitions import Parts
from homing.store_ref import StoreRef


@dataclass(frozen=True)
class Alone:
    """Runs a chain over the messages a batch holds, recording for the step that `fence` stands for.

    For chains without DataFrame handlers and work directories on this machine. A message that kills takes this process
    with it: its step stays open, and the next attempt sees that.
    """

    pipeline: Pipeline
    chain: HandlerChain
    stores: PipelineStores
    batch: Batch
    fence: Fence

    def process(self, work_dir: str) -> int:
        """Runs the source flow and leaves what is to be delivered in the work directory; how many messages."""
        place, ready = self._work_dir(work_dir), 0
        output = Path(place.new_output(self.batch.run_id, self.fence.owner))
        output.mkdir(exist_ok=True)
        with pq.ParquetWriter(output / "messages.parquet", PROCESSED) as file:
            for batch in self._processed():
                file.write_batch(batch)
                ready += batch.num_rows
        place.publish(self.fence, [str(output)])
        tell(self.batch, f"{ready} messages are ready to be delivered")
        return ready

    def deliver(self, flow: str, work_dir: str) -> Counter[str]:
        """Delivers to one destination what `process` left; where nothing is left, runs the source flow again."""
        left = self._work_dir(work_dir).copies(self.batch.run_id)
        total = self._deliver_batches(flow, self._processed() if left is None else _read(left), self._held())
        self._tell(flow, total)
        return total

    def replay(self, rate: float | None = None) -> Counter[str]:
        """Runs the source flow and every destination again over what the batch holds."""
        total: dict[str, Counter[str]] = {flow.name: Counter() for flow in self.chain.flows}
        held = self._held()
        # Page by page, since all of them together may be too much to hold.
        for batch in self._processed():
            for flow, states in total.items():
                states.update(self._deliver_batches(flow, [batch], held, rate))
        for flow, states in total.items():
            self._tell(flow, states)
        return sum(total.values(), Counter())

    def _work_dir(self, place: str) -> WorkDir:
        return WorkDir(place, LocalFiles(), self.stores.ledger)

    def _processed(self) -> Iterator[pa.RecordBatch]:
        for held in self.batch.held():
            place = self.pipeline.place(held, self.stores)
            yield from steps.process(self._task(), Parts.of(place, held, 1, None).pages())

    def _held(self) -> frozenset[MessageRef]:
        """What a process left long ago may name messages that another run holds by now."""
        return frozenset(head.ref for head in self.batch.heads())

    def _deliver_batches(
        self, flow: str, batches: Iterable[pa.RecordBatch], held: frozenset[MessageRef], rate: float | None = None
    ) -> Counter[str]:
        total: Counter[str] = Counter()
        for tally in steps.deliver(replace(self._task(), held=held, rate=rate), flow, iter(batches)):
            for row in rows_of(tally):
                total[row["state"]] += row["messages"]
        return total

    def _tell(self, flow: str, total: Counter[str]) -> None:
        tell(self.batch, f"to {flow}: {dict(total) or 'nothing to deliver'}", total)

    def _task(self) -> steps.Task:
        return steps.Task(self.pipeline.chain, StoreRef(self.pipeline.store).resolve(), self.fence)


def _read(files: Iterable[BinaryIO]) -> Iterator[pa.RecordBatch]:
    for file in files:
        parquet = pq.ParquetFile(file)
        # One group of rows after the other: reading ahead would hold many.
        for group in range(parquet.num_row_groups):
            yield from parquet.read_row_group(group).cast(PROCESSED).to_batches()
