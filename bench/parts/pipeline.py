"""Pipeline: many messages from `store_many` to the last acknowledgement, through the real DAG with two destinations.

Beside Celery on RabbitMQ: two tasks per message, confirmed publishing, late acknowledgement, two worker processes.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

from bench import peers
from bench.content import payloads
from bench.dags.arrivals import DESTINATIONS, arrived
from bench.figures import Row
from bench.player import ROOT
from bench.progress import say
from bench.rounds import Case, Comparison, rows, take_turns
from bench.scale import Scale
from bench.services import Services
from bench.stack import OURS, BenchStack
from homing.stores import open_store

_EVERY = 15.0


def pipeline(scale: Scale, services: Services) -> Iterator[Row]:
    count = scale.pipeline_messages
    # Celery's turn is over before Airflow is started, which would take a part of the machine from it.
    celery = Case("Celery", lambda: _celery(services, count))
    take_turns([celery], 1, warm_up=False)
    ours = Case("Homing", lambda: _ours(services.airflow, count))
    take_turns([ours], 1, warm_up=False)
    what = f"{count:,} messages, 2 destinations"
    yield from rows("pipeline", [Comparison(what, ours, "Celery on RabbitMQ, 2 tasks a message", celery)])


def _ours(stack: BenchStack, count: int) -> float:
    stack.wait_until_idle()
    before = stack.arrived()
    deadline, shown = time.monotonic() + 600 + count / 100, time.monotonic()
    with open_store(stack.store_url) as store:
        acknowledged = store.count()["acknowledged"]
        contents = payloads(count)
        say(f"storing {count:,} messages")
        began = time.monotonic()
        store.store_many(contents)
        say(f"stored after {time.monotonic() - began:.1f} s")
        while stack.arrived() - before < 2 * count or store.count()["acknowledged"] - acknowledged < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not settled in time; {stack.describe(OURS)}; {store.count()}")
            if time.monotonic() > shown + _EVERY:
                shown = time.monotonic()
                say(f"{stack.arrived() - before:,} of {2 * count:,} deliveries; {stack.describe(OURS)}")
            time.sleep(0.25)
        seconds = time.monotonic() - began
    for destination in DESTINATIONS:
        say(f"{destination} got {arrived(stack.arrivals, destination):,}")
    return seconds


def _celery(services: Services, count: int) -> float:
    folder = services.folder / "celery"
    folder.mkdir()
    done = subprocess.run(
        [str(peers.PYTHON), "-m", "bench.celery_pipeline", str(count)],
        cwd=ROOT,
        env={
            **os.environ,
            "BENCH_BROKER": services.rabbitmq.url,
            "BENCH_ARRIVALS": str(folder),
            "PYTHONWARNINGS": "ignore",
            "PYTHONPATH": str(ROOT),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=900 + count / 50,
    )
    if done.returncode:
        raise RuntimeError(f"Celery's pipeline ended with {done.returncode}; what it said is above")
    return float(done.stdout.splitlines()[-1])
