"""A driver that a chaos run on Spark kills: `spark-submit spark_driver.py <folder> <slot> <what it does>`.

Does what the tasks of a pipeline's runs do, with the very applications they submit, one step after the other.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from chaos.destination import FLOWS
from chaos.tasks import Tasks, keep_running
from chaos.workers import DEAD_LETTERS, STORE, ready
from homing.delivery import open_pipeline_stores

LEASE = 20.0  # Spark must start in it
BATCH = 400
ALL, FIRST_PASSES, REPLAYS = "all", "first passes", "replays"


def main(folder: Path, slot: str, chain: str, does: str) -> None:
    ready(folder, os.getppid())  # the JVM that spark-submit became
    with open_pipeline_stores(os.environ[STORE], os.environ[DEAD_LETTERS]) as stores:
        tasks = Tasks(
            folder,
            slot,
            stores,
            FLOWS,
            str(folder / "work" / "runs"),
            BATCH,
            LEASE,
            chain,
            first_passes=does != REPLAYS,
            replays=does != FIRST_PASSES,
        )
        keep_running(tasks)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
