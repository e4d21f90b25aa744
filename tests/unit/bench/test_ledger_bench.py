"""The part of the Spark benchmark that needs no Spark runs, and its figures make sense."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from bench.parts.ledger import deliveries


def test_bench_measures_the_ledger(tmp_path: Path) -> None:
    (row,) = deliveries("SQLite", f"sqlite:///{tmp_path}/ledger.db?store=bench", 200, 2)

    assert (row.error, len(row.ratios)) == ("", 2)
    assert row.median > 0
    connection = sqlite3.connect(tmp_path / "ledger.db")
    counted = connection.execute("select count(*), sum(deliveries) from homing_bench__ledger").fetchone()
    connection.close()
    assert counted == (600, 600)  # with the round that warms up
