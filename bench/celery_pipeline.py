"""The pipeline's work on Celery: `python -m bench.celery_pipeline 200000`, in the peers' environment.

Prints the seconds from the first publication to the last delivery. BENCH_BROKER and BENCH_ARRIVALS say where.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery

from bench.content import payloads
from bench.dags.arrivals import DESTINATIONS, arrive, arrived, price

#: Seconds between two words about how far it is.
_EVERY = 15.0

app = Celery("bench.celery_pipeline", broker=os.environ["BENCH_BROKER"])
app.conf.update(
    broker_transport_options={"confirm_publish": True},
    task_acks_late=True,
    task_ignore_result=True,
    task_default_queue="celery_pipeline",
    broker_connection_retry_on_startup=True,
)


@app.task(name="deliver")
def deliver(destination: str, content: dict[str, Any]) -> None:
    arrive(destination, price(content))


def main(count: int) -> float:
    contents = payloads(count)
    command = [sys.executable, "-m", "celery", "--app", "bench.celery_pipeline", "--quiet", "worker"]
    options = ["--concurrency", "2", "--loglevel", "ERROR", "--without-gossip", "--without-mingle"]
    worker = subprocess.Popen([*command, *options], stdout=sys.stderr)
    try:
        _wait(lambda: bool(app.control.ping(timeout=0.5)), 60, "Celery's worker to start")
        began = time.monotonic()
        _publish(contents)
        wanted = count * len(DESTINATIONS)
        _wait(lambda: _delivered() >= wanted, 300 + count / 100, f"{wanted} deliveries")
        return time.monotonic() - began
    finally:
        worker.terminate()
        try:
            worker.wait(30)
        except subprocess.TimeoutExpired:
            worker.kill()


def _publish(contents: list[dict[str, Any]]) -> None:
    shown = time.monotonic()
    for number, content in enumerate(contents, 1):
        for destination in DESTINATIONS:
            deliver.delay(destination, content)
        if number == len(contents) or time.monotonic() > shown + _EVERY:
            shown = time.monotonic()
            text = f"Celery: {number:,} of {len(contents):,} published, {_delivered():,} deliveries"
            print(text, file=sys.stderr, flush=True)


def _delivered() -> int:
    folder = Path(os.environ["BENCH_ARRIVALS"])
    return sum(arrived(folder, destination) for destination in DESTINATIONS)


def _wait(is_so: Callable[[], bool], timeout: float, what: str) -> None:
    deadline = time.monotonic() + timeout
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:.0f} s for {what}")
        time.sleep(0.05)


if __name__ == "__main__":
    print(main(int(sys.argv[1])))
