"""What is left to do of a message takes its place; whoever dies in between leaves the message, or both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import homing
from homing.errors import StoreUnavailableError
from homing.message import ACKNOWLEDGED, AVAILABLE
from homing.stores.sql import SqlStore

_DYING = """
import os, signal, sys
from homing import ListenerConfig, StoreListener, open_store
from homing.listener import Progress
from homing.stores.sql import SqlStore

url, dies_in = sys.argv[1:]

def on_message(content):
    setattr(SqlStore, dies_in, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    if dies_in == "store":
        raise Progress("half done")
    raise OSError("no")

config = ListenerConfig(
    polling_interval=0.05, max_retries=3 if dies_in == "store" else 0, lease=1.0,
    dead_letter_store=open_store(url + "?store=dead"),
)
listener = StoreListener(open_store(url + "?store=orders"), config)
listener.attach(on_message)
listener.start()
listener.join()
"""


def die_in(url: str, method: str) -> None:
    """A listener whose service fails is killed when it calls this method of its store."""
    environment = {**os.environ, "PYTHONPATH": str(Path(homing.__path__[0]).parent)}
    command = [sys.executable, "-c", _DYING, url, method]
    ended = subprocess.run(command, env=environment, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL, "it came past the place where it was to die"


@pytest.mark.chaos
def test_a_message_is_finished_only_when_what_is_left_of_it_is_stored(
    store: Any, url: str, listen: Any, until: Any
) -> None:
    store.store("order")
    die_in(url, "store")

    seen: list[Any] = []
    listen(store, seen.append)

    until(lambda: store.count()[ACKNOWLEDGED] == 1)
    assert seen == ["order"]


@pytest.mark.chaos
def test_a_message_dead_lettered_by_one_who_died_then_is_one_dead_letter_in_the_end(
    store: Any, dead: Any, url: str, listen: Any, until: Any
) -> None:
    store.store("order")
    die_in(url, "acknowledge")
    assert dead.count()[AVAILABLE] == 1

    def fails(content: Any) -> None:
        raise OSError(f"no {content}")

    listen(store, fails, max_retries=0, dead_letter_store=dead)

    until(lambda: store.count()[ACKNOWLEDGED] == 1)
    assert dead.count()[AVAILABLE] == 1


def test_a_group_whose_settlement_failed_is_settled_one_by_one(
    store: Any, listen: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("no connection")

    class Service:
        def on_messages(self, contents: list[Any]) -> None:
            monkeypatch.setattr(SqlStore, "settle", away)

    store.store_many(range(3))
    listener = listen(store, Service(), batch_size=3)

    until(lambda: listener.metrics().processed == 3)
    listener.graceful_stop()
    assert store.count()[ACKNOWLEDGED] == 3


def test_a_handler_that_fails_after_its_message_was_taken_from_it_makes_no_dead_letter(
    store: Any, dead: Any, listen: Any, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    go_on, calls = threading.Event(), list[str]()

    def on_message(content: str) -> None:
        calls.append(content)
        if len(calls) == 1:
            go_on.wait(60)
            raise OSError("too late")

    store.store("slow")
    listener = listen(store, on_message, lease=1.0, max_handling_time=1.0, max_retries=0, dead_letter_store=dead)
    try:
        until(lambda: listener.metrics().processed == 1)  # by another thread: the first one counts as hung
    finally:
        go_on.set()

    until(lambda: "failed in" in caplog.text)
    listener.graceful_stop()
    assert sum(dead.count().values()) == 0
    assert store.count()[ACKNOWLEDGED] == 1
