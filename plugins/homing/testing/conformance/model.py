"""Every store against a model of a few lines, through whatever sequence of calls Hypothesis can think of."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from homing import Message
from homing.errors import LeaseLostError, NotInFlightError
from homing.message import ACKNOWLEDGED, AVAILABLE, DEAD, DEFERRED, LEASED, SCHEDULED, STATES
from homing.store import (
    BROWSE,
    CANCEL,
    CLAIM,
    COUNT,
    DEAD_LETTER,
    DEDUPLICATION,
    DEFER,
    PRIORITY,
    RENEW,
    RESCHEDULE,
    SCHEDULE,
)
from homing.testing.conformance.subject import Place
from homing.testing.conformance.waiting import take

ANY_CONTENT = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(max_size=20), st.binary(max_size=20),
    st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=3), st.lists(st.text(max_size=5), max_size=3),
)  # fmt: skip


@dataclass
class Expected:
    """What the model knows of one message."""

    content: Any
    number: int
    due: int
    priority: int = 0
    state: str = AVAILABLE
    deliveries: int = 0
    #: Under which it was claimed last, and whose it still is when its lease ran out.
    batch: str | None = None
    token: str | None = None


class Comparison(RuleBasedStateMachine):
    """The model: a dictionary of messages, and a counter in place of a clock."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = replace(place, name=f"t{uuid.uuid4().hex[:12]}")
        self.store = self.place.with_options(ack_wait=600, max_deliveries=1000).open()
        self.can = self.store.features
        self.known: dict[str, Expected] = {}
        self.held: list[Message] = []
        self.lost: list[Message] = []
        self.ticks = 0

    def teardown(self) -> None:
        self.store.close()
        self.place.remove()

    def tick(self) -> int:
        self.ticks += 1
        return self.ticks

    def ids(self, *states: str) -> list[str]:
        return [key for key, message in self.known.items() if message.state in states]

    def waiting(self) -> list[str]:
        """The ids to be handed out, in order."""

        def order(message_id: str) -> tuple[int, int, int]:
            message = self.known[message_id]
            return (message.priority, message.due, message.number)

        return sorted(self.ids(AVAILABLE), key=order)

    def handed_out(self, message: Message, batch: str | None = None) -> None:
        known = self.known[message.id]
        known.deliveries += message.lock_token != known.token
        known.state, known.batch, known.token = LEASED, batch, message.lock_token
        assert message.content == known.content
        assert type(message.content) is type(known.content)
        assert message.delivery_count == known.deliveries
        self.held.append(message)

    def pick(self, data: st.DataObject, items: list[Any]) -> Any:
        return items[data.draw(st.integers(0, len(items) - 1))]

    @initialize(content=ANY_CONTENT)
    def begin(self, content: Any) -> None:
        self.put(content, 0)

    # -- the verbs ---------------------------------------------------------------------------------------------

    @rule(content=ANY_CONTENT, priority=st.integers(0, 2))
    def put(self, content: Any, priority: int) -> None:
        priority = priority if PRIORITY in self.can else 0
        number = self.tick()
        message_id = self.store.store(Message(f"m{number}", content, priority=priority))
        self.known[message_id] = Expected(content, number, number, priority)

    @precondition(lambda self: self.known and DEDUPLICATION in self.can)
    @rule(data=st.data())
    def put_again(self, data: st.DataObject) -> None:
        self.store.store("again", id=self.pick(data, list(self.known)))

    @rule()
    def retrieve(self) -> None:
        expected = self.waiting()
        if not expected:
            assert self.store.retrieve() is None
            return
        message = take(self.store, timeout=10)
        assert message.id == expected[0] if CLAIM in self.can else message.id in expected
        self.handed_out(message)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), success=st.booleans(), by_id=st.booleans())
    def acknowledge(self, data: st.DataObject, success: bool, by_id: bool) -> None:
        message = self.pick(data, self.held)
        self.store.acknowledge(message.id if by_id else message, success)
        self.held.remove(message)
        self.settled(message, success)

    def settled(self, message: Message, success: bool) -> None:
        self.ends(self.known[message.id], ACKNOWLEDGED if success else AVAILABLE, self.tick())

    def ends(self, known: Expected, state: str, due: int) -> None:
        """Its lease is given back; what comes again is held by no consumer."""
        known.state, known.due, known.token = state, due, None
        known.batch = None if state in (AVAILABLE, DEFERRED) else known.batch

    @precondition(lambda self: self.ids(ACKNOWLEDGED, AVAILABLE))
    @rule(data=st.data())
    def acknowledge_what_is_not_in_flight(self, data: st.DataObject) -> None:
        with pytest.raises((NotInFlightError, LeaseLostError)):
            self.store.acknowledge(self.pick(data, self.ids(ACKNOWLEDGED, AVAILABLE)))

    @precondition(lambda self: self.lost)
    @rule(data=st.data(), success=st.booleans())
    def acknowledge_what_was_lost(self, data: st.DataObject, success: bool) -> None:
        with pytest.raises((NotInFlightError, LeaseLostError)):
            self.store.acknowledge(self.pick(data, self.lost), success)

    # -- abilities ---------------------------------------------------------------------------------------------

    @precondition(lambda self: CLAIM in self.can)
    @rule(limit=st.integers(1, 4))
    def claim(self, limit: int) -> None:
        expected = self.waiting()[:limit]
        claimed = self.store.claim(limit, lease=600)
        assert [message.id for message in claimed] == expected
        for message in claimed:
            self.handed_out(message)

    @precondition(lambda self: CLAIM in self.can)
    @rule(limit=st.integers(1, 4), batch=st.sampled_from(["run 1", "run 2"]))
    def claim_for_a_batch(self, limit: int, batch: str) -> None:
        mine = {key: known for key, known in self.known.items() if known.batch == batch}
        left = {key for key, known in mine.items() if known.token is not None}
        tokens = {known.token for known in mine.values() if known.state == LEASED}
        claimed = self.store.claim(limit, batch_id=batch, lease=600)
        if mine:
            assert {message.id for message in claimed} == left
        else:
            assert [message.id for message in claimed] == self.waiting()[:limit]
        if tokens:
            assert {message.lock_token for message in claimed} == tokens
        self.held = [message for message in self.held if message.id not in left]
        now_held = {(message.id, message.lock_token) for message in claimed}
        self.lost = [message for message in self.lost if (message.id, message.lock_token) not in now_held]
        for message in claimed:
            self.handed_out(message, batch)

    @precondition(lambda self: self.held and CLAIM in self.can)
    @rule(outcomes=st.lists(st.booleans(), min_size=1, max_size=4))
    def settle(self, outcomes: list[bool]) -> None:
        messages = self.held[: len(outcomes)]
        self.store.settle(messages, outcomes[: len(messages)])
        self.held = self.held[len(messages) :]
        due = self.tick()
        for message, success in zip(messages, outcomes, strict=False):
            self.ends(self.known[message.id], ACKNOWLEDGED if success else AVAILABLE, due)

    @precondition(lambda self: self.held and self.lost and CLAIM in self.can)
    @rule()
    def settle_with_one_that_was_lost(self) -> None:
        with pytest.raises((NotInFlightError, LeaseLostError)):
            self.store.settle([self.held[0], self.lost[0]])

    @precondition(lambda self: self.held and RENEW in self.can)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        message = self.pick(data, self.held)
        self.store.renew(message, 0.002)
        time.sleep(0.006)
        self.held.remove(message)
        self.lost.append(message)
        self.known[message.id].state, self.known[message.id].due = AVAILABLE, self.tick()

    @precondition(lambda self: self.held and DEFER in self.can)
    @rule(data=st.data())
    def defer(self, data: st.DataObject) -> None:
        message = self.pick(data, self.held)
        self.store.defer(message)
        self.held.remove(message)
        self.ends(self.known[message.id], DEFERRED, 0)

    @precondition(lambda self: DEFER in self.can)
    @rule()
    def receive_deferred(self) -> None:
        expected = self.ids(DEFERRED)
        received = self.store.receive_deferred([*self.known, "unknown"], lease=600)
        assert {message.id for message in received} == set(expected)
        for message in received:
            self.handed_out(message)

    @precondition(lambda self: self.held and DEAD_LETTER in self.can)
    @rule(data=st.data())
    def dead_letter(self, data: st.DataObject) -> None:
        message = self.pick(data, self.held)
        self.store.dead_letter(message, reason="bad")
        self.held.remove(message)
        self.ends(self.known[message.id], DEAD, 0)

    @precondition(lambda self: SCHEDULE in self.can)
    @rule(content=ANY_CONTENT)
    def schedule(self, content: Any) -> None:
        number = self.tick()
        at = datetime.now(timezone.utc) + timedelta(hours=1)
        message_id = self.store.store(content, id=f"m{number}", scheduled_at=at)
        self.known[message_id] = Expected(content, number, number, state=SCHEDULED)

    @precondition(lambda self: self.known and CANCEL in self.can)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        message_id = self.pick(data, list(self.known))
        assert self.store.cancel(message_id) == (self.known[message_id].state == SCHEDULED)
        if self.known[message_id].state == SCHEDULED:
            del self.known[message_id]

    @precondition(lambda self: self.known and RESCHEDULE in self.can)
    @rule(data=st.data())
    def reschedule(self, data: st.DataObject) -> None:
        message_id = self.pick(data, list(self.known))
        movable = self.known[message_id].state in (AVAILABLE, SCHEDULED)
        assert self.store.reschedule([message_id], datetime.now(timezone.utc)) == movable
        if movable:
            self.ends(self.known[message_id], AVAILABLE, self.tick())

    # -- what must always be so --------------------------------------------------------------------------------

    @invariant()
    def counts_agree(self) -> None:
        if COUNT in self.can:
            states = Counter(message.state for message in self.known.values())
            assert self.store.count() == {state: states[state] for state in STATES}

    @invariant()
    def states_agree(self) -> None:
        if BROWSE in self.can:
            seen = {message.id: (message.content, message.state) for message in self.store.browse(1000)}
            assert seen == {key: (known.content, known.state) for key, known in self.known.items()}


def test_the_store_does_what_the_model_does(place: Place) -> None:
    run_state_machine_as_test(
        lambda: Comparison(place),  # type: ignore[arg-type] # it calls what it is given
        settings=settings(
            max_examples=5 if place.subject.closes_slowly else 20,
            stateful_step_count=25,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
