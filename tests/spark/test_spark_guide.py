"""The code in docs/spark.md runs, in the session that the tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.unit.test_docs import DOCS, script_of


def test_code_of_the_page_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / "spark.md"
    # Spark's own process has another directory than this one.
    script = script_of(page).replace("sqlite:///orders.db", f"sqlite:///{tmp_path}/orders.db")
    script = script.replace('"checkpoint"', repr(str(tmp_path / "checkpoint")))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "spark_page"}

    exec(compile(script, str(page), "exec"), names)  # noqa: S102 - our own page

    assert [handler.name for handler in names["chain"].source.processors] == ["paid", "priced"]  # type: ignore[attr-defined]
