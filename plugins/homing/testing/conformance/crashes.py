"""Processes killed, servers restarted, clocks that disagree: nothing is lost, and a lost lease is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from homing.errors import LeaseLostError, NotInFlightError
from homing.store import DEDUPLICATION, RENEW, Store
from homing.testing.conformance.subject import Place, needs, server_of
from homing.testing.conformance.waiting import LEASE, drain, eventually, take
from homing.testing.conformance.workers import UNSETTLED, WRONG_BY

_WORKERS = Path(__file__).with_name("workers.py")
_started: list[subprocess.Popen[str]] = []


def start(role: str, place: Place, *arguments: object, wrong_by: float = 0) -> subprocess.Popen[str]:
    """`wrong_by`: how many seconds the clock of this process is ahead of everybody else's."""
    if not place.subject.processes or place.subject.open is not None:
        pytest.skip(f"{place.subject.name} lives in one process")
    command = [sys.executable, str(_WORKERS), role, place.url, *map(str, arguments)]
    environment = {**os.environ, WRONG_BY: str(wrong_by)}
    pipe = subprocess.PIPE
    _started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment))
    return _started[-1]


def start_together(number: int, role: str, place: Place, *arguments: object) -> list[subprocess.Popen[str]]:
    """Starts so many, and lets them begin once all are there: otherwise the first may be done before the second."""
    started = [start(role, place, *arguments, "together") for _ in range(number)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    return started


@pytest.fixture(autouse=True)
def none_outlives_its_test() -> Iterator[None]:
    yield
    while _started:
        _started.pop().kill()


def output(process: subprocess.Popen[str], timeout: float = 120) -> list[str]:
    # Not `communicate`: with a timeout it would pass over lines that `readline` has taken ahead.
    assert process.stdout is not None
    printed = process.stdout.read()
    process.wait(timeout)
    return printed.split()


@pytest.mark.chaos
def test_a_consumer_killed_between_retrieve_and_acknowledge_loses_nothing(place: Place, store: Store) -> None:
    store.store("a", id="m1")
    victim = start("die_holding", place.with_options(ack_wait=LEASE))

    assert output(victim) == ["m1"]
    assert victim.returncode == -signal.SIGKILL
    message = take(store)

    assert (message.id, message.content) == ("m1", "a")
    assert message.delivery_count == 2
    store.acknowledge(message)


@pytest.mark.chaos
def test_many_processes_share_a_store_out_and_each_message_is_delivered_once(place: Place) -> None:
    count, processes = 300, 3
    with place.open() as store:
        for number in range(count):
            store.store(str(number))
        consumers = start_together(processes, "consume", place, 1)
        delivered = [output(consumer) for consumer in consumers]

    assert Counter(number for one in delivered for number in one) == Counter(map(str, range(count)))
    assert sum(1 for one in delivered if one) > 1, "one consumer did everything"


@pytest.mark.chaos
@pytest.mark.services
def test_a_server_restarted_in_mid_stream_loses_nothing(place: Place, request: pytest.FixtureRequest) -> None:
    server = server_of(place, request)
    place = place.with_options(ack_wait=1)
    count = 400
    with place.open() as store:
        store.store("warm-up")
        drain(store, 1)
        # Only what a consumer held when the server died may come twice; a broker may lose acknowledgements.
        duplicates = 2 if DEDUPLICATION in store.features else 20
    producer, consumer = start("produce", place, count), start("consume", place, 6)
    assert producer.stdout is not None
    for _ in range(50):
        producer.stdout.readline()

    server.restart()

    accepted = set(output(producer)) | {str(number) for number in range(50)}
    # What was not settled after all comes again while the consumer waits for more, and is counted twice.
    delivered = Counter(one for one in output(consumer) if not one.startswith(UNSETTLED))
    assert accepted == {str(number) for number in range(count)}
    assert set(delivered) == accepted
    assert sum(delivered.values()) - count <= duplicates


@pytest.mark.services
def test_a_store_in_use_survives_a_restart_of_its_server(
    place: Place, store: Store, request: pytest.FixtureRequest
) -> None:
    server = server_of(place, request)
    store.store("before")
    server.restart()

    store.store("after")

    assert [message.content for message in drain(store, 2)] == ["before", "after"]


@needs(RENEW)
def test_two_consumers_whose_leases_overlap_settle_a_message_once(hasty: Store, other: Store) -> None:
    hasty.store("a", id="a")
    slow = take(hasty)
    quick = eventually(other.retrieve)  # its lease ran out while the slow one still works
    other.acknowledge(quick)

    with pytest.raises((LeaseLostError, NotInFlightError), match="a"):
        hasty.acknowledge(slow)
    with pytest.raises((LeaseLostError, NotInFlightError), match="a"):
        hasty.acknowledge(slow, success=False)

    assert hasty.retrieve() is None


@pytest.mark.parametrize("wrong_by", [-3600, 10])
def test_consumers_whose_clocks_disagree_agree_on_who_holds_a_message(
    place: Place, store: Store, wrong_by: float
) -> None:
    if place.subject.name == "sqlite":
        pytest.skip("consumers of SQLite share one machine's clock")
    if place.subject.name == "servicebus":
        pytest.skip("the service refuses a client whose clock is wrong: its tokens are not valid yet, or no longer")

    # Stored first of all by the one whose clock is wrong, it is due at once for the others.
    assert output(start("produce", place, 1, wrong_by=wrong_by)) == ["0"]
    held = take(store, timeout=5)
    assert output(start("consume", place, 0.5, wrong_by=wrong_by)) == [], "its lease still lasts"
    store.acknowledge(held, success=False)

    # And what that one holds is his for as long as his lease lasts, and no longer.
    holder = start("hold", place.with_options(ack_wait=LEASE), wrong_by=wrong_by)
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == f"{held.id}\n"
    assert store.retrieve() is None
    store.acknowledge(take(store, timeout=20))
    holder.stdin.close()
    assert output(holder) == ["lost"]


@needs(RENEW)
def test_a_lease_lost_before_acknowledge_changes_nothing(hasty: Store, other: Store) -> None:
    hasty.store("a")
    late = take(hasty)
    current = eventually(other.retrieve)

    with pytest.raises(LeaseLostError):
        hasty.acknowledge(late, success=False)

    assert hasty.retrieve() is None, "the other consumer still holds it"
    other.acknowledge(current)
