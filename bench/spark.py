"""What a Spark job of ours costs beyond plain Spark, as ratios within one run.

    python bench/spark.py                                  # everything; many minutes
    python bench/spark.py process native --messages 20000  # some of it, smaller

process   the source flow over claimed messages, against a plain job: Parquet, the same function in mapInArrow, Parquet
native    the same with DataFrame handlers, against the same Spark SQL from Parquet to Parquet
deliver   the delivery loop of one task to a destination that does nothing, with the ledger on against off
submit    a job that counts ten rows, started with our class-data archive against a stock spark-submit

Cases take turns, so that a noisy machine is noisy for all; a ratio is the median of the ratios of neighbours in time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from pyspark.sql import SparkSession  # noqa: E402

from homing.delivery import Batch, open_pipeline_stores  # noqa: E402
from homing.delivery.class_archive import class_archive  # noqa: E402
from homing.ledger import Fence, Ledger  # noqa: E402
from homing.pipeline import load_chain  # noqa: E402
from homing.spark import register, steps  # noqa: E402
from homing.spark.columns import PROCESSED, to_batch  # noqa: E402
from homing.spark.engine import Engine, Pipeline  # noqa: E402
from homing.stores import open_store  # noqa: E402
from homing.stores.sql import SqlStore  # noqa: E402
from tests.servers import PostgreSQL, launch  # noqa: E402

LIMITS = {"process": 0.6, "native": 0.8, "deliver sqlite": 0.5, "deliver postgresql": 0.5, "submit": 0.65}
#: Messages a second and core with which a ledger is fast enough whatever the ratio.
ENOUGH = 15_000
_RANDOM = random.Random(7)  # noqa: S311 - payloads, not secrets


def payload() -> dict[str, Any]:
    """A JSON object of about 1 KiB."""
    return {"customer": "c-1042", "amount": 12.5, "paid": True, "blob": _RANDOM.randbytes(448).hex()}


@dataclass(frozen=True)
class Pair:
    """Seconds of ours and of the other, round by round, each for so many messages."""

    name: str
    ours: list[float]
    other: list[float]
    messages: int

    @property
    def ratio(self) -> float:
        """How fast ours is in terms of the other; for `submit`, how long it takes."""
        pairs = zip(self.ours, self.other, strict=True)
        if self.name == "submit":
            return statistics.median(ours / other for ours, other in pairs)
        return statistics.median(other / ours for ours, other in pairs)

    @property
    def within(self) -> bool:
        limit = LIMITS[self.name]
        if self.name == "submit":
            return self.ratio <= limit
        return self.ratio >= limit or (self.name.startswith("deliver") and self.rate(self.ours) >= ENOUGH)

    def rate(self, seconds: list[float]) -> float:
        return self.messages / statistics.median(seconds)


def take_turns(name: str, rounds: int, messages: int, ours: Callable[[], Any], other: Callable[[], Any]) -> Pair:
    seconds: dict[str, list[float]] = {"ours": [], "other": []}
    for number in range(rounds + 1):
        turns = [("ours", ours), ("other", other)]
        for who, work in turns if number % 2 else turns[::-1]:
            began = time.perf_counter()
            work()
            seconds[who].append(time.perf_counter() - began)
    # The first round warms up.
    return Pair(name, seconds["ours"][1:], seconds["other"][1:], messages)


# -- jobs ------------------------------------------------------------------------------------------------------


@contextmanager
def session() -> Iterator[SparkSession]:
    places = [str(ROOT / "plugins"), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ.update(PYTHONPATH=os.pathsep.join(places), SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.log.level", "ERROR").getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def jobs(wanted: set[str], messages: int, rounds: int, folder: Path) -> Iterator[Pair]:
    from spark_chains import plain_python, plain_sql

    url, dead = f"sqlite:///{folder}/bench.db?store=bench", f"sqlite:///{folder}/bench.db?store=bench_dead"
    with session() as spark, open_pipeline_stores(url, dead) as stores:
        stores.store.store_many([payload() for _ in range(messages)])
        batch = Batch(stores, "run", ["nowhere"], chain="bench")
        batch.claim(messages, lease=86_400)
        register(spark)
        source = spark.read.format("homing").option("url", url).option("batch", "run").load()
        source.write.parquet(str(folder / "rows"))
        rows = spark.read.parquet(str(folder / "rows"))
        schema = rows.schema

        def ours(chain: str) -> None:
            pipeline = Pipeline(f"spark_chains:{chain}", url, dead)
            fence = stores.ledger.open_step("run", "process", 86_400)
            fence = Fence(fence.run_id, fence.step, fence.owner)
            Engine(spark, pipeline, load_chain(pipeline.chain), stores, batch, fence).process(str(folder / "work"))
            stores.ledger.close_step(fence)

        def python() -> None:
            rows.mapInArrow(plain_python, schema).write.mode("overwrite").parquet(str(folder / "plain"))

        def sql() -> None:
            plain_sql(rows).write.mode("overwrite").parquet(str(folder / "plain"))

        if "process" in wanted:
            yield take_turns("process", rounds, messages, lambda: ours("messages"), python)
        if "native" in wanted:
            yield take_turns("native", rounds, messages, lambda: ours("frames"), sql)


# -- the ledger ------------------------------------------------------------------------------------------------


class NoLedger(Ledger):
    """Remembers nothing."""

    def open_step(self, run_id: str, step: str, lease: float) -> Fence:
        return Fence(run_id, step, "")

    def entries(self, message_ids: Any) -> dict[str, Any]:
        return {}

    def unfinished(self, batch_id: str) -> list[str]:
        return []

    def failed_in(self, run_id: str, message_ids: Any) -> set[str]:
        return set()

    def record(self, fence: Fence, entries: Any) -> None: ...
    def renew_step(self, fence: Fence, lease: float) -> None: ...
    def suspect(self, fence: Fence, suspect: str | None, entries: Any = ()) -> None: ...
    def close_step(self, fence: Fence) -> None: ...
    def close_steps(self, run_id: str) -> None: ...


class Unrecorded(steps.Task):
    """A task whose ledger remembers nothing."""

    def ledger(self) -> Ledger:
        return NoLedger()


def processed(messages: int) -> list[pa.RecordBatch]:
    """Messages nobody has seen before, as the source flow leaves them, in batches of Spark's size."""
    names = dict.fromkeys(PROCESSED.names)
    start = time.time_ns()
    rows = [
        {
            **names, "id": f"{start + n:020x}", "sequence": n, "message": json.dumps(payload()), "encoding": "json",
            "properties": "{}", "batch_id": "run", "epoch": 1, "crashes": 0, "priority": 0, "time_created": start,
            "time_scheduled": start, "time_next": start,
        }
        for n in range(messages)
    ]  # fmt: skip
    return [to_batch(rows[first : first + 10_000], PROCESSED) for first in range(0, messages, 10_000)]


