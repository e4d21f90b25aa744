"""Latency: a batch of 100 on an idle Airflow, from `store_many()` to the last acknowledgement.

Beside the same DAG shape of stock operators, from the moment its file is there to the end of its last task; its Spark
jobs start a session and end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

from bench.content import payloads
from bench.figures import Row
from bench.progress import say
from bench.rounds import Case, Comparison, rows, take_turns
from bench.scale import Scale
from bench.services import Services
from bench.stack import OURS, STOCK, BenchStack
from demo.airflow_api import wait_until
from homing.stores import open_store

BAR = 0.6
BATCH = 100
_PATIENCE = 300.0


def latency(scale: Scale, services: Services) -> Iterator[Row]:
    stack = services.airflow
    ours = Case("our DAG", lambda: _ours(stack))
    stock = Case("the stock DAG", lambda: _stock(stack))
    # The smaller round comes after the pipeline, which has warmed up what there is to warm up.
    take_turns([ours, stock], scale.latency_rounds, warm_up=scale.latency_rounds > 1)
    comparison = Comparison(
        f"a batch of {BATCH}, idle stack", ours, "stock operators, jobs that do nothing", stock, BAR
    )
    yield from rows("latency", [comparison])


def _ours(stack: BenchStack) -> float:
    stack.wait_until_idle()
    with open_store(stack.store_url) as store:
        expected = store.count()["acknowledged"] + BATCH
        deliveries = stack.arrived() + 2 * BATCH
        began = time.time()
        store.store_many(payloads(BATCH))
        seconds = wait_until(
            # Counting is not free: it starts when everything has arrived.
            lambda: (
                time.time() - began
                if stack.arrived() >= deliveries and store.count()["acknowledged"] == expected
                else None
            ),
            timeout=_PATIENCE,
            what=lambda: f"{BATCH} messages to be acknowledged; {stack.describe(OURS)}",
        )
    say(f"our DAG: {seconds:.1f} s")
    return seconds


def _stock(stack: BenchStack) -> float:
    stack.wait_until_idle()
    run = stack.last_run(STOCK)
    began = time.time()
    stack.signal.touch()

    def ended(task: str) -> str | None:
        seen = stack.task(STOCK, task, run)
        if seen["state"] in ("failed", "upstream_failed"):
            raise RuntimeError(f"the stock DAG failed: {stack.describe(STOCK)}")
        return str(seen["end_date"]) if seen["state"] == "success" else None

    try:
        wait_until(lambda: ended("listen"), timeout=_PATIENCE, what=lambda: f"the signal; {stack.describe(STOCK)}")
    finally:
        stack.signal.unlink()  # the next run waits for the next one
    end = wait_until(lambda: ended("settle"), timeout=_PATIENCE, what=lambda: f"the end; {stack.describe(STOCK)}")
    seconds = datetime.fromisoformat(end.replace("Z", "+00:00")).timestamp() - began
    say(f"the stock DAG: {seconds:.1f} s")
    return seconds
