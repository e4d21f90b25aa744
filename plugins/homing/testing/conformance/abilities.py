"""What only some stores can do: each test is skipped for stores whose `features` lack the ability."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest

from homing import Message
from homing.errors import LeaseLostError, NotInFlightError, UnsupportedError
from homing.message import STATES
from homing.store import (
    ALL_FEATURES,
    BROWSE,
    BULK,
    CANCEL,
    CLAIM,
    COUNT,
    DEAD_LETTER,
    DEDUPLICATION,
    DEFER,
    FULL_MESSAGE,
    PARTITIONS,
    PIPELINE,
    PRIORITY,
    PURGE,
    RENEW,
    RESCHEDULE,
    SCHEDULE,
    SESSIONS,
    STORE_KINDS,
    TIME_TO_LIVE,
    TRANSACTIONS,
    WAKE_UP,
    Store,
)
from homing.testing.conformance.subject import needs
from homing.testing.conformance.waiting import LEASE, drain, eventually, soon, take

# -- what a store says of itself ----------------------------------------------------------------------------------

# All but four: no test asks for `deduplication`; `partitions` are asked for by `claim`; `ledger` is a method that only
# SQL stores have; and `transactions` have a test of their own below.
_CALLS: dict[str, Callable[[Store], object]] = {
    BULK: lambda store: store.store_many(["a"]),
    CLAIM: lambda store: store.claim(1),
    RENEW: lambda store: store.renew([], 1),
    SCHEDULE: lambda store: store.store("a", scheduled_at=soon(60)),
    CANCEL: lambda store: store.cancel("a"),
    DEFER: lambda store: store.receive_deferred(["a"]),
    DEAD_LETTER: lambda store: store.dead_letter(take(store), reason="bad"),
    BROWSE: lambda store: store.browse(),
    COUNT: lambda store: store.count(),
    PURGE: lambda store: store.purge(),
    RESCHEDULE: lambda store: store.reschedule(["a"], soon(1)),
    SESSIONS: lambda store: store.store(Message("s", "s", session_id="a")),
    PRIORITY: lambda store: store.store_many([Message("p", "p", priority=1)]),
    TIME_TO_LIVE: lambda store: store.store(Message("t", "t", time_to_live=timedelta(seconds=60))),
    FULL_MESSAGE: lambda store: store.store(Message("e", "e", subject="s")),
    WAKE_UP: lambda store: (store.wait(0.01), store.due_in()),
    PIPELINE: lambda store: store.ledger(),
}


@pytest.mark.parametrize("ability", list(_CALLS))
def test_an_ability_is_there_or_refused_by_an_error_that_names_the_stores_that_have_it(
    store: Store, ability: str
) -> None:
    if ability in (SESSIONS, PRIORITY) and store.features is STORE_KINDS["servicebus"].features:
        pytest.skip("the service itself has sessions, and its other receivers read the priority")
    store.store("something")
    if ability in store.features:
        _CALLS[ability](store)
        return
    with pytest.raises(UnsupportedError, match=ability) as caught:
        _CALLS[ability](store)
    for name, (_, _, features) in STORE_KINDS.items():
        if ability in features:
            assert name in str(caught.value)


def test_transactions_are_refused_where_there_are_none_and_nothing_is_stored(store: Store) -> None:
    if TRANSACTIONS in store.features:
        pytest.skip("the transactions of a database are for its own tests")
    store.store("a")
    message = take(store)

    for attempt in (
        lambda: store.store("b", transaction=object()),
        lambda: store.store_many(["b"], transaction=object()),
        lambda: store.acknowledge(message, transaction=object()),
    ):
        with pytest.raises(UnsupportedError, match=r"'transactions'; stores that can: sql"):
            attempt()

    store.acknowledge(message)
    assert store.retrieve() is None


def test_the_tests_ask_for_every_ability() -> None:
    assert set(_CALLS) == set(ALL_FEATURES) - {DEDUPLICATION, PARTITIONS, TRANSACTIONS}


def test_features_are_names_of_abilities(store: Store) -> None:
    assert store.features <= set(ALL_FEATURES)


# -- when ---------------------------------------------------------------------------------------------------------


@needs(SCHEDULE)
def test_a_scheduled_message_is_delivered_when_it_is_due(store: Store) -> None:
    store.store("now")
    due = soon(1.0)
    store.store("later", scheduled_at=due)

    assert [message.content for message in drain(store, 2)] == ["now", "later"]
    assert datetime.now(timezone.utc) >= due


@needs(SCHEDULE, CANCEL)
def test_a_scheduled_message_can_be_cancelled_until_it_is_due(store: Store) -> None:
    store.store("never", id="m1", scheduled_at=soon(60))
    store.store("now", id="m2")

    assert store.cancel("m1")
    assert not store.cancel("m1")
    assert not store.cancel("m2")
    assert [message.id for message in drain(store, 1)] == ["m2"]


@needs(CANCEL, RESCHEDULE, COUNT)
def test_a_message_that_was_handed_out_before_cannot_be_cancelled(store: Store) -> None:
    store.store("a", id="a")
    store.acknowledge(take(store), success=False)
    assert store.reschedule(["a"], soon(60)) == 1

    assert not store.cancel("a")

    assert store.count()["scheduled"] == 1


@needs(SCHEDULE, RESCHEDULE)
def test_rescheduling_brings_a_message_forward_and_leaves_held_ones_alone(store: Store) -> None:
    store.store("later", id="later", scheduled_at=soon(60))
    store.store("held", id="held")
    held = take(store)

    assert store.reschedule(["later", "held", "unknown"], soon(-1)) == 1

    assert take(store).id == "later"
    store.acknowledge(held)


@needs(RESCHEDULE)
def test_rescheduling_puts_a_message_off(store: Store) -> None:
    store.store("a", id="a")

    due = soon(1.0)

    assert store.reschedule(["a"], due) == 1

    assert take(store).id == "a"
    assert datetime.now(timezone.utc) >= due


@needs(RESCHEDULE, DEAD_LETTER, COUNT)
def test_what_is_finished_or_dead_is_not_rescheduled(store: Store) -> None:
    for name in ("done", "dead"):
        store.store(name, id=name)
    store.acknowledge(take(store))
    store.dead_letter(take(store), reason="bad")

    assert store.reschedule(["done", "dead"], soon(0)) == 0

    assert store.retrieve() is None
    assert (store.count()["acknowledged"], store.count()["dead"]) == (1, 1)


@needs(RESCHEDULE)
@pytest.mark.parametrize(("said", "following"), [(None, 3), (0, 1), (7, 8)])
def test_deliveries_are_counted_on_from_what_rescheduling_says(store: Store, said: int | None, following: int) -> None:
    store.store("a", id="a")
    for _ in range(2):
        store.acknowledge(take(store), success=False)

    store.reschedule(["a"], soon(-1), delivery_count=said)

    assert take(store).delivery_count == following


@needs(TIME_TO_LIVE)
def test_a_message_past_its_time_to_live_is_not_delivered(store: Store) -> None:
    store.store(Message("old", "old", time_to_live=timedelta(milliseconds=100)))
    store.store(Message("new", "new", time_to_live=timedelta(seconds=60)))
    time.sleep(0.3)

    assert take(store).id == "new"
    assert store.retrieve() is None
    if BROWSE in store.features:
        (dead,) = eventually(lambda: store.browse(state="dead") or None)
        assert (dead.id, dead.dead_letter_reason) == ("old", "expired")


@needs(WAKE_UP)
def test_waiting_ends_when_a_message_is_stored_and_when_a_scheduled_one_is_due(store: Store, other: Store) -> None:
    assert not other.wait(0.05)
    store.store("a")
    assert other.wait(5)
    store.acknowledge(take(store))
    due = soon(0.5)
    store.store("later", scheduled_at=due)

    assert other.wait(10)

    assert due <= datetime.now(timezone.utc) < due + timedelta(seconds=3)
    assert take(other).content == "later"


@needs(WAKE_UP, SCHEDULE, CLAIM)
def test_a_store_tells_in_how_many_seconds_something_is_due(store: Store) -> None:
    assert store.due_in() is None
    store.store("later", scheduled_at=soon(60))
    assert 50 < (store.due_in() or 0) < 61
    store.store("now")
    assert store.due_in() == 0
    store.claim(1, lease=20)
    assert 10 < (store.due_in() or 0) < 21


@needs(WAKE_UP, SESSIONS, COUNT)
def test_nobody_is_woken_for_a_message_that_waits_for_its_turn_in_a_session(store: Store, other: Store) -> None:
    store.store_many([Message(f"a{n}", n, session_id="a") for n in range(3)])
    first = take(store)

    assert not other.wait(0.3)

    age = other.oldest_age()
    assert age is not None, "it is due all the same"
    store.acknowledge(first)
    assert other.wait(5)
    assert take(other).id == "a1"


# -- other ends ---------------------------------------------------------------------------------------------------


@needs(DEFER)
def test_a_deferred_message_is_received_only_by_its_id(store: Store, hasty: Store, other: Store) -> None:
    store.store("a", id="a")
    hasty.defer(take(hasty))
    with pytest.raises(AssertionError, match="nothing came"):
        take(store, timeout=1.5 * LEASE)

    (message,) = other.receive_deferred(["a", "unknown"], lease=30)

    assert (message.content, message.delivery_count) == ("a", 2)
    assert store.receive_deferred(["a"]) == []
    other.acknowledge(message)
    assert store.receive_deferred(["a"]) == []


@needs(DEFER)
def test_a_deferred_message_that_is_released_is_an_ordinary_one(store: Store) -> None:
    store.store("a", id="a")
    store.defer(take(store).id)
    (message,) = store.receive_deferred(["a"], lease=30)
    store.acknowledge(message, success=False)

    assert take(store).id == "a"


@needs(DEAD_LETTER, BROWSE)
def test_a_dead_letter_keeps_its_reason_and_never_comes_back(store: Store) -> None:
    store.store({"n": 1}, id="bad", headers={"h": 1})
    store.dead_letter(take(store), reason="invalid", description="n is too small")

    with pytest.raises(NotInFlightError):
        store.acknowledge("bad")
    (dead,) = eventually(lambda: store.browse(state="dead") or None)
    assert (dead.id, dead.content, dead.headers, dead.state) == ("bad", {"n": 1}, {"h": 1}, "dead")
    assert (dead.dead_letter_reason, dead.dead_letter_description) == ("invalid", "n is too small")
    assert dead.dead_letter_source == store.name


@needs(DEAD_LETTER, BROWSE, RENEW)
def test_what_crashed_its_consumer_too_often_is_kept_aside_with_its_reason(open_place: Callable[..., Store]) -> None:
    store = open_place(ack_wait=0.05, max_deliveries=2)
    store.store("poison", id="p")
    take(store)
    take(store)

    def dead_or_handed_out() -> list[Message] | None:
        again = store.retrieve()
        return [again] if again else store.browse(state="dead") or None

    (dead,) = eventually(dead_or_handed_out)
    assert (dead.id, dead.dead_letter_reason, dead.delivery_count) == ("p", "crashed", 2)


@needs(DEFER, DEAD_LETTER, RENEW)
def test_every_other_end_is_fenced_by_the_lease_too(hasty: Store, other: Store) -> None:
    hasty.store("a")
    late = take(hasty)
    current = take(other)

    with pytest.raises(LeaseLostError, match=late.id):
        hasty.defer(late)
    with pytest.raises(LeaseLostError, match=late.id):
        hasty.dead_letter(late, reason="late")

    other.acknowledge(current)


# -- looking ------------------------------------------------------------------------------------------------------


@needs(BROWSE)
def test_browsing_shows_messages_in_order_and_claims_nothing(store: Store) -> None:
    for n in range(5):
        store.store(n, id=f"m{n}")

    page = store.browse(2)
    rest = store.browse(10, after=page[-1].sequence_number or 0)

    assert [message.content for message in (*page, *rest)] == [0, 1, 2, 3, 4]
    assert [message.content for message in store.browse(ids=["m3", "unknown"])] == [3]
    assert {message.delivery_count for message in page} == {0}
    assert len(drain(store, 5)) == 5


@needs(COUNT, SCHEDULE, DEFER, DEAD_LETTER, CLAIM)
def test_every_state_is_counted(store: Store) -> None:
    assert store.count() == dict.fromkeys(STATES, 0)
    assert store.oldest_age() is None
    for n in range(5):
        store.store(n)
    store.store("later", scheduled_at=soon(60))
    first, second, third, *_ = store.claim(4, lease=30)
    store.acknowledge(first)
    store.defer(second)
    store.dead_letter(third, reason="bad")

    assert store.count() == dict.fromkeys(STATES, 1)
    age = store.oldest_age()
    assert age is not None
    assert 0 <= age < 10


@needs(COUNT, RESCHEDULE, SCHEDULE)
def test_the_oldest_age_is_for_how_long_the_longest_waiting_available_message_has_been_due(store: Store) -> None:
    store.store_many([Message("young", 1), Message("oldest", 2), Message("old", 3)])
    store.store("later", scheduled_at=soon(60))
    for message_id, seconds in (("young", 100), ("oldest", 300), ("old", 200)):
        assert store.reschedule([message_id], soon(-seconds)) == 1

    assert 299 < (store.oldest_age() or 0) < 350
    assert take(store).id == "oldest"
    assert 199 < (store.oldest_age() or 0) < 250


@needs(PURGE, COUNT, CLAIM)
def test_purging_removes_what_has_been_acknowledged_for_so_long(store: Store) -> None:
    for n in range(3):
        store.store(n)
    store.settle(store.claim(2))

    assert store.purge(60) == 0
    assert store.purge(0) == 2
    assert sum(store.count().values()) == 1
    assert len(drain(store, 1)) == 1


@needs(PURGE, DEAD_LETTER)
def test_purging_dead_letters_must_be_asked_for(store: Store) -> None:
    store.store("a")
    store.dead_letter(take(store), reason="bad")

    assert store.purge(0) == 0
    assert store.purge(0, state="dead") == 1


@needs(PURGE, DEAD_LETTER, COUNT)
def test_purging_dead_letters_leaves_everything_else(store: Store) -> None:
    for content in ("done", "dead", "held", "waiting"):
        store.store(content)
    store.acknowledge(take(store))
    store.dead_letter(take(store), reason="bad")
    take(store)

    assert store.purge(0, state="dead") == 1

    left = {state: number for state, number in store.count().items() if number}
    assert left == {"acknowledged": 1, "leased": 1, "available": 1}
