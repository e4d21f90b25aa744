"""The part of the Spark benchmark that needs no Spark runs, and its figures make sense."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench" / "spark.py"


def test_bench_measures_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("spark_bench", BENCH)
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "spark_bench", bench)
    spec.loader.exec_module(bench)

    url = f"sqlite:///{tmp_path}/ledger.db?store=bench"
    pair = bench.delivery("deliver sqlite", url, 200, 2)

    assert len(pair.ours) == len(pair.other) == 2
    assert pair.ratio > 0
    with (
        bench.open_store(f"sqlite:///{tmp_path}/ledger.db?store=bench") as store,
        store._database._engine.begin() as rows,
    ):
        counted = rows.exec_driver_sql("select count(*), sum(deliveries) from homing_bench__ledger").one()
    assert tuple(counted) == (600, 600)
