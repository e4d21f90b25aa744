"""One Spark session for the whole test run, and a pipeline with its stores for each test."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from homing.delivery import Batch, PipelineStores, open_pipeline_stores
from homing.delivery.leased_part import LeasedMessage
from homing.delivery.work_files import LocalFiles, WorkDir
from homing.ledger import Fence
from homing.pipeline import load_chain
from homing.spark.dataframe_flow import DataFrameFlow
from homing.spark.engine import Engine, Pipeline

CHAINS = Path(__file__).parent / "chains"
FLOWS = ("lake", "crm")


@pytest.fixture(scope="session")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the destinations of the test chain write; one folder, because the Python workers live on."""
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="package")
def spark(output: Path) -> Iterator[SparkSession]:
    # The workers inherit the environment of the JVM, which inherits this one.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CHAIN_OUT", str(output))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(CHAINS), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.syspath_prepend(str(CHAINS))
        builder = SparkSession.builder.master("local[2]").appName("homing tests")
        builder = builder.config("spark.sql.shuffle.partitions", "2")
        session = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR").getOrCreate()
        yield session
        session.stop()


@pytest.fixture
def clean_output(output: Path) -> Path:
    for path in output.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return output


class Numbers:
    """The test chain over real stores."""

    def __init__(
        self,
        spark: SparkSession,
        stores: PipelineStores,
        pipeline: Pipeline,
        folder: Path,
        flows: tuple[str, ...],
    ) -> None:
        self.flows = flows
        self.spark = spark
        self.stores = stores
        self.pipeline = pipeline
        self.work = str(folder / "work")

    def claim(self, run_id: str, *contents: object) -> Batch:
        self.stores.store.store_many(contents)
        batch = self.batch(run_id)
        assert batch.claim(10_000) == len(contents)
        return batch

    def batch(self, run_id: str) -> Batch:
        return Batch(self.stores, run_id, self.flows, chain="numbers")

    def engine(self, batch: Batch, step: str) -> Engine:
        return self.at(batch, replace(self.stores.ledger.open_step(batch.run_id, step, 600), crashed=False))

    def at(self, batch: Batch, fence: Fence) -> Engine:
        chain = load_chain(self.pipeline.chain)
        return Engine(self.spark, self.pipeline, chain, self.stores, batch, fence)

    def published(self, run_id: str) -> list[str] | None:
        """The files that a process left for the deliveries."""
        return WorkDir(self.work, LocalFiles(), self.stores.ledger).published(run_id)

    def run_all(self, batch: Batch) -> None:
        """Processes and delivers everywhere."""
        self.engine(batch, "process").process(self.work)
        for flow in self.flows:
            self.engine(batch, f"deliver.{flow}").deliver(flow, self.work)

    def states(self, *flows: str) -> dict[str, set[str]]:
        """Flow -> states found in the ledger for it."""
        ids = [message_id for message_id, _, _ in self.stores.store.view.states()]
        entries = self.stores.ledger.entries(ids).values()
        return {flow: {found[flow].state for found in entries if flow in found} for flow in flows}


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path, clean_output: Path) -> Iterator[Numbers]:
    with opened(spark, tmp_path, "spark_chain:chain", *FLOWS) as numbers:
        yield numbers


@pytest.fixture
def natively(spark: SparkSession, tmp_path: Path, clean_output: Path) -> Iterator[Numbers]:
    """A chain of DataFrame handlers and others."""
    with opened(spark, tmp_path, "native_chain:chain", "lake", "crm", "archive") as numbers:
        yield numbers


@pytest.fixture
def spreading(spark: SparkSession, tmp_path: Path, clean_output: Path) -> Iterator[Numbers]:
    """A chain of DataFrame handlers alone, one of which shuffles."""
    with opened(spark, tmp_path, "native_chain:spreading", "lake") as numbers:
        yield numbers


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each call for a part of a batch was made for."""
    found: list[int] = []
    take = DataFrameFlow._take_in_hand

    def counted(self: DataFrameFlow, flow: str, some: Sequence[LeasedMessage], *, rows: bool) -> None:
        found.append(len(some))
        take(self, flow, some, rows=rows)

    monkeypatch.setattr(DataFrameFlow, "_take_in_hand", counted)
    return found


@contextmanager
def opened(spark: SparkSession, folder: Path, chain: str, *flows: str) -> Iterator[Numbers]:
    database = f"sqlite:///{folder}/numbers.db"
    pipeline = Pipeline(chain, f"{database}?store=numbers", f"{database}?store=numbers_dead")
    with open_pipeline_stores(pipeline.store, pipeline.dead_letter_store) as stores:
        yield Numbers(spark, stores, pipeline, folder, flows)


def delivered(folder: Path, name: str) -> list[tuple[int, int, str]]:
    """(n, doubled, property) of what a destination got, in order of n."""
    lines = [line.split() for path in folder.glob(f"{name}-*") for line in path.read_text().splitlines()]
    return sorted((int(n), int(doubled), seen) for n, doubled, seen in lines)
