"""Processed messages as Parquet files, which is how Spark's jobs leave them and find them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from homing.delivery.arrow.columns import PROCESSED


def write(folder: str, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes these messages to a file in this folder, each batch as a group of rows. Returns how many messages."""
    Path(folder).mkdir(exist_ok=True)
    written = 0
    with pq.ParquetWriter(Path(folder) / "messages.parquet", PROCESSED) as file:
        for batch in batches:
            file.write_batch(batch)
            written += batch.num_rows
    return written


def read(files: Iterable[BinaryIO]) -> Iterator[pa.RecordBatch]:
    """The messages in these files, one group of rows after the other: reading ahead would hold many."""
    for file in files:
        parquet = pq.ParquetFile(file)
        for group in range(parquet.num_row_groups):
            yield from parquet.read_row_group(group).cast(PROCESSED).to_batches()
