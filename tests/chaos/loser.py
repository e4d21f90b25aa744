"""Workers that are wrong on purpose, for the harness to find out: `python -m tests.chaos.loser <which> <folder>`."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from chaos.destination import FLOWS, Destination, DestinationError
from chaos.workers import DEAD_LETTERS, STORE, ready
from homing import Message, open_store
from homing.store import Store


def lose(store: Store, dead: Store, destination: Destination) -> None:
    """Acknowledges a batch before it delivers it."""
    batch = store.claim(1000)
    store.settle(batch)
    time.sleep(0.5)  # nearly always between the two, wherever the kill comes
    for message in batch:
        _handle(message, dead, destination)


def bury(store: Store, dead: Store, destination: Destination) -> None:
    """Makes one of ten messages a dead letter that nobody has tried to deliver, with a reason that sounds well."""
    for message in store.claim(1000):
        if message.content["number"] % 10 == 0:
            dead.store(replace(message, headers={"homing-message-id": message.id}, dead_letter_reason="crashed"))
        else:
            _handle(message, dead, destination)
        store.acknowledge(message)


def forge(store: Store, dead: Store, destination: Destination) -> None:
    """Keeps of a dead letter's content only the number."""
    for message in store.claim(1000):
        _handle(message, dead, destination, {"number": message.content["number"]})
        store.acknowledge(message)


def _handle(message: Message, dead: Store, destination: Destination, kept: object = None) -> None:
    for _ in range(3):
        try:
            for flow in () if destination.drops(message.id, message.content) else FLOWS:
                destination.take(message.id, flow, message.content)
        except DestinationError as error:
            reason = type(error).__name__
        else:
            return
    headers = {"homing-message-id": message.id}
    content = message.content if kept is None else kept
    dead.store(replace(message, content=content, headers=headers, dead_letter_reason=reason))


def main(which: str, folder: Path) -> None:
    destination = Destination(folder)
    with open_store(os.environ[STORE]) as store, open_store(os.environ[DEAD_LETTERS]) as dead:
        ready(folder)
        while not (folder / "stop").exists():
            {"lose": lose, "bury": bury, "forge": forge}[which](store, dead, destination)
            time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
