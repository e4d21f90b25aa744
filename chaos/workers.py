"""The processes a chaos run harms: `python -m chaos.workers <role> <folder> <slot>`. The environment names the stores.

Whoever delivers does so with the product's own loops: a StoreListener, the applications of a pipeline, an intake, a
BusListener.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaos.destination import FLOWS, Destination
from chaos.messages import content_of, id_of
from chaos.story import BEGAN, FAILED, append, lines
from homing import ListenerConfig, Message, StoreListener, bus, open_store
from homing.delivery import open_pipeline_stores, take_in
from homing.errors import HomingError, StoreUnavailableError

#: The variables that say where messages are generated to, delivered from, and kept when they are dead.
SOURCE, STORE, DEAD_LETTERS = "HOMING_CHAOS_SOURCE", "HOMING_STORE", "HOMING_DEAD_LETTER_STORE"
#: For how long a listener holds messages without a sign of life, in seconds; and a pipeline's worker, whose batch waits
#: from one task to the next.
LEASE, BATCH_LEASE = 4.0, 10.0
#: How many deliveries one worker may have made that nobody has noted: what one fault may cost in duplicates.
CHUNK = 10
BATCH = 100
#: After the first attempt.
RETRIES = 2
#: The queue of the embedded bus.
QUEUE = "orders"
#: The name of the flow by which messages come into a pipeline's store, in their story.
INTAKE = "intake"
_MANY = 200

Send = Callable[[int], Any]


def generate(folder: Path, _slot: str) -> None:
    """Stores numbered messages, each again until it is accepted; goes on where its predecessor died."""
    attempted, accepted = folder / "attempted", folder / "accepted"
    pause = float(os.environ.get("HOMING_CHAOS_PAUSE", "0.01"))
    with _sender(os.environ[SOURCE]) as send:
        ready(folder)
        while not (folder / "enough").exists():
            done = len(lines(accepted))
            number = done if len(lines(attempted)) > done else _next(attempted, done)
            try:
                send(number)
            except HomingError as error:
                _say(f"not accepted: {error}")
                time.sleep(0.1)
                continue
            append(accepted, f"{id_of(number)} {time.time() - time.monotonic():.1f}")
            time.sleep(pause)


def _next(attempted: Path, number: int) -> int:
    append(attempted, id_of(number))
    return number


@contextmanager
def _sender(url: str) -> Iterator[Send]:
    """What stores the message of a number: in a store, or in a queue of the embedded bus."""
    if url.startswith("bus:"):
        with bus.MessageSender(url.removeprefix("bus:"), queue=QUEUE) as sender:
            yield lambda number: sender.send(bus.Message(body=content_of(number), message_id=id_of(number)))
    else:
        with open_store(url) as store:
            yield lambda number: store.store(content_of(number), id=id_of(number))


def listen(folder: Path, _slot: str) -> None:
    """A StoreListener whose service delivers to every flow."""
    destination = Destination(folder)

    def service(message: Message) -> None:
        if not destination.drops(message.id, message.content):
            for flow in FLOWS:
                destination.take(message.id, flow, message.content)

    with open_store(os.environ[STORE]) as store, open_store(os.environ[DEAD_LETTERS]) as dead:
        config = ListenerConfig(
            polling_interval=0.1, max_retries=RETRIES, retry_interval=0.2, dead_letter_store=dead, lease=LEASE
        )
        with StoreListener(store, config) as listener:
            listener.attach(service)
            listener.start()
            ready(folder)
            _wait_for_the_end(folder)


def deliver(folder: Path, slot: str) -> None:
    """A pipeline without Airflow and Spark: one process does all the tasks of a run, each with its application."""
    from chaos.tasks import Tasks, keep_running

    with open_pipeline_stores(os.environ[STORE], os.environ[DEAD_LETTERS]) as stores:
        ready(folder)
        keep_running(
            Tasks(
                folder,
                slot,
                stores,
                FLOWS,
                str(folder / "work" / "runs"),
                BATCH,
                BATCH_LEASE,
                options=["--without-spark"],
            )
        )


def intake(folder: Path, _slot: str) -> None:
    """Takes a broker's messages into the pipeline's store, again and again, as a sensor does."""
    ready(folder)
    while not (folder / "stop").exists():
        try:
            with open_store(os.environ[SOURCE]) as source, open_store(os.environ[STORE]) as target:
                while not (folder / "stop").exists():
                    if not take_in(source, target, _MANY):
                        time.sleep(0.1)
        except HomingError as error:
            _say(f"an intake was given up: {error}")
            time.sleep(0.1)


def bus_intake(folder: Path, _slot: str) -> None:
    """A BusListener whose service stores what comes in the pipeline's store, which knows the ids."""
    book = Destination(folder).book
    with open_store(os.environ[STORE]) as target:

        def service(message: bus.Message) -> None:
            assert message.message_id is not None
            book.tell(BEGAN, message.message_id, INTAKE)
            while not (folder / "stop").exists():
                try:
                    target.store(message.body, id=message.message_id)
                except StoreUnavailableError as error:  # no message's fault: it is kept until the store is back
                    _say(f"not taken in yet: {error}")
                    time.sleep(0.1)
                except HomingError as error:
                    book.tell(FAILED, message.message_id, INTAKE, type(error).__name__)
                    raise
                else:
                    return
            raise InterruptedError("the run is over")

        listener = bus.BusListener(os.environ[SOURCE].removeprefix("bus:"), queue=QUEUE)
        listener.attach(service)
        with listener:
            ready(folder)
            _wait_for_the_end(folder)


def _wait_for_the_end(folder: Path) -> None:
    while not (folder / "stop").exists():
        time.sleep(0.1)


def ready(folder: Path, pid: int | None = None) -> None:
    """Says that this process, or that of `pid`, is at work, and worth killing."""
    (folder / f"ready.{pid or os.getpid()}").touch()


def is_ready(folder: Path, pid: int) -> bool:
    return (folder / f"ready.{pid}").exists()


#: What a process can be told to be.
ROLES = {"generate": generate, "listen": listen, "deliver": deliver, "intake": intake, "bus_intake": bus_intake}


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _sleep(seconds: float, /) -> None:
    threading.Event().wait(seconds)


if __name__ == "__main__":
    if "FAKETIME_TIMESTAMP_FILE" in os.environ:
        setattr(time, "sleep", _sleep)  # noqa: B010 - libfaketime 0.9.10 breaks the call behind it, whatever the time
    ROLES[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
