"""The Spark data source `homing`: a claimed batch as a DataFrame, in Arrow batches. Reading has no side effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from homing.errors import ConfigurationError, UnsupportedError
from homing.spark.columns import STORED, STORED_DDL, to_batch
from homing.store import CLAIM, BatchLease
from homing.stores import open_store, resolve_url
from homing.stores.sql import SqlStore

_PAGE = 1_000
_DEFAULT_PARTITIONS = 2


def register(spark: SparkSession) -> None:
    """Makes `spark.read.format("homing")` known to this session."""
    spark.dataSource.register(HomingDataSource)


class HomingDataSource(DataSource):
    """`spark.read.format("homing").option("url", …).option("batch", …).load()`.

    Options: `url`, the store (`env:NAME` to take it from the environment); `store`, another store in the same database
    instead; `batch`, the id of a claimed batch; `partitions`, into how many parts to cut it (2).
    """

    @classmethod
    def name(cls) -> str:
        return "homing"

    def schema(self) -> str:
        return STORED_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(dict(self.options))


@dataclass(frozen=True)
class Range(InputPartition):
    """A part of the batch: the sequence numbers in (after, upto]."""

    lease: BatchLease
    after: int
    upto: int


class BatchReader(DataSourceReader):
    """Reads one claimed batch, part by part. Opens the store where it reads, never before."""

    def __init__(self, options: dict[str, str]) -> None:
        for needed in ("url", "batch"):
            if not options.get(needed):
                raise ConfigurationError(f'the data source "homing" needs the option "{needed}"')
        # Resolved here, on the driver: executors elsewhere do not have its environment.
        self._url = resolve_url(options["url"])
        self._store = options.get("store")
        self._batch_id = options["batch"]
        self._parts = int(options.get("partitions", _DEFAULT_PARTITIONS))

    def partitions(self) -> list[InputPartition]:
        with self._open() as store:
            lease = store.held_batch(self._batch_id)
            ranges = store.batch_ranges(lease, self._parts) if lease is not None else []
        return [Range(lease, after, upto) for after, upto in ranges if lease is not None]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Range):  # what Spark makes of no partitions at all
            return
        with self._open() as store:
            rows = store.batch_rows(partition.lease, after=partition.after, upto=partition.upto, page=_PAGE)
            while page := list(islice(rows, _PAGE)):
                yield to_batch(page, STORED)

    def _open(self) -> SqlStore:
        store = open_store(self._url)
        if not isinstance(store, SqlStore):
            raise UnsupportedError(f"store {store.name!r} cannot be read by Spark: it lacks the ability {CLAIM!r}")
        return store if self._store is None else store.sibling(self._store)
