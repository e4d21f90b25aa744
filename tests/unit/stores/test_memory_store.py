"""What is the memory store's own: names, clocks, threads. The rest is in the conformance suite."""

from __future__ import annotations

import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import pytest

from homing import Message, open_store
from homing.errors import ConfigurationError, LeaseLostError, NotInFlightError, UnsupportedError
from homing.store import CRASHED, EXPIRED, BatchLease
from homing.stores.memory import MemoryStore
from homing.stores.memory.options import MemoryOptions
from tests.unit.stores.conftest import Clock

_DOCS = Path(__file__).resolve().parents[3] / "docs" / "stores-memory-and-rabbitmq.md"


@pytest.fixture
def make(clock: Clock) -> Callable[..., MemoryStore]:
    name = f"t{uuid.uuid4().hex}"
    return lambda **options: MemoryStore(name, MemoryOptions(**options), clock=clock)


def test_one_name_is_one_store_within_the_process() -> None:
    name = uuid.uuid4().hex
    with open_store(f"memory://{name}") as one, open_store(f"memory://{name}") as two:
        one.store("a", id="m1")
        message = two.retrieve()

    assert message is not None
    assert message.id == "m1"
    with open_store(f"memory://{name}x") as other:
        assert other.retrieve() is None


@pytest.mark.parametrize(
    "url", ["memory://", "memory://a?store=b", "memory://a/b", "memory://a?ack_wait=0", "memory://a?colour=red"]
)
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        open_store(url)


def test_nobody_can_change_what_is_stored(make: Callable[..., MemoryStore]) -> None:
    store, content, headers = make(), {"list": [1]}, {"h": [1]}
    store.store(content, headers=headers)
    content["list"].append(2)
    headers["h"].append(2)
    seen = store.browse()[0]
    seen.content["list"].append(3)
    seen.headers["h"].append(3)

    message = store.retrieve()

    assert message is not None
    assert (message.content, message.headers) == ({"list": [1]}, {"h": [1]})


def test_leases_double_and_end_in_death(make: Callable[..., MemoryStore], clock: Clock) -> None:
    store = make(ack_wait=10, jitter=0, max_deliveries=3)
    store.store("a")
    for lease in (10, 20, 40):
        message = store.retrieve()
        assert message is not None
        clock.advance(lease - 0.1)
        assert store.retrieve() is None
        clock.advance(0.2)
        with pytest.raises((LeaseLostError, NotInFlightError)):
            store.acknowledge(message)

    assert store.retrieve() is None
    assert store.browse(state="dead")[0].dead_letter_reason == CRASHED


def test_no_lease_is_doubled_beyond_the_cap(make: Callable[..., MemoryStore], clock: Clock) -> None:
    store = make(ack_wait=10, max_ack_wait=25, jitter=0)
    store.store("a")
    for lease in (10, 20, 25, 25):
        assert store.retrieve() is not None
        clock.advance(lease - 0.1)
        assert store.retrieve() is None
        clock.advance(0.2)

    assert store.retrieve() is not None


def test_a_back_off_makes_a_released_message_wait_longer_each_time(
    make: Callable[..., MemoryStore], clock: Clock
) -> None:
    store = make(backoff=10, jitter=0)
    store.store("a")
    for wait in (10, 20, 40):
        message = store.retrieve()
        assert message is not None
        store.acknowledge(message, success=False)
        clock.advance(wait - 0.1)
        assert store.retrieve() is None
        clock.advance(0.2)

    assert store.retrieve() is not None


def test_an_id_may_come_again_after_the_window(make: Callable[..., MemoryStore], clock: Clock) -> None:
    store = make(duplicate_window=60)
    store.store("first", id="m1")
    store.settle(store.claim(1))

    clock.advance(59)
    store.store("within", id="m1")
    assert store.retrieve() is None

    clock.advance(2)
    store.store("after", id="m1")
    assert [message.content for message in store.claim(2)] == ["after"]


def test_an_id_does_not_come_again_after_the_window_while_its_message_is_unfinished(
    make: Callable[..., MemoryStore], clock: Clock
) -> None:
    store = make(duplicate_window=60)
    store.store("first", id="m1")
    clock.advance(61)

    store.store("again", id="m1")

    assert [message.content for message in store.claim(2)] == ["first"]


def test_time_to_live_counts_from_the_due_time(make: Callable[..., MemoryStore], clock: Clock) -> None:
    store = make()
    store.store(Message("m1", "a", scheduled_at=clock.after(60), time_to_live=timedelta(seconds=5)))
    clock.advance(64)
    message = store.retrieve()
    assert message is not None
    store.acknowledge(message, success=False)
    clock.advance(2)

    assert store.retrieve() is None
    assert store.browse(state="dead")[0].dead_letter_reason == EXPIRED


def test_acknowledged_messages_are_forgotten_in_time(make: Callable[..., MemoryStore], clock: Clock) -> None:
    store = make(purge_after=60)
    store.store("a", id="m1")
    store.acknowledge(store.claim(1)[0])
    clock.advance(61)
    store.store("b", id="m2")

    assert [message.id for message in store.browse()] == ["m2"]


def test_threads_share_a_store_out(make: Callable[..., MemoryStore]) -> None:
    store, got = make(), Counter[int]()
    store.store_many(range(2000))

    def consume() -> None:
        while (message := store.retrieve()) is not None:
            store.acknowledge(message)
            got[message.content] += 1

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert got == Counter(range(2000))


def test_a_message_wakes_up_who_waits_for_it() -> None:
    store = MemoryStore(uuid.uuid4().hex)
    waker = threading.Timer(0.1, store.store, ["a"])
    waker.start()

    assert store.wait(20)

    waker.join()


def test_a_transaction_is_refused(make: Callable[..., MemoryStore]) -> None:
    with pytest.raises(UnsupportedError, match="sql"):
        make().store("a", transaction=object())


def test_every_option_is_documented_with_its_default() -> None:
    part = _DOCS.read_text().partition("## RabbitMQ")[0]
    documented = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", part, re.MULTILINE))

    assert {name: float(value) for name, value in documented.items()} == {
        field.name: float(field.default) for field in fields(MemoryOptions)
    }


def test_a_lease_that_ran_out_settles_nothing_although_nobody_took_over(
    make: Callable[..., MemoryStore], clock: Clock
) -> None:
    store = make(ack_wait=30)
    store.store("a")
    message = store.retrieve()
    assert message is not None
    clock.advance(31)

    with pytest.raises(LeaseLostError):
        store.acknowledge(message)

    assert store.count()["available"] == 1


def test_a_message_given_twice_is_not_settled(make: Callable[..., MemoryStore]) -> None:
    store = make()
    store.store("a")
    (message,) = store.claim(1)

    with pytest.raises(NotInFlightError, match="twice"):
        store.settle([message, message], [True, False])

    assert store.count()["leased"] == 1


def test_a_batch_that_another_holds_by_now_is_not_renewed(make: Callable[..., MemoryStore], clock: Clock) -> None:
    store = make()
    store.store("a")
    (late,) = store.claim(1, batch_id="run", lease=30)
    clock.advance(31)
    (current,) = store.claim(1, batch_id="run", lease=30)
    assert late.lock_token is not None
    assert current.lock_token is not None

    with pytest.raises(LeaseLostError):
        store.renew(BatchLease("run", late.lock_token, 1), 600)
    store.renew(BatchLease("run", current.lock_token, 1), 60)

    clock.advance(61)
    assert store.retrieve() is not None
