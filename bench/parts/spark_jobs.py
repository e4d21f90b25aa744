"""Spark: what our jobs cost beyond plain Spark.

process   the source flow over claimed messages, beside a plain job: Parquet, the same function in mapInArrow, Parquet
native    the same with DataFrame handlers, beside the same Spark SQL from Parquet to Parquet
deliver   what `process` left to a destination that does nothing, with the ledger, beside a plain job over Parquet
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.content import payloads
from bench.contestants.contestant import timed
from bench.figures import Row
from bench.player import ROOT
from bench.progress import say
from bench.rounds import Case, Comparison, rows, take_turns
from bench.scale import Scale
from bench.services import Services
from bench.spark_chains import plain_deliver, plain_python, plain_sql
from homing.delivery import Batch, PipelineStores, open_pipeline_stores
from homing.pipeline import load_chain
from homing.spark import register
from homing.spark.columns import TALLY_DDL
from homing.spark.engine import Engine, Pipeline

RUN = "run"
_LEASE = 86_400.0


def spark(scale: Scale, services: Services) -> Iterator[Row]:
    folder = services.folder / "spark"
    folder.mkdir()
    count = scale.spark_messages
    with _session() as session, open_pipeline_stores(_url(folder), _url(folder, "_dead")) as stores:
        say(f"storing and claiming {count:,} messages")
        stores.store.store_many(payloads(count))
        Batch(stores, RUN, ["nowhere"], chain="bench").claim(count, lease=_LEASE)
        plain = _rows(session, folder)
        job = Job(session, stores, folder)
        ours = {
            "process": Case("process", lambda: job.process_seconds("messages")),
            "native": Case("native", lambda: job.process_seconds("frames")),
            "deliver": Case("deliver", job.deliver_seconds),
        }
        target = str(folder / "plain")
        theirs = {
            "process": Case("plain mapInArrow", _writing(lambda: plain.mapInArrow(plain_python, plain.schema), target)),
            "native": Case("plain Spark SQL", _writing(lambda: plain_sql(plain), target)),
            "deliver": Case("plain job, no ledger", lambda: _delivering(plain, count)),
        }
        take_turns([*ours.values(), *theirs.values()], scale.spark_rounds)
    bars = {"process": 1 / 0.6, "native": 1 / 0.8, "deliver": None}
    comparisons = [
        Comparison(f"{name} of {count:,}", case, theirs[name].name, theirs[name], bars[name])
        for name, case in ours.items()
    ]
    yield from rows("Spark", comparisons)


class Job:
    """Our jobs over the one batch."""

    def __init__(self, session: SparkSession, stores: PipelineStores, folder: Path) -> None:
        self._session, self._stores, self._folder = session, stores, folder
        self._work = str(folder / "work")

    def process_seconds(self, chain: str) -> float:
        self._forget_what_happened()
        return timed(lambda: self._step("process", chain, lambda engine: engine.process(self._work)))

    def deliver_seconds(self) -> float:
        self._forget_what_happened()
        return timed(lambda: self._step("deliver", "messages", lambda engine: engine.deliver("nowhere", self._work)))

    def _forget_what_happened(self) -> None:
        """The batch is new to each job: what the ledger knows of it would be skipped."""
        with sqlite3.connect(self._folder / "bench.db") as connection:
            connection.execute("delete from homing_bench__ledger")
        connection.close()

    def _step(self, step: str, chain: str, run: Callable[[Engine], object]) -> None:
        pipeline = Pipeline(f"bench.spark_chains:{chain}", _url(self._folder), _url(self._folder, "_dead"))
        batch = Batch(self._stores, RUN, ["nowhere"], chain="bench")
        fence = self._stores.ledger.open_step(RUN, step, _LEASE)
        assert not fence.crashed
        run(Engine(self._session, pipeline, load_chain(pipeline.chain), self._stores, batch, fence))
        self._stores.ledger.close_step(fence)


def _url(folder: Path, suffix: str = "") -> str:
    return f"sqlite:///{folder}/bench.db?store=bench{suffix}"


def _rows(session: SparkSession, folder: Path) -> DataFrame:
    """The same messages as Parquet, which the plain jobs read."""
    register(session)
    source = session.read.format("homing").option("url", _url(folder)).option("batch", RUN).load()
    source.write.parquet(str(folder / "rows"))
    return session.read.parquet(str(folder / "rows"))


def _writing(plan: Callable[[], DataFrame], target: str) -> Callable[[], float]:
    return lambda: timed(lambda: plan().write.mode("overwrite").parquet(target))


def _delivering(plain: DataFrame, count: int) -> float:
    tally = []
    seconds = timed(lambda: tally.extend(plain.mapInArrow(plain_deliver, TALLY_DDL).collect()))
    assert sum(row["messages"] for row in tally) == count
    return seconds


@contextmanager
def _session() -> Iterator[SparkSession]:
    ours = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "plugins"), str(ROOT)]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    session = SparkSession.builder.master("local[2]").config(map=quiet).getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
