"""The driver that a chaos run on Spark kills: `spark-submit spark_driver.py <folder> <work directory>`.

Does what the tasks of a pipeline's runs do, with the very applications they submit, one step after the other. A driver
that comes after a dead one goes on with its run, as a task's retry would.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from chaos.destination import FLOWS
from chaos.workers import ready
from homing.delivery import Batch, PipelineStores, open_pipeline_stores, work
from homing.errors import HomingError
from homing.spark.app import deliver_main, process_main, replay_main

LEASE = 60.0  # Spark must start in it
BATCH = 400
_TRIES = 2


class Driver:
    """Runs batches, until somebody says stop."""

    def __init__(self, folder: Path, work_dir: str, stores: PipelineStores) -> None:
        self._folder, self._work_dir, self._stores = folder, work_dir, stores

    def run(self) -> None:
        """One run: claim, process, deliver, settle, replay. Its id is kept until it has come to its end."""
        kept = self._folder / "run"
        if not kept.exists():
            kept.write_text(uuid.uuid4().hex)
        batch = self._batch(kept.read_text())
        if batch.claim(BATCH, LEASE):
            arguments = self._arguments(batch, "--work-dir", self._work_dir)
            if _tried(process_main, arguments):
                for flow in FLOWS:
                    _tried(deliver_main, [*arguments, "--flow", flow])
        work.remove(self._work_dir, batch.run_id)
        batch.settle()
        self._replay(self._batch(f"{batch.run_id}.replay"), batch)
        kept.unlink()

    def _replay(self, replay: Batch, batch: Batch) -> None:
        again = {*batch.unfinished(batch.run_id), *self._stores.failures.overdue(0)}
        if again and replay.reclaim(again, LEASE):
            _tried(replay_main, self._arguments(replay))
            replay.finish_replay()

    def _batch(self, run_id: str) -> Batch:
        return Batch(self._stores, run_id, FLOWS, chain="chaos")

    def _arguments(self, batch: Batch, *more: str) -> list[str]:
        return ["--chain", "chaos.chain:chain", "--run-id", batch.run_id, "--lease", str(LEASE), *more]


def _tried(main: Callable[[Sequence[str]], int], arguments: list[str]) -> bool:
    """Whether the application came to its end, in as many tries as a task has. A dead JVM ends the driver."""
    for _ in range(_TRIES):
        try:
            if main(arguments) == 0:
                return True
        except (PySparkException, Py4JJavaError, OSError) as error:  # a full disk is one of these
            sys.stderr.write(f"a step was given up: {type(error).__name__}: {str(error)[:500]}\n")
    return False


def main(folder: Path, work_dir: str) -> None:
    ready(folder, os.getppid())  # the JVM that spark-submit became
    with open_pipeline_stores(os.environ["HOMING_STORE"], os.environ["HOMING_DEAD_LETTER_STORE"]) as stores:
        driver = Driver(folder, work_dir, stores)
        while not (folder / "stop").exists():
            try:
                driver.run()
            except HomingError as error:
                sys.stderr.write(f"a run was given up: {error}\n")
            time.sleep(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