def delivery(name: str, url: str, messages: int, rounds: int) -> Pair:
    with open_store(url) as store:
        assert isinstance(store, SqlStore)
        fence = store.ledger().open_step("run", "deliver.nowhere", 86_400)
        fence = Fence(fence.run_id, fence.step, fence.owner)
        seconds: dict[type[steps.Task], list[float]] = {steps.Task: [], Unrecorded: []}
        for _ in range(rounds + 1):
            batches = processed(messages)
            for kind, taken in seconds.items():
                task = kind("spark_chains:messages", url, fence)
                began = time.perf_counter()
                for _ in steps.deliver(task, "nowhere", iter(batches)):
                    pass
                taken.append(time.perf_counter() - began)
    return Pair(name, seconds[steps.Task][1:], seconds[Unrecorded][1:], messages)


def deliveries(messages: int, rounds: int, folder: Path) -> Iterator[Pair]:
    yield delivery("deliver sqlite", f"sqlite:///{folder}/ledger.db?store=bench", messages, rounds)
    server = launch(PostgreSQL([]))
    try:
        yield delivery("deliver postgresql", f"{server.empty_database()}?store=bench", messages, rounds)
    finally:
        server.remove()


# -- starting --------------------------------------------------------------------------------------------------


def submits(rounds: int, folder: Path) -> Pair:
    script = folder / "trivial.py"
    script.write_text(
        "from pyspark.sql import SparkSession\nprint(SparkSession.builder.getOrCreate().range(10).count())\n"
    )

    def submit(more: dict[str, str]) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", **more}
        command = ["spark-submit", "--master", "local[2]", str(script)]
        subprocess.run(command, env=environment, check=True, capture_output=True)

    def ours() -> None:
        with class_archive(folder / "cache") as environment:
            submit(environment)

    ours()  # makes the archive
    return take_turns("submit", rounds, 1, ours, lambda: submit({}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    kinds = ("process", "native", "deliver", "submit")
    parser.add_argument("what", nargs="*", choices=[*kinds, []], help="which of them; all when none is named")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None, help="where to write the figures, besides printing them")
    arguments = parser.parse_args()
    wanted = set(arguments.what or kinds)
    pairs: list[Pair] = []
    with tempfile.TemporaryDirectory(prefix="homing-bench-") as name:
        folder = Path(name)
        if wanted & {"process", "native"}:
            pairs += jobs(wanted, arguments.messages, arguments.rounds, folder)
        if "deliver" in wanted:
            pairs += deliveries(min(arguments.messages, 50_000), arguments.rounds, folder)
        if "submit" in wanted:
            pairs.append(submits(arguments.rounds, folder))
    print(f"{'':20}{'ours s':>9}{'other s':>9}{'ours/s':>10}{'other/s':>10}{'ratio':>8}{'limit':>8}")
    figures = {}
    for pair in pairs:
        ours, other = statistics.median(pair.ours), statistics.median(pair.other)
        rates = (pair.rate(pair.ours), pair.rate(pair.other))
        print(f"{pair.name:20}{ours:>9.2f}{other:>9.2f}{rates[0]:>10.0f}{rates[1]:>10.0f}", end="")
        print(f"{pair.ratio:>8.2f}{LIMITS[pair.name]:>8.2f}  {'ok' if pair.within else 'SHORT'}")
        figures[pair.name] = {
            "messages": pair.messages,
            "ours_seconds": round(ours, 3),
            "other_seconds": round(other, 3),
            "ratio": round(pair.ratio, 3),
            "limit": LIMITS[pair.name],
            "within": pair.within,
        }
    print(json.dumps(figures))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if all(pair.within for pair in pairs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
