"""Who gets which message next: by priority, within a session, and by partition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from homing import Message
from homing.errors import ConfigurationError
from homing.store import BULK, PARTITIONS, PRIORITY, SESSIONS, WAKE_UP, Store
from homing.testing.conformance.subject import needs
from homing.testing.conformance.waiting import drain


@needs(PRIORITY)
def test_lower_priority_comes_first(store: Store) -> None:
    for content, priority in (("late", 7), ("soon", 1), ("middle", 4), ("soon too", 1)):
        store.store(Message(content, content, priority=priority))

    assert [message.content for message in drain(store, 4)] == ["soon", "soon too", "middle", "late"]


@needs(SESSIONS)
def test_a_session_is_delivered_one_at_a_time_in_order(store: Store, other: Store) -> None:
    for n in range(2):
        store.store(Message(f"a{n}", n, session_id="a"))
        store.store(Message(f"b{n}", n, session_id="b"))
    store.store(Message("free", "free"))

    claimed = store.claim(10, lease=30)

    assert {message.id for message in claimed} == {"a0", "b0", "free"}
    assert other.claim(10) == []
    a0 = next(message for message in claimed if message.id == "a0")
    store.acknowledge(a0, success=False)
    assert [message.id for message in other.claim(10)] == ["a0"], "released, it is still the first"
    store.settle([message for message in claimed if message.id == "b0"])
    assert [message.id for message in other.claim(10)] == ["b1"]


@needs(SESSIONS)
def test_a_session_claimed_by_its_id_comes_whole_and_in_order_to_one_consumer(store: Store, other: Store) -> None:
    for n in range(4):
        store.store(Message(f"a{n}", n, session_id="a"))
    store.store(Message("b0", 0, session_id="b"))

    claimed = store.claim(3, session_id="a", lease=30)

    assert [message.id for message in claimed] == ["a0", "a1", "a2"]
    assert other.claim(4, session_id="a") == [], "not even the one behind those that are held"
    store.settle(claimed)
    assert [message.id for message in other.claim(3, session_id="a")] == ["a3"]


@needs(PARTITIONS, BULK)
def test_consumers_share_a_store_out_by_partition(open_place: Callable[..., Store]) -> None:
    one, two = open_place(partitions=4), open_place(partitions=4)
    one.store_many([Message(f"m{n}", n, partition_key=f"key {n % 7}") for n in range(70)])

    first, second = one.claim(100, partitions=[0, 1], lease=30), two.claim(100, partitions=[2, 3], lease=30)

    assert first
    assert second
    assert len(first) + len(second) == 70
    assert {message.partition_key for message in first}.isdisjoint({message.partition_key for message in second})
    assert two.claim(100) == []


@needs(PARTITIONS, WAKE_UP)
def test_a_consumer_of_some_partitions_is_told_of_their_messages_and_of_no_others(
    open_place: Callable[..., Store],
) -> None:
    store = open_place(partitions=4)
    store.store(Message("m", "m", partition_key="key"))
    (mine,) = [number for number in range(4) if store.has_due(partitions=[number])]
    others = [number for number in range(4) if number != mine]

    asked = (None, [mine, others[0]], others)
    assert [store.has_due(partitions=partitions) for partitions in asked] == [True, True, False]
    assert (store.due_in(partitions=[mine]), store.due_in(partitions=others)) == (0, None)
    assert (store.wait(5, partitions=[mine]), store.wait(0.05, partitions=others)) == (True, False)


@needs(PARTITIONS)
def test_partitions_that_a_store_does_not_have_are_refused(open_place: Callable[..., Store]) -> None:
    store = open_place(partitions=4)
    for ask in (store.has_due, store.due_in, partial(store.claim, 1), partial(store.wait, 0.05)):
        with pytest.raises(ConfigurationError, match=r"it has no partitions \[4\]"):
            ask(partitions=[4])


@needs(PARTITIONS, BULK)
def test_what_was_stored_when_there_were_more_partitions_is_nobodys_and_not_stranded(
    open_place: Callable[..., Store],
) -> None:
    open_place(partitions=8).store_many(range(40))
    fewer = open_place(partitions=2)

    claimed = [*fewer.claim(100, partitions=[0], lease=30), *fewer.claim(100, partitions=[1], lease=30)]

    assert sorted(message.content for message in claimed) == list(range(40))
