"""A run over large messages needs about as much memory as a few pages of them, however many there are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from homing.portions import MOST_BYTES

MODULE = """
from homing import HandlerChain, destination, transformer


@transformer
def same(order: dict) -> dict:
    return order


@destination
def crm(order: dict):
    raise ValueError("no good")


@destination
def lake(order: dict):
    return order["text"]


chain = HandlerChain("orders", source_flow=[same], destinations_flow=[crm, lake])
"""
SCRIPT = """
import sys
from pathlib import Path
import homing.delivery.arrow.parquet  # loaded on use: what it takes itself is not the messages'
import homing.delivery.arrow.steps
import large_orders
from homing.delivery import Batch, open_pipeline_stores
from homing.delivery.failures import Selection, select
from homing.spark import jobs

FLOWS = ["crm", "lake"]


def peak():
    # What getrusage says may be the peak of the process that started this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def batch(stores, run_id):
    return Batch(stores, run_id, FLOWS, chain="orders")


with open_pipeline_stores(jobs.STORE, jobs.DEAD_LETTER_STORE) as stores:
    for number in range(60):
        stores.store.store({"n": number, "text": "x" * 3_000_000})
    assert batch(stores, "run").claim(1000) == 60
    small = peak()
    common, work = ["--chain", "large_orders:chain", "--without-spark"], ["--work-dir", sys.argv[1]]
    assert jobs.process_main([*common, "--run-id", "run", *work]) == 0
    for flow in FLOWS:
        assert jobs.deliver_main([*common, "--run-id", "run", "--flow", flow, *work]) == 0
    assert batch(stores, "run").settle().failed == 60
    assert len(select(stores, Selection())) == 60
    replay = batch(stores, "replay")
    assert replay.reclaim(replay.unfinished("run")) == 60
    assert jobs.replay_main([*common, "--run-id", "replay"]) == 1
    assert replay.finish_replay().dead_lettered == 60
    print(peak() - small)
"""


def test_a_run_and_a_replay_over_large_messages_take_a_few_pages_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large_orders.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    for name, store in (("HOMING_STORE", "orders"), ("HOMING_DEAD_LETTER_STORE", "dead")):
        monkeypatch.setenv(name, f"sqlite:///{tmp_path}/orders.db?store={store}")

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, f"{tmp_path}/work"], capture_output=True, text=True, timeout=250, check=False
    )

    assert done.returncode == 0, done.stderr[-3000:]
    grown = int(done.stdout.splitlines()[-1])
    assert grown < 24 * MOST_BYTES, f"{grown / 2**20:.0f} MiB for 60 messages of 3 MB"
