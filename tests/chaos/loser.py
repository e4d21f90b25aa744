"""A worker that loses messages, for the harness to find out: it acknowledges a batch before it delivers it."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from chaos.destination import FLOWS, Destination, DestinationError
from chaos.workers import ready
from homing import open_store


def lose(folder: Path, store_url: str, dead_url: str) -> None:
    destination = Destination(folder)
    with open_store(store_url) as store, open_store(dead_url) as dead:
        ready(folder)
        while not (folder / "stop").exists():
            batch = store.claim(1000)
            store.settle(batch)
            time.sleep(0.5)  # nearly always between the two, wherever the kill comes
            for message in batch:
                number = message.content["number"]
                try:
                    for flow in () if destination.drops(message.id, number) else FLOWS:
                        destination.take(message.id, flow, number)
                except DestinationError as error:
                    dead.store(replace(message, dead_letter_reason=str(error)))


if __name__ == "__main__":
    lose(Path(sys.argv[1]), *sys.argv[2:])
