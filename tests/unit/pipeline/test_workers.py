"""What several threads work off together."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from homing.pipeline.workers import Backlog, Workers


def test_a_backlog_is_worked_off_by_as_many_threads_as_it_asks_for() -> None:
    together, done = threading.Barrier(3, timeout=60), list[int]()

    def work(number: int) -> None:
        together.wait()  # only three at the same time get past this
        done.append(number)

    with Workers("test", 3) as workers:
        workers.work_off([Backlog(work, range(4), threads=2), Backlog(work, range(4, 6), threads=1)])

    assert sorted(done) == list(range(6))


def test_the_first_error_ends_what_all_threads_do_and_is_raised() -> None:
    begun, raised, done = threading.Event(), threading.Event(), list[int]()

    def fail(_: int) -> None:
        assert begun.wait(60)
        raised.set()
        raise ValueError("no")

    def work(number: int) -> None:
        begun.set()
        assert raised.wait(60)
        done.append(number)

    with Workers("test", 2) as workers, pytest.raises(ValueError, match="no"):
        workers.work_off([Backlog(fail, [1]), Backlog(work, range(10_000))])

    assert len(done) < 10_000


@pytest.mark.usefixtures("keyboard")
def test_a_person_who_interrupts_is_obeyed_at_once_and_the_other_threads_take_nothing_more() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), list[int]()

    def interrupt(_: int) -> None:
        assert begun.wait(60)
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(60)

    def work(number: int) -> None:
        begun.set()
        assert go_on.wait(60)
        done.append(number)

    workers = Workers("test", 2)
    with pytest.raises(KeyboardInterrupt):
        workers.work_off([Backlog(interrupt, [1]), Backlog(work, range(3))])
    assert done == []
    go_on.set()
    workers.close()

    assert done == [0]
