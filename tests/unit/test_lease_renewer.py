"""LeaseRenewer: a lease is kept while it is wanted, and its loss is told once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from homing.errors import LeaseLostError, NotInFlightError, StoreUnavailableError
from homing.lease_renewer import _SHORTEST, LeaseRenewer

FAR = 30.0


@pytest.fixture
def renewer() -> Iterator[LeaseRenewer]:
    made = LeaseRenewer("test-leases")
    yield made
    made.close()


def until(true: Callable[[], object]) -> None:
    limit = time.monotonic() + FAR
    while not true():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.01)


def test_a_lease_is_renewed_again_and_again_until_it_is_forgotten(renewer: LeaseRenewer) -> None:
    renewed: list[float] = []

    def renew() -> float:
        renewed.append(time.monotonic())
        return 0.3

    renewer.keep("a", "message a", renew, lasts=0.3)
    until(lambda: len(renewed) >= 3)
    renewer.forget("a")
    time.sleep(0.2)
    count = len(renewed)
    time.sleep(0.5)

    assert len(renewed) == count


def test_a_lost_lease_is_told_once_and_the_others_are_kept(renewer: LeaseRenewer) -> None:
    lost: list[Exception] = []
    kept: list[str] = []
    error = LeaseLostError("another consumer has it")

    def renew_lost() -> float:
        raise error

    renewer.keep("lost", "message lost", renew_lost, lasts=0.1, on_lost=lost.append)
    renewer.keep("kept", "message kept", lambda: kept.append("") or 0.3, lasts=0.3)  # type: ignore[func-returns-value]
    until(lambda: lost and len(kept) >= 3)

    assert lost == [error]


def test_a_message_that_is_finished_at_its_store_is_lost_too(renewer: LeaseRenewer) -> None:
    lost: list[Exception] = []

    def renew() -> float:
        raise NotInFlightError("finished")

    renewer.keep("a", "message a", renew, lasts=0.1, on_lost=lost.append)
    until(lambda: lost)


def test_a_store_that_is_away_is_asked_until_it_answers(renewer: LeaseRenewer) -> None:
    asked: list[float] = []

    def renew() -> float:
        asked.append(time.monotonic())
        if len(asked) < 3:
            raise StoreUnavailableError("away")
        return FAR

    renewer.keep("a", "message a", renew, lasts=0.3, on_lost=lambda error: pytest.fail(f"lost: {error}"))
    until(lambda: len(asked) == 3)
    time.sleep(0.3)

    assert len(asked) == 3, "it is renewed, and a third of it is far away"


def test_a_lease_that_looks_over_by_a_wrong_clock_does_not_make_the_renewer_run_hot(renewer: LeaseRenewer) -> None:
    asked: list[float] = []

    def renew() -> float:
        asked.append(time.monotonic())
        raise StoreUnavailableError("away")

    began = time.monotonic()
    renewer.keep("a", "message a", renew, lasts=0.0)
    until(lambda: asked)
    time.sleep(0.5)

    assert len(asked) <= 1 + (time.monotonic() - began) / _SHORTEST


def test_what_is_to_be_kept_no_longer_ends_without_another_renewal(renewer: LeaseRenewer) -> None:
    ended = threading.Event()
    renewer.keep("a", "message a", lambda: pytest.fail("it was renewed"), lasts=FAR, longest=0.1, on_end=ended.set)

    assert ended.wait(FAR)


def test_keeping_a_lease_that_is_kept_lets_its_time_start_anew(renewer: LeaseRenewer) -> None:
    ended = threading.Event()
    renewer.keep("a", "message a", lambda: 0.3, lasts=0.3, longest=0.4, on_end=ended.set)
    renewer.keep("a", "message a", lambda: 0.3, lasts=0.3, longest=FAR)

    assert not ended.wait(1.0)


def test_a_lease_whose_time_started_anew_just_as_it_ended_is_kept(
    renewer: LeaseRenewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed, let_go = threading.Event(), renewer._let_go

    def kept_anew_before(*ended: Any) -> None:
        renewer.keep("a", "message a", renewed.set, lasts=0.3, longest=FAR)  # type: ignore[arg-type]
        let_go(*ended)

    monkeypatch.setattr(renewer, "_let_go", kept_anew_before)
    renewer.keep("a", "message a", lambda: renewed.set() or FAR, lasts=0.3, longest=0.05,  # type: ignore[func-returns-value]
                 on_end=lambda: pytest.fail("it ended"))  # fmt: skip

    assert renewed.wait(5.0)


def test_what_was_kept_anew_while_its_loss_was_noticed_stays(renewer: LeaseRenewer) -> None:
    renewed = threading.Event()

    def renew_lost() -> float:
        renewer.forget("a")  # it came back, under a new lease
        renewer.keep("a", "message a", lambda: renewed.set() or 0.3, lasts=0.3)  # type: ignore[func-returns-value]
        raise LeaseLostError("the old one")

    renewer.keep("a", "message a", renew_lost, lasts=0.1, on_lost=lambda error: pytest.fail(f"lost: {error}"))

    assert renewed.wait(FAR)


def test_closing_ends_the_thread_and_nothing_is_kept_after_it(renewer: LeaseRenewer) -> None:
    renewer.keep("a", "message a", lambda: FAR, lasts=FAR)
    assert any(thread.name == "test-leases" for thread in threading.enumerate())

    renewer.close()
    renewer.keep("b", "message b", lambda: pytest.fail("it was renewed"), lasts=0.03)
    time.sleep(0.2)

    assert not any(thread.name == "test-leases" for thread in threading.enumerate())


def test_what_is_due_can_be_renewed_in_the_callers_thread(renewer: LeaseRenewer) -> None:
    busy, asked = threading.Event(), list[str]()
    renewer.keep("slow", "message slow", lambda: busy.wait(FAR) and FAR, lasts=0.03)
    renewer.keep("a", "message a", lambda: asked.append("") or FAR, lasts=0.9)  # type: ignore[func-returns-value]
    time.sleep(0.5)
    assert not asked, "the thread is busy with the other one"

    renewer.keep("slow", "message slow", lambda: FAR, lasts=FAR, longest=0.0)  # not this thread's to wait for
    renewer.renew_due()

    assert asked
    busy.set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_renews_its_own_leases_and_not_its_parents(renewer: LeaseRenewer) -> None:
    renewer.keep("parents", "message of the parent", lambda: 0.3, lasts=0.3)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        renewed = threading.Event()
        kept = list(renewer._leases)
        renewer.keep("a", "message a", lambda: renewed.set() or FAR, lasts=0.03)  # type: ignore[func-returns-value]
        os.write(writing, b"y" if renewed.wait(FAR) and not kept else b"n")
        os._exit(0)
    os.waitpid(child, 0)
    answer = os.read(reading, 1)
    os.close(reading)
    os.close(writing)

    assert answer == b"y"
