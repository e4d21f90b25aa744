"""Many messages at a time: stored, claimed under one lease, renewed and settled together."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from functools import partial

import pytest

from homing import Message
from homing.errors import LeaseLostError, NotInFlightError
from homing.store import BULK, CLAIM, COUNT, RENEW, RESCHEDULE, TIME_TO_LIVE, Store
from homing.testing.conformance.subject import needs
from homing.testing.conformance.waiting import LEASE, drain, eventually, soon


@needs(BULK)
def test_many_are_stored_in_order(store: Store) -> None:
    ids = store.store_many(["a", {"n": 1}, b"\x00"])

    assert [(message.id, message.content) for message in drain(store, 3)] == list(
        zip(ids, ["a", {"n": 1}, b"\x00"], strict=True)
    )


@needs(BULK)
def test_storing_many_is_all_or_none(store: Store) -> None:
    with pytest.raises(TypeError, match=r"content\.bad"):
        store.store_many(["fine", {"bad": object()}])

    assert store.retrieve() is None


@needs(BULK, CLAIM)
def test_storing_many_leaves_out_the_ids_it_knows(store: Store) -> None:
    store.store("first", id="m0")
    store.store_many([Message(f"m{n}", n) for n in range(100)])

    contents = [message.content for message in store.claim(200)]

    assert sorted(map(str, contents)) == sorted(["first", *map(str, range(1, 100))])


@needs(CLAIM)
def test_a_claim_leases_many_under_one_token(store: Store, other: Store) -> None:
    for n in range(5):
        store.store(n)

    claimed = store.claim(3, lease=30)

    assert [message.content for message in claimed] == [0, 1, 2]
    assert len({message.lock_token for message in claimed}) == 1
    assert [message.content for message in other.claim(10)] == [3, 4]


@needs(CLAIM)
def test_claiming_again_with_the_same_batch_id_returns_the_same_batch(store: Store, other: Store) -> None:
    for n in range(5):
        store.store(n)
    first = store.claim(3, batch_id="run 1", lease=30)

    again = other.claim(3, batch_id="run 1", lease=30)

    assert [message.id for message in again] == [message.id for message in first]
    assert {message.lock_token for message in again} == {message.lock_token for message in first}
    assert [message.delivery_count for message in again] == [1, 1, 1]
    other.settle(again)
    assert store.claim(3, batch_id="run 1") == []


@needs(CLAIM)
def test_a_batch_whose_lease_ran_out_is_found_again_under_a_new_token(store: Store) -> None:
    store.store("a")
    first = store.claim(3, batch_id="run 1", lease=0.1)
    time.sleep(0.15)

    again = store.claim(3, batch_id="run 1", lease=30)

    assert [message.id for message in again] == [message.id for message in first]
    with pytest.raises(LeaseLostError):
        store.settle(first)
    store.settle(again)


@needs(CLAIM)
def test_a_batch_whose_lease_ran_out_does_not_get_back_what_others_hold(store: Store, other: Store) -> None:
    store.store_many(["a", "b"])
    store.claim(2, batch_id="run 1", lease=0.1)
    time.sleep(0.15)
    (taken,) = other.claim(1, lease=30)

    again = store.claim(2, batch_id="run 1", lease=30)

    assert [message.content for message in again] == ["b"]
    other.acknowledge(taken)
    store.settle(again)


@needs(CLAIM)
def test_a_batch_that_others_took_whole_is_a_new_one(store: Store, other: Store) -> None:
    store.store("a")
    store.claim(2, batch_id="run 1", lease=0.1)
    time.sleep(0.15)
    (taken,) = other.claim(1, lease=30)
    assert store.claim(2, batch_id="run 1", lease=30) == []
    store.store("b")

    assert [message.content for message in store.claim(2, batch_id="run 1", lease=30)] == ["b"]

    other.acknowledge(taken)


@needs(CLAIM, RESCHEDULE)
def test_what_was_rescheduled_belongs_to_no_batch(store: Store) -> None:
    store.store_many([Message("a", "a"), Message("b", "b")])
    store.claim(2, batch_id="run 1", lease=0.1)
    time.sleep(0.15)
    store.reschedule(["a"], soon(-1))

    assert [message.id for message in store.claim(2, batch_id="run 1", lease=30)] == ["b"]
    assert [message.id for message in store.claim(2, lease=30)] == ["a"]


@needs(CLAIM, TIME_TO_LIVE)
def test_what_a_batch_holds_does_not_expire(store: Store) -> None:
    lives, claimed = 0.3, list[Message]()
    while not claimed:  # on a machine that is too slow for this, it lives twice as long the next time
        lives *= 2
        assert lives < 60, "nothing was claimed"
        store.store(Message(str(lives), "a", time_to_live=timedelta(seconds=lives)))
        claimed = store.claim(1, batch_id="run 1", lease=600)
    (first,) = claimed
    time.sleep(1.1 * lives)

    (again,) = store.claim(1, batch_id="run 1", lease=30)

    assert again.lock_token == first.lock_token
    store.acknowledge(again)


@needs(CLAIM)
def test_settling_takes_one_outcome_for_each(store: Store) -> None:
    for n in range(4):
        store.store(n)
    store.settle(store.claim(4, lease=30), [True, False, True, False])

    assert [message.content for message in store.claim(4)] == [1, 3]


@needs(CLAIM, COUNT)
def test_settling_many_is_all_or_none(store: Store) -> None:
    for n in range(3):
        store.store(n)
    first, second, third = store.claim(3, lease=30)
    store.acknowledge(first)

    with pytest.raises(NotInFlightError, match=first.id):
        store.settle([second, first, third], [True, True, False])

    assert (store.count()["leased"], store.count()["acknowledged"]) == (2, 1)


def _claimed(store: Store, lease: float) -> list[Message] | None:
    return store.claim(1, lease=lease) or None


@needs(CLAIM, RENEW)
def test_renewing_keeps_a_lease_and_fails_once_it_is_lost(store: Store, other: Store) -> None:
    store.store("a")
    lease = LEASE / 4
    while True:  # on a machine that is too slow for this, the lease is twice as long the next time
        lease *= 2
        assert lease < 60, "no lease could be renewed"
        (message,) = eventually(partial(_claimed, store, lease))
        with suppress(LeaseLostError):
            store.renew(message, 600)
            break
    time.sleep(1.1 * lease)
    assert other.retrieve() is None
    store.renew([message], 0.05)
    time.sleep(0.1)

    with pytest.raises(LeaseLostError, match=message.id):
        store.renew(message, 30)
