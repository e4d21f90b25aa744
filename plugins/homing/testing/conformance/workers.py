"""Consumers and producers for the tests that need processes of their own. Run as `python workers.py <role> <url> …`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

from homing import Message, open_store
from homing.errors import LeaseLostError, NotInFlightError, StoreError
from homing.store import Store

#: In the environment: by how many seconds this process's clock is wrong.
WRONG_BY = "WORKER_CLOCK_IS_WRONG_BY"
#: Before the content of a message whose acknowledgement failed, in what a consumer prints.
UNSETTLED = "unsettled:"


def die_holding(url: str) -> None:
    """Retrieves a message and is killed before it can acknowledge."""
    store = open_store(url)
    while (message := store.retrieve()) is None:
        time.sleep(0.02)
    print(message.id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def hold(url: str) -> None:
    """Retrieves a message, says so, and tells what became of it when its input is closed and it acknowledges."""
    with open_store(url) as store:
        while (message := store.retrieve()) is None:
            time.sleep(0.02)
        print(message.id, flush=True)
        sys.stdin.read()
        try:
            store.acknowledge(message)
        except (LeaseLostError, NotInFlightError):
            print("lost", flush=True)
        else:
            print("acknowledged", flush=True)


def consume(url: str, idle: str, together: str = "") -> None:
    """Prints the content of each message it is handed, and acknowledges it, until there was none for `idle` seconds.

    Printed first: when the answer to an acknowledgement is lost, it is not known whether it was taken. So it prints the
    content again, behind UNSETTLED. With `together`, it says when it is ready and begins when its input is closed.
    """
    with open_store(url) as store:
        if together:
            print("ready", flush=True)
            sys.stdin.read()
        last = time.monotonic()
        while time.monotonic() - last < float(idle):
            try:
                message = store.retrieve()
                if message is not None:
                    print(message.content, flush=True)
                    time.sleep(0.002)  # as handling it would take: who never pauses may keep SQLite to himself
                    last = time.monotonic()
                    acknowledge(store, message)
                    continue
            except StoreError as error:
                print(f"consumer: {error}", file=sys.stderr, flush=True)
                last = time.monotonic()
            time.sleep(0.02)


def acknowledge(store: Store, message: Message) -> None:
    try:
        store.acknowledge(message)
    except StoreError:
        print(f"{UNSETTLED}{message.content}", flush=True)
        raise


def produce(url: str, count: str) -> None:
    """Stores numbers under ids of their own, each again until the store has accepted it, and prints the accepted."""
    with open_store(url) as store:
        for number in range(int(count)):
            while True:
                try:
                    store.store(str(number), id=f"m{number}")
                except StoreError as error:
                    print(f"producer: {error}", file=sys.stderr, flush=True)
                    time.sleep(0.05)
                else:
                    break
            print(number, flush=True)


def set_clock(wrong_by: float) -> None:
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + wrong_by
    time.time_ns = lambda: right_ns() + int(wrong_by * 1e9)


if __name__ == "__main__":
    if WRONG_BY in os.environ:
        set_clock(float(os.environ[WRONG_BY]))
    roles: dict[str, Callable[..., None]] = {
        "die_holding": die_holding,
        "hold": hold,
        "consume": consume,
        "produce": produce,
    }
    roles[sys.argv[1]](*sys.argv[2:])
