"""Large messages on Spark: what goes from step to step, and to Python, goes in portions of bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from homing import portions
from tests.spark.conftest import Numbers

PORTION = 1_000_000


def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"bytes": [batch.nbytes]})


def test_work_files_and_what_python_gets_of_them_come_in_portions(
    numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "MOST_BYTES", PORTION)
    batch = numbers.claim("run", *({"n": n, "text": "x" * 200_000} for n in range(24)))
    engine = numbers.engine(batch, "process")

    assert engine.process(numbers.work) == 24

    left = numbers.published("run")
    assert left is not None
    files = [pq.ParquetFile(path) for path in left]
    groups = [file.metadata.row_group(n).num_rows for file in files for n in range(file.metadata.num_row_groups)]
    assert sum(groups) == 24
    assert max(groups) <= 6
    found = engine._parquet(left).mapInArrow(sizes, "bytes bigint").collect()
    assert max(row["bytes"] for row in found) < 2 * PORTION
    assert len(found) >= 4
