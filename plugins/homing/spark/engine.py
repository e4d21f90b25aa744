"""The engine: `process`, `deliver` and `replay` of one batch over DataFrames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import count

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from homing.declared_connections import texts_in_environment
from homing.delivery import Batch, PipelineStores
from homing.delivery.arrow.columns import UNFIT
from homing.delivery.leased_part import LeasedMessage, LeasedPart
from homing.delivery.step import log_deliveries, log_result
from homing.delivery.work_files import WorkDir
from homing.errors import LeaseLostError
from homing.ledger import SOURCE_FLOW, Fence
from homing.message import MessageRef
from homing.pipeline import HandlerChain
from homing.pipeline.flows import DestinationFlow, Flow
from homing.pipeline.handlers import Handler
from homing.spark import dataframe_handlers
from homing.spark.columns import PROCESSED_DDL, TALLY_DDL
from homing.spark.dataframe_flow import DataFrameFlow, Source
from homing.spark.hadoop import HadoopFiles
from homing.spark.options import StoreAddress
from homing.spark.partitions import Parts
from homing.spark.sessions import file_options, in_portions, parallelism, reading_options
from homing.spark.smaller_parts import Keep
from homing.spark.task import Task
from homing.store_ref import StoreRef


@dataclass(frozen=True)
class Pipeline:
    """The names a job is given: the chain as "module:attribute", the stores as URLs or `env:NAME`."""

    chain: str
    # No part of the repr: a URL may hold a password.
    store: str = field(repr=False)
    dead_letter_store: str = field(repr=False)

    def address(self, held: LeasedPart, stores: PipelineStores) -> StoreAddress:
        """Where to find what is held there, from any process."""
        url = self.dead_letter_store if held.store is stores.dead_letters else self.store
        return StoreAddress.of({"url": url, "store": held.store.name})


@dataclass(frozen=True)
class Engine:
    """Runs a chain over the messages a batch holds, recording for the step that `fence` stands for.

    When the step did not come to its end before, it goes on one message at a time: slower, and able to tell which
    message kills its worker. Flows with DataFrame handlers are run by DataFrameFlow, which calls back for each part.
    """

    spark: SparkSession
    pipeline: Pipeline
    chain: HandlerChain
    stores: PipelineStores
    batch: Batch
    fence: Fence

    def __post_init__(self) -> None:
        in_portions(self.spark)

    def process(self, work_dir: str) -> int:
        """Runs the source flow, and writes what is to be delivered to the work directory. Returns how many messages."""
        place, numbers = self._work_dir(work_dir), count()
        output = place.new_output(self.batch.run_id, self.fence.owner)
        parts: dict[DataFrame, tuple[str, int]] = {}

        def keep(frame: DataFrame, counter: dataframe_handlers.RowCounter) -> DataFrame:
            part = f"{output}/{next(numbers)}"
            frame.write.mode("overwrite").options(**file_options()).parquet(part)
            kept = self._parquet([part])
            parts[kept] = part, counter.left
            return kept

        kept = [parts[frame] for frame in self._processed(keep)]
        ready = sum(rows for _, rows in kept)
        place.publish(self.fence, [part for part, _ in kept])
        log_result(self.batch, f"{ready} messages are ready to be delivered")
        return ready

    def deliver(self, flow: str, work_dir: str) -> Counter[str]:
        """Delivers to one destination what `process` left in the work directory.

        If `process` left nothing there, runs the source flow again. Returns how many messages ended in each state.
        """
        # Spark reads these very files, and no other that lies beside them.
        left = self._work_dir(work_dir).checked(self.batch.run_id)
        if left is None:
            # Parts that were told from what fails are not to be made twice.
            whole = dataframe_handlers.is_native(self.chain.source.processors)
            return self._deliver(flow, self._processed(_cached if whole else lambda frame, _: frame))
        return self._deliver(flow, [self._one_by_one(self._parquet(left))] if left else [])

    def replay(self, rate: float | None = None) -> Counter[str]:
        """Runs the source flow and every destination again over what the batch holds.

        With a `rate`, each destination gets at most so many messages a second. One task then delivers them all, since a
        rate that is worth setting is low.
        """
        processed = self._processed(_cached)
        total: Counter[str] = Counter()
        for flow in self.chain.flows:
            total.update(self._deliver(flow.name, processed, rate))
        return total

    # -- the source flow ---------------------------------------------------------------------------------------

    def _processed(self, keep: Keep) -> list[DataFrame]:
        """The messages after the source flow, in as many parts as it took."""
        if not dataframe_handlers.is_native(self.chain.source.processors):
            counter = dataframe_handlers.RowCounter()
            return [keep(self._source_flow(counter.begin(self._read(self.batch.held(), None)), counter), counter)]
        processors, start = self.chain.source.processors, self._begins_at()
        return self._dataframe_flow().process(Source(processors, start, self._read, self._source_flow, keep))

    def _read(self, parts: Sequence[LeasedPart], some: Sequence[LeasedMessage] | None) -> DataFrame:
        """These messages, or all, of these parts of the batch, after the handlers before the first for DataFrames."""
        start, frames = self._begins_at(), []
        native_first = dataframe_handlers.is_native(self.chain.source.processors) and start == 0
        for held in parts:
            cut = self._parts(held, some)
            # The record of a failure is not the message that failed.
            plain = native_first and not held.copies
            frames.append(_as_processed(cut.read(self.spark)) if plain else self._begin(cut, start))
        if not frames:
            raise LeaseLostError("it holds no messages any more: its lease ran out while Spark started")
        return _union(frames)

    def _source_flow(
        self,
        begun: DataFrame,
        counter: dataframe_handlers.RowCounter,
        section: dataframe_handlers.Segment | None = None,
    ) -> DataFrame:
        """The plan of the source flow, or of a section of it, over messages that were read."""
        start, stop = (section.start, section.stop) if section else (self._begins_at(), None)
        processors = self.chain.source.processors[:stop]
        return counter.end(self._through(_readable(begun), SOURCE_FLOW, processors, start, counter))

    def _begins_at(self) -> int:
        """How many of the source flow's processors are behind a message when it is read."""
        first = next(dataframe_handlers.segments(self.chain.source.processors), None)
        return 0 if first is None or first.native else first.stop

    def _begin(self, parts: Parts, stop: int) -> DataFrame:
        task = self._task(SOURCE_FLOW)
        return parts.through(self.spark, lambda read: task.process(read, stop), PROCESSED_DDL)

    def _through(
        self,
        frame: DataFrame,
        flow: str,
        processors: Sequence[Handler],
        start: int,
        counter: dataframe_handlers.RowCounter,
    ) -> DataFrame:
        """The plan of these processors, from `start` on, each in its own way."""
        task = self._task(flow)
        for segment in dataframe_handlers.segments(processors):
            if segment.stop <= start:
                continue
            if segment.native:
                for handler in processors[segment.start : segment.stop]:
                    frame = dataframe_handlers.apply(handler, frame, counter)
            else:

                def run(
                    batches: Iterator[pa.RecordBatch], cut: dataframe_handlers.Segment = segment
                ) -> Iterator[pa.RecordBatch]:
                    return task.go_on(flow, cut.start, cut.stop, batches)

                frame = frame.mapInArrow(run, PROCESSED_DDL)
        return frame

    # -- one destination ---------------------------------------------------------------------------------------

    def _deliver(self, name: str, processed: Sequence[DataFrame], rate: float | None = None) -> Counter[str]:
        total: Counter[str] = Counter()
        if processed:
            messages = _union(processed) if rate is None else _union(processed).coalesce(1)
            flow = self._flow(name)
            if isinstance(flow, DestinationFlow) and dataframe_handlers.is_native((*flow.processors, flow.destination)):
                each = partial(self._each, rate=rate)
                total = self._dataframe_flow().deliver(flow, messages, self._through, each, rate)
            else:
                # What a process left long ago may name messages that another run holds by now.
                held = frozenset(message.ref for message in self.batch.messages())
                total = self._each(name, messages, 0, held, rate)
        log_deliveries(self.batch, name, total)
        return total

    def _each(
        self,
        flow: str,
        messages: DataFrame,
        start: int,
        held: frozenset[MessageRef] | None = None,
        rate: float | None = None,
    ) -> Counter[str]:
        """Delivers message by message; `start` is how many of the flow's processors they have behind them."""
        task = replace(self._task(flow), held=held, rate=rate)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return task.deliver(flow, batches, start)

        total: Counter[str] = Counter()
        for row in messages.mapInArrow(run, TALLY_DDL).collect():
            total[row["state"]] += row["messages"]
        return total

    # -- inside ------------------------------------------------------------------------------------------------

    def _work_dir(self, place: str) -> WorkDir:
        return WorkDir(place, HadoopFiles(), self.stores.ledger)

    def _dataframe_flow(self) -> DataFrameFlow:
        dataframe_handlers.run_everything(self.spark)
        return DataFrameFlow(self.spark, self.stores.ledger, self.batch, self.fence)

    def _careful(self, name: str) -> bool:
        """Whether executors name the message they have in hand: after a crash, unless DataFrameFlow names the part."""
        if name == SOURCE_FLOW:
            return self.fence.crashed and not dataframe_handlers.is_native(self.chain.source.processors)
        flow = self._flow(name)
        whole = isinstance(flow, DestinationFlow) and dataframe_handlers.is_native((*flow.processors, flow.destination))
        return self.fence.crashed and not whole

    def _flow(self, name: str) -> Flow:
        return next(flow for flow in self.chain.flows if flow.name == name)

    def _one_by_one(self, messages: DataFrame) -> DataFrame:
        """After a crash, one task only: then the message it had in hand is the one it died of."""
        return messages.coalesce(1) if self.fence.crashed else messages

    def _parquet(self, files: Sequence[str]) -> DataFrame:
        return self.spark.read.schema(PROCESSED_DDL).options(**reading_options()).parquet(*files)

    def _parts(self, held: LeasedPart, some: Sequence[LeasedMessage] | None) -> Parts:
        """What one store holds of these messages, which stand in a row when ordered by id; of all for None."""
        address = self.pipeline.address(held, self.stores)
        span = None if some is None else (some[0].row_id, some[-1].row_id)
        return Parts.of(address, held, self._tasks(SOURCE_FLOW), span)

    def _task(self, flow: str) -> Task:
        fence = replace(self.fence, crashed=self._careful(flow))
        return Task(
            self.pipeline.chain,
            StoreRef(self.pipeline.store).resolve(),
            fence,
            tasks=self._tasks(flow),
            # Executors elsewhere do not have the driver's environment.
            connections=texts_in_environment(self.chain.connections(flow)),
        )

    def _tasks(self, flow: str) -> int:
        return 1 if self._careful(flow) else parallelism(self.spark)


def _as_processed(stored: DataFrame) -> DataFrame:
    """Stored messages in the columns of processed ones, without looking into them."""
    return stored.withColumn("properties", F.lit("{}"))


def _readable(messages: DataFrame) -> DataFrame:
    """Returns these messages as a frame that raises an error once the content of an unreadable message is read."""
    content = F.when(F.col("encoding") == UNFIT, F.raise_error("message")).otherwise(F.col("message"))
    return messages.withColumn("message", content)


def _cached(frame: DataFrame, _: dataframe_handlers.RowCounter) -> DataFrame:
    """Runs this plan now and caches the result: what a RowCounter counts is known only when the plan has run."""
    cached = frame.cache()
    cached.count()
    return cached


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.union, frames)
