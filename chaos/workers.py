"""The processes a chaos run kills: `python -m chaos.workers <role> <folder> <store> <dead-letter store>`."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from chaos.destination import FLOWS, Destination, DestinationError, append, is_unwanted, lines
from homing import ListenerConfig, Message, StoreListener, open_store
from homing.delivery import Batch, PipelineStores, open_pipeline_stores, records, settling
from homing.errors import HomingError, StoreError
from homing.ledger import DELIVERED, DROPPED, FAILED, SOURCE_FLOW, Entry

LEASE = 3.0
#: How many deliveries a pipeline's worker makes before it notes them: what one fault may cost in duplicates.
CHUNK = 10
BATCH = 40
_TRIES = 3


def generate(folder: Path, store_url: str, _dead: str, *, pause: float = 0.01) -> None:
    """Stores numbered messages, each again until it is accepted; goes on where its predecessor died."""
    attempted, accepted = folder / "attempted", folder / "accepted"
    with open_store(store_url) as store:
        ready(folder)
        while not (folder / "enough").exists():
            done = len(lines(accepted))
            number = done if len(lines(attempted)) > done else _next(attempted, done)
            try:
                store.store({"number": number}, id=f"m{number}")
            except StoreError as error:
                _say(f"not accepted: {error}")
                time.sleep(0.1)
                continue
            append(accepted, f"m{number}")
            time.sleep(pause)


def _next(attempted: Path, number: int) -> int:
    append(attempted, f"m{number}")
    return number


def listen(folder: Path, store_url: str, dead_url: str) -> None:
    """A StoreListener whose service delivers to every flow."""
    destination = Destination(folder)

    def service(message: Message) -> None:
        number = message.content["number"]
        if not destination.drops(message.id, number):
            for flow in FLOWS:
                destination.take(message.id, flow, number)

    with open_store(store_url) as store, open_store(dead_url) as dead:
        config = ListenerConfig(
            polling_interval=0.1, max_retries=2, retry_interval=0.2, dead_letter_store=dead, lease=LEASE
        )
        with StoreListener(store, config) as listener:
            listener.attach(service)
            listener.start()
            ready(folder)
            while not (folder / "stop").exists():
                time.sleep(0.1)


def deliver(folder: Path, store_url: str, dead_url: str) -> None:
    """A pipeline without Airflow and Spark: the same protocol, one process doing all the tasks of a run."""
    destination = Destination(folder)
    # Airflow would try a settlement that failed again. Here nobody does: what it holds comes back as soon as all else.
    settling.DEFAULT_LEASE = LEASE
    with open_pipeline_stores(store_url, dead_url) as stores:
        ready(folder)
        while not (folder / "stop").exists():
            try:
                _run(stores, destination)
            except HomingError as error:
                _say(f"run given up: {error}")
            time.sleep(0.1)


def _run(stores: PipelineStores, destination: Destination) -> None:
    batch = Batch(stores, uuid.uuid4().hex, FLOWS, chain="chaos")
    if batch.claim(BATCH, LEASE):
        _deliver(stores, batch, destination)
    batch.settle()
    again = {*batch.unfinished(batch.run_id), *stores.failures.overdue(LEASE)}
    replay = Batch(stores, uuid.uuid4().hex, FLOWS, chain="chaos")
    if again and replay.reclaim(again, LEASE):
        for _ in range(_TRIES):
            _deliver(stores, replay, destination)
            if not replay.acknowledge_complete():
                return
            time.sleep(0.1)
        replay.finish_replay()


def _deliver(stores: PipelineStores, batch: Batch, destination: Destination) -> None:
    fence = stores.ledger.open_step(batch.run_id, "deliver", LEASE)
    entries: list[Entry] = []
    for blank, number in _to_do(stores, batch):
        entries.append(_attempt(destination, blank, number))
        if len(entries) >= CHUNK:
            stores.ledger.record(fence, entries)
            stores.ledger.renew_step(fence, LEASE)
            for held in batch.held():
                held.store.renew(held.lease, LEASE)
            entries = []
    stores.ledger.record(fence, entries)
    stores.ledger.close_step(fence)


def _to_do(stores: PipelineStores, batch: Batch) -> Iterator[tuple[Entry, int]]:
    for held in batch.held():
        rows = list(held.store.batch_rows(held.lease))
        known = stores.ledger.known([records.subject(row).message_id for row in rows])
        for row in rows:
            about, number = records.subject(row), records.origin_of(row).message.content["number"]
            before = known.get((about.message_id, about.life), {})
            if is_unwanted(number):
                yield about.entry(SOURCE_FLOW, DROPPED), number
                continue
            for flow in FLOWS:
                if flow not in before or not before[flow].done:
                    yield about.entry(flow, FAILED), number


def _attempt(destination: Destination, blank: Entry, number: int) -> Entry:
    if destination.drops(blank.message_id, number):
        return blank
    try:
        destination.take(blank.message_id, blank.flow, number)
    except DestinationError as error:
        told: dict[str, Any] = {"type": "DestinationError", "message": str(error), "handler": blank.flow}
        return blank._replace(error={**told, "stack": "", "attempt": 1})
    return blank._replace(state=DELIVERED)


def ready(folder: Path, pid: int | None = None) -> None:
    """Says that this process, or that of `pid`, is at work, and worth killing."""
    (folder / f"ready.{pid or os.getpid()}").touch()


def is_ready(folder: Path, pid: int) -> bool:
    return (folder / f"ready.{pid}").exists()


#: What a process can be told to be. Who trickles generates few messages, for those who take their time.
ROLES = {"generate": generate, "trickle": partial(generate, pause=0.25), "listen": listen, "deliver": deliver}


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    ROLES[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
