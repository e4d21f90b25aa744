"""Small batches and replays where Spark is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import os
from homing import HandlerChain, destination, message_filter


@message_filter
def wanted(order: dict) -> bool:
    return order["n"] != 0


@destination
def lake(order: dict): ...


@destination
def crm(order: dict):
    if order["n"] == 2 and "MENDED" not in os.environ:
        raise ConnectionError("down")


chain = HandlerChain("orders", source_flow=wanted, destinations_flow=[lake, crm])
"""
# An import that raises, as it does where a package is not installed.
MISSING = """
import sys


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())
"""
SMALL_BATCH = """
import os
from homing.delivery import Batch, open_pipeline_stores
from homing.spark import jobs

FLOWS = ["lake", "crm"]
work = ["--work-dir", sys.argv[1]]


def arguments(run_id):
    return ["--chain", "orders_without_spark:chain", "--without-spark", "--run-id", run_id]


with open_pipeline_stores(jobs.STORE, jobs.DEAD_LETTER_STORE) as stores:
    stores.store.store_many([{"n": n} for n in range(4)])
    batch = Batch(stores, "run", FLOWS, chain="orders")
    assert batch.claim(10) == 4
    assert jobs.process_main([*arguments("run"), *work]) == 0
    for flow in FLOWS:
        assert jobs.deliver_main([*arguments("run"), *work, "--flow", flow]) == 0
    settled = batch.settle()
    assert (settled.delivered, settled.dropped, settled.failed) == (2, 1, 1), settled

    replay = Batch(stores, "replay", FLOWS, chain="orders")
    assert replay.reclaim(replay.unfinished("run")) == 1
    assert jobs.replay_main(arguments("replay")) == 1
    os.environ["MENDED"] = "yes"
    assert jobs.replay_main(arguments("replay")) == 0
    assert replay.finish_replay().dead_lettered == 0
"""
FAILING = """
from homing.delivery import Batch, open_pipeline_stores
from homing.delivery.local_replay import replay_in_process
from homing.pipeline import load_chain

URLS = [f"sqlite:///{sys.argv[1]}/orders.db?store={name}" for name in ("orders", "dead")]
with open_pipeline_stores(*URLS) as stores:
    stores.store.store_many([{"n": n} for n in range(4)])
    batch = Batch(stores, "run", ["lake", "crm"], chain="orders")
    batch.claim(10)
    replay_in_process(stores, batch, load_chain("orders_without_spark:chain"))
    assert batch.settle().failed == 1
"""
REPLAY = """
from homing.cli.main import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "orders_without_spark.py").write_text(MODULE)
    stores = {
        name: f"sqlite:///{tmp_path}/orders.db?store={store}"
        for name, store in (("HOMING_STORE", "orders"), ("HOMING_DEAD_LETTER_STORE", "dead"))
    }
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, **stores, "PYTHONPATH": path}


def run(script: str, *arguments: str, missing: set[str], environment: dict[str, str]) -> str:
    """What it prints; it is to end well."""
    code = MISSING.replace("{missing}", repr(missing)) + script
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_small_batch_is_processed_delivered_settled_and_replayed(environment: dict[str, str], tmp_path: Path) -> None:
    run(SMALL_BATCH, f"{tmp_path}/work", missing={"pyspark", "py4j"}, environment=environment)


def test_failed_messages_are_replayed_from_the_command_line(environment: dict[str, str], tmp_path: Path) -> None:
    missing = {"pyspark", "py4j", "pyarrow"}
    run(FAILING, str(tmp_path), missing=missing, environment=environment)

    environment["MENDED"] = "yes"
    stores = [environment["HOMING_STORE"], "--dead-letter-store", environment["HOMING_DEAD_LETTER_STORE"]]
    command = ["replay", "--store", *stores, "--chain", "orders_without_spark:chain", "--all", "-o", "json"]
    told = run(REPLAY, *command, missing=missing, environment=environment)

    assert '"still_failing": 0' in told
    assert '"delivered": 1' in told
