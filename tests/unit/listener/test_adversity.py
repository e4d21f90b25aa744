"""Nothing is lost, and an error says which message and handler, whatever goes wrong around the listener."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

import homing
from homing import lease_renewer, open_store
from homing.errors import LeaseLostError
from homing.listener import in_flight
from homing.message import ACKNOWLEDGED, AVAILABLE, Message
from homing.stores.sql import SqlStore
from tests.clocks import Clock, let_time_pass


def broken(content: Any) -> None:
    raise ValueError("no such customer")


@pytest.mark.parametrize("switch", [{}, {"drop_message_after_max_retries": True}])
def test_message_is_released_and_never_acknowledged_while_the_dead_letter_store_is_down(
    plain: Any, plain_dead: Any, listen: Any, until: Any, *, caplog: pytest.LogCaptureFixture, switch: Any
) -> None:
    plain_dead.down = {"store"}
    plain.store(1)
    listener = listen(plain, broken, max_retries=0, dead_letter_store=plain_dead, **switch)
    until(lambda: listener.metrics().released >= 2)
    assert set(plain.told) == {("m1", False)}
    assert f"message m1 of store plain failed in broken after 1 attempts (ValueError at {__file__}:" in caplog.text
    text = "), and dead-letter store dead did not take it (StoreUnavailableError: no connection to dead)"
    assert text in caplog.text
    assert "no such customer" not in caplog.text

    plain_dead.down = set()
    until(lambda: plain_dead.available)
    until(lambda: plain.told[-1] == ("m1", True))
    assert [letter.content for letter in plain_dead.available] == [1]


def test_dead_letter_store_that_raises_anything_is_a_store_that_is_down(
    plain: Any, plain_dead: Any, listen: Any, until: Any
) -> None:
    def store(*args: Any, **kwargs: Any) -> str:
        raise RuntimeError("bug")

    plain_dead.store = store
    plain.store(1)
    listener = listen(plain, broken, max_retries=0, dead_letter_store=plain_dead)
    until(lambda: listener.metrics().released >= 1)
    assert ("m1", True) not in plain.told


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("odd")])
def test_base_exception_fails_the_message_and_not_the_listener(
    plain: Any, plain_dead: Any, listen: Any, until: Any, error: BaseException
) -> None:
    def on_message(content: Any) -> None:
        if content == "bad":
            raise error

    plain.store("bad")
    plain.store("good")
    listener = listen(plain, on_message, max_retries=0, dead_letter_store=plain_dead)
    until(lambda: listener.metrics().processed == 1)
    until(lambda: plain_dead.available)
    letter = plain_dead.available[0]
    assert letter.headers["homing-message-id"] == "m1"
    assert letter.headers["homing-dead-letter-reason"] == type(error).__qualname__
    assert letter.headers["homing-dead-letter-handler"].endswith("on_message")


def test_error_whose_text_cannot_be_made_is_dead_lettered_all_the_same(
    plain: Any, plain_dead: Any, listen: Any, until: Any
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def on_message(content: Any) -> None:
        raise Mute

    plain.store(1)
    listen(plain, on_message, max_retries=1, dead_letter_store=plain_dead)
    until(lambda: plain_dead.available)


def test_generator_returned_by_a_function_is_a_failure_because_nothing_ran(
    plain: Any, plain_dead: Any, listen: Any, until: Any
) -> None:
    plain.store(1)
    listen(plain, lambda content: (number for number in [content]), max_retries=0, dead_letter_store=plain_dead)
    until(lambda: plain_dead.available)


class Kept:
    """A store that is renewed soon by this machine's clock and whose leases are long by its own, which only goes on
    when a lease was renewed: however slow the machine is, none ends that is kept."""

    lease = 60.0

    def __init__(self, url: str, clock: Clock, until: Callable[..., None]) -> None:
        self.clock, self._until = clock, until
        self.store, self.other = (SqlStore(sa.make_url(url), "orders", clock=clock) for _ in range(2))
        self._renewals, self._renew = 0, self.store.renew
        self.store.renew = self._counted  # type: ignore[method-assign]

    def _counted(self, *args: Any) -> None:
        self._renew(*args)
        self._renewals += 1

    def outlast_leases(self) -> None:
        """More than twice a lease goes by, and at no time another consumer gets anything."""
        for _ in range(3):
            enough = self._renewals + 2  # the first of these may have begun before
            self._until(lambda enough=enough: self._renewals >= enough)
            self.clock.advance(0.9 * self.lease)
            assert self.other.retrieve() is None


@pytest.fixture
def kept(url: str, until: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    monkeypatch.setattr(lease_renewer, "_RENEW_AT", 0.001)
    made = Kept(url, Clock(), until)
    with made.store, made.other:
        yield made


def test_lease_is_renewed_for_as_long_as_the_handler_runs(kept: Kept, listen: Any, until: Any) -> None:
    entered, leave = threading.Event(), threading.Event()
    calls: list[Any] = []

    def on_message(content: Any) -> None:
        calls.append(content)
        entered.set()
        assert leave.wait(60)

    kept.store.store(1)
    listener = listen(kept.store, on_message, lease=kept.lease)
    assert entered.wait(20)
    kept.outlast_leases()
    leave.set()
    until(lambda: listener.metrics().processed == 1)
    assert calls == [1]


def test_lease_is_renewed_while_a_message_waits_for_its_retry(
    kept: Kept, listen: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    waited = Clock()
    monkeypatch.setattr(in_flight, "time", SimpleNamespace(monotonic=waited.seconds))

    def on_message(content: Any) -> None:
        calls.append(content)
        if len(calls) == 1:
            raise OSError

    kept.store.store(1)
    listener = listen(kept.store, on_message, lease=kept.lease, retry_interval=4.5)
    until(lambda: listener.metrics().retried == 1)
    kept.outlast_leases()
    assert calls == [1]
    waited.advance(5)
    until(lambda: listener.metrics().processed == 1)
    assert calls == [1, 1]


class Rigid:
    """Makes a SQL store one that cannot renew."""

    def __init__(self, store: Any) -> None:
        type_without = type("Rigid", (type(store),), {"features": type(store).features - {"renew"}})
        store.__class__ = type_without


def test_handler_that_outlives_its_lease_changes_nothing_and_the_message_comes_back(
    store: Any, url: str, listen: Any, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    Rigid(store)
    entered, leave = threading.Event(), threading.Event()

    def on_message(content: Any) -> None:
        entered.set()
        assert leave.wait(20)

    message_id = store.store(1)
    listener = listen(store, on_message, lease=0.2)
    assert entered.wait(20)
    with open_store(f"{url}?store=orders") as other:
        taken: list[Message] = []
        until(lambda: taken.append(other.retrieve()) or taken[-1])  # type: ignore[func-returns-value]
        leave.set()
        until(lambda: listener.metrics().lost_leases == 1)
        assert listener.metrics().processed == 0
        assert f"message {message_id} of store orders was processed by {on_message.__qualname__}" in caplog.text
        other.acknowledge(taken[-1])
    assert store.count()[ACKNOWLEDGED] == 1


def test_what_lost_its_lease_in_a_handler_that_then_failed_is_not_handled_here_again(
    kept: Kept, url: str, listen: Any, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    entered, leave, calls = threading.Event(), threading.Event(), list[Any]()

    def on_message(content: Any) -> None:
        calls.append(content)
        entered.set()
        assert leave.wait(20)
        raise OSError

    store, other = kept.store, kept.other
    store.store(1)
    listener = listen(store, on_message, lease=kept.lease, retry_interval=0.5)
    assert entered.wait(20)
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:  # as after a pause of this process
        connection.execute("UPDATE homing_orders SET time_next = 1 WHERE lock_token IS NOT NULL")
    taken = other.claim(1, lease=60)
    assert taken
    until(lambda: "is not renewed any more" in caplog.text)
    leave.set()
    until(lambda: listener.metrics().retried == 1)
    time.sleep(1.0)  # the other one goes on with it
    assert calls == [1]
    other.acknowledge(taken[0])
    assert store.count()[ACKNOWLEDGED] == 1


def test_hung_handler_is_named_and_replaced_and_its_message_comes_back(
    store: Any, listen: Any, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    forever = threading.Event()
    calls: Counter[str] = Counter()

    def on_message(content: str) -> None:
        calls[content] += 1
        if content == "bad" and calls["bad"] == 1:
            forever.wait(60)

    hung = store.store("bad")
    listener = listen(store, on_message, lease=1.0, max_handling_time=1.0)
    until(lambda: calls["bad"] == 1)
    store.store("good")
    try:
        until(lambda: store.count()[ACKNOWLEDGED] == 2)
    finally:
        forever.set()
    assert f"{on_message.__qualname__} has had message {hung} of store orders for more than 1 s" in caplog.text
    assert calls["bad"] >= 2
    assert listener.metrics().lost_leases >= 1


def test_store_that_cannot_be_reached_is_polled_again(plain: Any, listen: Any, until: Any) -> None:
    plain.store(1)
    plain.down = {"retrieve"}
    listener = listen(plain, lambda content: None)
    until(lambda: plain.retrievals > 3)
    assert listener.metrics().processed == 0
    plain.down = set()
    until(lambda: listener.metrics().processed == 1)


def test_store_that_raises_a_base_exception_ends_no_thread(plain: Any, listen: Any, until: Any) -> None:
    real, calls = plain.retrieve, []

    def retrieve() -> Message | None:
        calls.append(1)
        if len(calls) < 3:
            raise SystemExit
        return real()  # type: ignore[no-any-return]

    plain.retrieve = retrieve
    plain.store(1)
    listener = listen(plain, lambda content: None)
    until(lambda: listener.metrics().processed == 1)


def test_outcome_is_told_again_to_a_store_that_did_not_answer_and_nothing_is_handled_twice(
    plain: Any, listen: Any, until: Any
) -> None:
    calls: list[Any] = []
    plain.down = {"acknowledge"}
    plain.store(1)
    listener = listen(plain, calls.append)
    until(lambda: calls)
    assert listener.metrics().processed == 0
    plain.down = set()
    until(lambda: listener.metrics().processed == 1)
    assert calls == [1]


def test_store_that_never_takes_the_outcome_is_given_up_on_and_named(
    plain: Any, listen: Any, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plain.down = {"acknowledge"}
    plain.store(1)
    listener = listen(plain, lambda content: None)
    until(lambda: listener.metrics().lost_leases == 1)
    assert "message m1 of store plain was processed" in caplog.text
    assert "will deliver it again" in caplog.text
    assert "m1" in plain.leased


def test_message_that_comes_back_while_it_is_handled_is_not_handled_twice(plain: Any, listen: Any, until: Any) -> None:
    entered, leave = threading.Event(), threading.Event()
    calls: list[Any] = []
    settled: list[str | None] = []

    def on_message(content: Any) -> None:
        calls.append(content)
        entered.set()
        assert leave.wait(20)

    first = Message("m1", 1, lock_token="a", sequence_number=1)  # noqa: S106
    handed_out = [first, replace(first, lock_token="b")]  # noqa: S106

    def acknowledge(message: Any, success: bool = True) -> None:
        if message.lock_token != "b":  # noqa: S105
            raise LeaseLostError
        settled.append(message.lock_token)

    plain.retrieve = lambda: handed_out.pop(0) if handed_out else None
    plain.acknowledge = acknowledge
    listener = listen(plain, on_message, concurrency=2)
    assert entered.wait(20)
    until(lambda: not handed_out)
    leave.set()
    until(lambda: listener.metrics().processed == 1)
    assert (calls, settled) == ([1], ["b"])


def test_store_that_only_peeks_gets_each_message_handled_once(plain: Any, listen: Any, until: Any) -> None:
    """It gives the top message again and again until that one is acknowledged."""
    calls: Counter[Any] = Counter()

    def on_message(content: Any) -> None:
        calls[content] += 1
        if calls[content] == 1:
            raise OSError

    queue = [Message(f"m{number}", number) for number in range(3)]
    plain.retrieve = lambda: queue[0] if queue else None
    plain.acknowledge = lambda message, success=True: queue.pop(0)
    listener = listen(plain, on_message, concurrency=2)
    until(lambda: listener.metrics().processed == 3)
    assert calls == {0: 2, 1: 2, 2: 2}


def test_store_without_a_name_is_called_by_its_type(plain: Any, plain_dead: Any, listen: Any, until: Any) -> None:
    del plain.name, plain_dead.name
    plain.store(1)
    listen(plain, broken, max_retries=0, dead_letter_store=plain_dead)
    until(lambda: plain_dead.available)
    assert plain_dead.available[0].headers["homing-dead-letter-source"] == "PlainStore"


def test_rubbish_from_a_store_neither_ends_the_listener_nor_makes_it_run_hot(
    plain: Any, listen: Any, until: Any
) -> None:
    real, answers = plain.retrieve, ["rubbish", {"id": 7}]
    plain.retrieve = lambda: answers.pop() if answers else real()
    plain.store(1)
    listener = listen(plain, lambda content: None)
    until(lambda: listener.metrics().processed == 1)
    assert answers == []


def test_rubbish_behind_good_messages_neither_loses_nor_stalls_them(plain: Any, listen: Any, until: Any) -> None:
    answers: list[Any] = [Message("a", 1), "rubbish", Message("b", 2), Message([], 3), Message("c", 4, headers=None)]  # type: ignore[arg-type]
    seen: list[Any] = []
    settled: list[str] = []

    class Service:
        def on_messages(self, contents: list[Any]) -> None:
            seen.extend(contents)

    plain.retrieve = lambda: answers.pop(0) if answers else None
    plain.acknowledge = lambda message, success=True: settled.append((message.id, success))
    listen(plain, Service(), max_retries=0)
    until(lambda: {("a", True), ("b", True)} <= set(settled))
    assert seen == [1, 2]


KILLED = """
import sys, threading
from homing import ListenerConfig, StoreListener, open_store

def on_message(content):
    print("handling", content, flush=True)
    threading.Event().wait(600)

listener = StoreListener(open_store(sys.argv[1]), ListenerConfig(polling_interval=0.05, lease=600))
listener.attach(on_message)
listener.start()
listener.join()
"""


def test_message_of_a_listener_that_is_killed_comes_back(store: Any, url: str, listen: Any, until: Any) -> None:
    store.store("precious")
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, f"{url}?store=orders"],
        env={"PYTHONPATH": str(Path(homing.__path__[0]).parent)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "handling precious\n"
        assert store.count()[AVAILABLE] == 0
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()  # type: ignore[union-attr]
    seen: list[Any] = []
    let_time_pass(store, 600)
    listener = listen(store, seen.append)
    until(lambda: listener.metrics().processed == 1)
    assert seen == ["precious"]
    assert store.count()[ACKNOWLEDGED] == 1
