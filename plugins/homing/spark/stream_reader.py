"""A store as a stream: every message once, in the order it was stored. The offset is the sequence number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from homing.errors import ConfigurationError
from homing.pipeline_store import PipelineStore
from homing.spark.options import StoreAddress, number
from homing.spark.reader import Range, cut, read_range

_DEFAULT_PARTITIONS = 2
_ABILITY = "cannot be read as a stream, because its messages have no lasting numbers"


class StoreStreamReader(DataSourceStreamReader):
    """`spark.readStream.format("homing").option("url", …).load()`: messages as they are stored, finished or not.

    It claims and acknowledges nothing. Options: `max_rows`, how many messages a micro-batch has at most; `start`,
    "earliest" (the default) or "latest", for a query without a checkpoint; `partitions` (2). Where many write at once,
    a lower number can become visible after a higher one: the stream waits for transactions that are open, however long
    they take, and skips none. Raises UnsupportedError for a store without lasting numbers.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._address = StoreAddress.of(options)
        self._max_rows = number(options, "max_rows", None)
        self._parts = number(options, "partitions", _DEFAULT_PARTITIONS) or 1
        self._start = options.get("start", "earliest")
        if self._start not in ("earliest", "latest"):
            raise ConfigurationError(f'the option "start" must be earliest or latest, got {self._start!r}')
        self._open().close()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        if self._start == "earliest":
            return {"sequence": 0}
        with self._open() as store:
            # Begun too early, it would read all there is; too late, it would miss what an open transaction brings.
            return {"sequence": store.scans().newest(0, patience=math.inf)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable() if self._max_rows is None else ReadMaxRows(self._max_rows)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        with self._open() as store:
            newest = store.scans().newest(start["sequence"], limit=most)
        return {"sequence": newest}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return cut(start["sequence"], end["sequence"], self._parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Range):
            yield from (page.batch for page in read_range(self._address, partition))

    def _open(self) -> PipelineStore:
        return self._address.open_sql(_ABILITY)
