"""Listeners that are killed: what merely waited for its next attempt has killed nobody, and what kills is found."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from homing import ListenerConfig, StoreListener, open_store
from homing.errors import TooLargeError
from homing.listener import workers
from homing.message import ACKNOWLEDGED, AVAILABLE, DEAD
from homing.store import CRASHED, Store

LEASE = 1.0
MAX_DELIVERIES = 3

LISTENER = """
import os, sys, time
from homing import ListenerConfig, StoreListener, open_store

def on_message(content):
    if content == "bad" and content in seen:
        os._exit(9)
    seen.append(content)
    print(len(seen), flush=True)
    raise ConnectionError("the destination is down")

seen = []
retry_interval = float(sys.argv[2])
with open_store(sys.argv[1]) as store:
    config = ListenerConfig(polling_interval=0.05, max_retries=1000, retry_interval=retry_interval, lease=1.0)
    listener = StoreListener(store, config)
    listener.attach(on_message)
    listener.start()
    time.sleep(600)
"""


@pytest.fixture
def fragile_url(url: str) -> str:
    return f"{url}?store=orders&max_deliveries={MAX_DELIVERIES}"


@pytest.fixture
def fragile(fragile_url: str) -> Iterator[Store]:
    with open_store(fragile_url) as opened:
        yield opened


def listen_until(url: str, retry_interval: float, calls: int, then: Callable[[], object] = lambda: None) -> int:
    """A listener in a process of its own, killed when its service was called so often and `then` returns; how it
    ended."""
    command = [sys.executable, "-c", LISTENER, url, str(retry_interval)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= calls:
            then()
            process.send_signal(signal.SIGKILL)
            break
    return process.wait(60)


def crashes(store: Any) -> list[int]:
    return sorted(row[1] for page in store.scans().pages(["sequence", "crashes"], 0, 10**9) for row in page)


def until_free(store: Any, until: Callable[..., None]) -> None:
    until(lambda: store.count()["leased"] == 0, 60)


def test_what_waits_for_a_retry_when_its_listener_is_killed_is_never_dead(
    fragile: Any, fragile_url: str, until: Any
) -> None:
    fragile.store_many(["a", "b", "c"])
    for _ in range(MAX_DELIVERIES + 2):
        # Killed only when the last of them is out of the handler's hand, too.
        rested = lambda: until(lambda: crashes(fragile) == [-1, -1, -1])  # noqa: E731
        assert listen_until(fragile_url, 600, 3, rested) == -signal.SIGKILL
        until_free(fragile, until)

    assert fragile.count()[DEAD] == 0
    assert max(crashes(fragile)) <= 0
    listener = StoreListener(fragile, ListenerConfig(polling_interval=0.02))
    listener.attach(lambda content: None)
    listener.start()
    until(lambda: fragile.count()[ACKNOWLEDGED] == 3)
    listener.graceful_stop()


def test_a_message_that_fails_first_and_kills_at_its_next_attempt_is_found(
    fragile: Any, fragile_url: str, until: Any
) -> None:
    fragile.store("bad")
    for _ in range(MAX_DELIVERIES):
        assert listen_until(fragile_url, 0.05, 1000) == 9
        until_free(fragile, until)
    assert fragile.retrieve() is None
    assert fragile.count()[DEAD] == 1


def test_what_is_given_back_while_it_waits_is_forgiven_nothing(fragile: Any, listen: Any, until: Any) -> None:
    def broken(content: object) -> None:
        raise ConnectionError("down")

    fragile.store("a")
    for _ in range(2):
        listener = listen(fragile, broken, max_retries=1000, retry_interval=600)
        until(lambda at=listener: at.metrics().retried)
        until(lambda: crashes(fragile) == [-1])
        listener.graceful_stop(retries=False)
    assert crashes(fragile) == [0]
    assert fragile.count()[AVAILABLE] == 1


def test_an_attempt_waits_while_the_store_cannot_be_told_of_it(
    fragile: Any, listen: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, asked = list[int](), list[object]()
    rest = fragile.rest

    def away(message: object, *, resting: bool) -> None:
        if not resting and len(calls) == 1 and len(asked) < 3:
            asked.append(message)
            raise ConnectionError("the store is away")
        rest(message, resting=resting)

    def broken_once(_: object) -> None:
        calls.append(len(asked))
        if len(calls) == 1:
            raise ConnectionError("down")

    monkeypatch.setattr(fragile, "rest", away)
    fragile.store("a")
    listener = listen(fragile, broken_once, max_retries=5)
    until(lambda: listener.metrics().processed == 1)
    assert calls == [0, 3], "handled again only when the store was told"


@pytest.mark.parametrize("kind", ["sql", "memory"])
def test_what_a_store_gives_up_is_brought_to_the_dead_letter_store(
    fragile: Any, dead: Any, until: Any, monkeypatch: pytest.MonkeyPatch, *, tmp_path: Path, kind: str
) -> None:
    monkeypatch.setattr(workers, "_LOOK_FOR_DEAD_EVERY", 0.05)
    name = f"killed-{tmp_path.name}"
    store = fragile if kind == "sql" else open_store(f"memory://?store={name}&max_deliveries={MAX_DELIVERIES}")
    store.store({"n": 1}, id="m", headers={"trace": "x"})
    for _ in range(MAX_DELIVERIES):
        assert store.claim(1, lease=0.05)
        time.sleep(0.1)
    listener = StoreListener(store, ListenerConfig(polling_interval=0.02, dead_letter_store=dead, lease=0.2))
    listener.attach(lambda content: None)
    listener.start()
    until(lambda: dead.count()[AVAILABLE] == 1)
    until(lambda: store.count()[DEAD] == 0)
    listener.graceful_stop()

    (letter,) = dead.browse(10)
    assert (letter.content, letter.headers["trace"], letter.headers["homing-message-id"]) == ({"n": 1}, "x", "m")
    assert letter.dead_letter_reason == CRASHED
    assert letter.dead_letter_source == store.name
    assert listener.metrics().dead_lettered == 1
    if kind == "memory":
        store.close()


def test_what_the_dead_letter_store_refuses_of_the_dead_holds_up_no_other(
    fragile: Any, plain_dead: Any, until: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "_LOOK_FOR_DEAD_EVERY", 0.05)
    store = plain_dead.store

    def refuse_large(content: object, **more: Any) -> str:
        if content == "large":
            raise TooLargeError("it has too many bytes")
        return str(store(content, **more))

    monkeypatch.setattr(plain_dead, "store", refuse_large)
    fragile.store_many(["large", "small"])
    for message in fragile.claim(2):
        fragile.dead_letter(message, reason=CRASHED)
    listener = StoreListener(fragile, ListenerConfig(polling_interval=0.02, dead_letter_store=plain_dead, lease=0.2))
    listener.attach(lambda content: None)
    listener.start()
    until(lambda: plain_dead.available and fragile.count()[DEAD] == 1)
    assert "stays there, dead" in caplog.text
    listener.graceful_stop()

    assert [letter.content for letter in plain_dead.available] == ["small"]
    assert [message.content for message in fragile.browse(9, state=DEAD)] == ["large"]


def test_a_dead_letter_store_that_is_down_leaves_what_is_dead_where_it_is(
    fragile: Any, plain_dead: Any, until: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "_LOOK_FOR_DEAD_EVERY", 0.05)
    plain_dead.down = {"store"}
    fragile.store(1)
    for _ in range(MAX_DELIVERIES):
        assert fragile.claim(1, lease=0.05)
        time.sleep(0.1)
    listener = StoreListener(fragile, ListenerConfig(polling_interval=0.02, dead_letter_store=plain_dead, lease=0.2))
    listener.attach(lambda content: None)
    listener.start()
    until(lambda: "stay there for now" in caplog.text)
    assert (fragile.count()[DEAD], fragile.count()[ACKNOWLEDGED], len(plain_dead.available)) == (1, 0, 0)
    plain_dead.down = set()
    until(lambda: plain_dead.available and fragile.count()[DEAD] == 0)
    listener.graceful_stop()
