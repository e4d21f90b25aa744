"""The engine: `process`, `deliver` and `replay` of one batch over DataFrames."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from homing.delivery import Batch, PipelineStores, work
from homing.errors import ConfigurationError
from homing.ledger import FAILED, Fence
from homing.pipeline import HandlerChain
from homing.spark import steps
from homing.spark.columns import PROCESSED_DDL, TALLY_DDL
from homing.spark.datasource import register
from homing.stores import resolve_url

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pipeline:
    """The names a job is given: the chain as "module:attribute", the stores as URLs or `env:NAME`."""

    chain: str
    store: str
    dead_letter_store: str


@dataclass(frozen=True)
class Engine:
    """Runs a chain over the messages a batch holds, recording for the step that `fence` stands for.

    When the step did not come to its end before, it goes on one message at a time: slower, and able to tell which
    message kills its worker.
    """

    spark: SparkSession
    pipeline: Pipeline
    chain: HandlerChain
    stores: PipelineStores
    batch: Batch
    fence: Fence

    def process(self, work_dir: str) -> int:
        """Runs the source flow and leaves what is to be delivered in the work directory; how many messages."""
        output = work.new_output(work_dir, self.batch.run_id, self.fence.owner)
        self._processed().write.mode("overwrite").parquet(str(output))
        ready = self.spark.read.parquet(str(output)).count()
        self.stores.ledger.record(self.fence, [])  # raises when the step was taken over: then this is not to be read
        work.publish(work_dir, self.batch.run_id, output)
        log.info("batch %s: %d messages are ready to be delivered", self.batch.run_id, ready)
        return ready

    def deliver(self, flow: str, work_dir: str) -> Counter[str]:
        """Delivers to one destination what `process` left; where nothing is left, runs the source flow again."""
        left = work.published(work_dir, self.batch.run_id)
        processed = self._processed() if left is None else self._one_by_one(self.spark.read.parquet(str(left)))
        return self._deliver(flow, processed)

    def replay(self) -> Counter[str]:
        """Runs the source flow and every destination again over what the batch holds."""
        processed = self._processed().cache()
        total: Counter[str] = Counter()
        for flow in self.chain.flows:
            total.update(self._deliver(flow.name, processed))
        return total

    def _processed(self) -> DataFrame:
        task = self._task()

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return steps.process(task, batches)

        return self._one_by_one(self._messages()).mapInArrow(run, PROCESSED_DDL)

    def _one_by_one(self, messages: DataFrame) -> DataFrame:
        """After a crash, one task only: then the message it had in hand is the one it died of."""
        return messages.coalesce(1) if self.fence.crashed else messages

    def _deliver(self, flow: str, processed: DataFrame) -> Counter[str]:
        # What was left by a process of long ago may name messages that somebody else holds by now.
        task = replace(self._task(), held=frozenset(self.batch.held_ids()))

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return steps.deliver(task, flow, batches)

        total: Counter[str] = Counter()
        for row in processed.mapInArrow(run, TALLY_DDL).collect():
            total[row["state"]] += row["messages"]
        level = logging.WARNING if total[FAILED] else logging.INFO
        log.log(level, "batch %s to %s: %s", self.batch.run_id, flow, dict(total) or "nothing to deliver")
        return total

    def _messages(self) -> DataFrame:
        """All the batch holds, in whichever stores it waits."""
        register(self.spark)
        frames = []
        for held in self.batch.held():
            dead = held.store is self.stores.dead_letters
            url = self.pipeline.dead_letter_store if dead else self.pipeline.store
            frames.append(self._read(url, held.store.name))
        if not frames:
            raise ConfigurationError(f"batch {self.batch.run_id} holds no messages: there is nothing to run")
        messages = frames[0]
        for frame in frames[1:]:
            messages = messages.union(frame)
        return messages

    def _read(self, url: str, store: str) -> DataFrame:
        reader = self.spark.read.format("homing").option("url", url).option("store", store)
        parts = str(self.spark.sparkContext.defaultParallelism)
        return reader.option("batch", self.batch.run_id).option("partitions", parts).load()

    def _task(self) -> steps.Task:
        return steps.Task(self.pipeline.chain, resolve_url(self.pipeline.store), self.fence)
