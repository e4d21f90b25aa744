"""What the tasks of a pipeline's runs do, with the very applications they start, one after the other in one process.

Whoever comes after a dead one goes on where it stopped, as a task's retry would: with the same run, at the same task.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from homing.delivery import Batch, PipelineStores, work_files
from homing.errors import HomingError
from homing.spark.jobs import deliver_main, process_main, replay_main
from homing.spark.submit import hadoop_shell

_FIRST_PASS, _REPLAY = "first pass", "replay"
#: How often a task is tried.
TRIES = 2


@dataclass(frozen=True)
class Tasks:
    """Runs batches of one pipeline. `slot` tells apart those who do so at the same time.

    `options` are those of the applications; `replays` is False for one whose failures somebody else replays, and
    `first_passes` for that other one.
    """

    folder: Path
    slot: str
    stores: PipelineStores
    flows: Sequence[str]
    work_dir: str
    batch_size: int
    lease: float
    chain: str = "chaos.chain:chain"
    options: Sequence[str] = ()
    first_passes: bool = True
    replays: bool = True

    def run(self) -> None:
        """One run: claim, process, deliver, settle, replay. Where it is, is kept until it has come to its end."""
        run_id, phase = self._where()
        if phase == _FIRST_PASS:
            self._first_pass(self._batch(run_id))
            self._be_at(run_id, _REPLAY)
        if self.replays:
            self._replay(self._batch(f"{run_id}.replay"), run_id)
        self._kept.unlink()

    def _first_pass(self, batch: Batch) -> None:
        if not self.first_passes:
            return
        if batch.claim(self.batch_size, self.lease):
            arguments = self._arguments(batch, "--work-dir", self.work_dir)
            if _tried(process_main, arguments):
                for flow in self.flows:
                    _tried(deliver_main, [*arguments, "--flow", flow])
        work_files.remove(self.work_dir, batch.run_id, hadoop_shell)
        batch.settle()

    def _replay(self, replay: Batch, run_id: str) -> None:
        again = {*replay.unfinished(run_id), *self.stores.failures.view.overdue(self.lease if self.first_passes else 0)}
        if replay.reclaim(again, self.lease):  # and what it holds already, should it have been interrupted
            _tried(replay_main, self._arguments(replay))
            replay.finish_replay()

    def _batch(self, run_id: str) -> Batch:
        return Batch(self.stores, run_id, self.flows, chain="chaos")

    def _arguments(self, batch: Batch, *more: str) -> list[str]:
        own = ["--chain", self.chain, "--run-id", batch.run_id, "--lease", str(self.lease)]
        return [*own, *self.options, *more]

    # -- where it is -------------------------------------------------------------------------------------------

    @property
    def _kept(self) -> Path:
        return self.folder / f"run of {self.slot}"

    def _where(self) -> tuple[str, str]:
        if not self._kept.exists():
            self._be_at(uuid.uuid4().hex, _FIRST_PASS)
        run_id, phase = json.loads(self._kept.read_text())
        return run_id, phase

    def _be_at(self, run_id: str, phase: str) -> None:
        new = self._kept.with_suffix(".new")
        new.write_text(json.dumps([run_id, phase]))
        new.replace(self._kept)


def keep_running(tasks: Tasks) -> None:
    """Run after run, until somebody says stop."""
    while not (tasks.folder / "stop").exists():
        try:
            tasks.run()
        except (HomingError, OSError) as error:
            sys.stderr.write(f"a task was given up: {type(error).__name__}: {error}\n")
        time.sleep(0.1)


def _tried(main: Callable[[Sequence[str]], int], arguments: list[str]) -> bool:
    """Whether the application came to its end, in as many tries as a task has. A dead JVM ends this process."""
    for _ in range(TRIES):
        try:
            if main(arguments) == 0:
                return True
        except (PySparkException, Py4JJavaError, OSError) as error:  # a full disk is one of these
            sys.stderr.write(f"a step was given up: {type(error).__name__}: {str(error)[:500]}\n")
    return False
