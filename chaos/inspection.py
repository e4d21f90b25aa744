"""Looking into the stores of a subject when all is quiet: what is still there, and what is among the dead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from chaos.destination import fault_of
from chaos.subjects import Subject
from chaos.workers import QUEUE
from homing import Message, bus, open_store
from homing.bus.embedded.broker import open_embedded
from homing.failure import is_record, read_record
from homing.message import AVAILABLE, DEAD, LEASED, SCHEDULED
from homing.store import BROWSE
from homing.stores.rabbitmq.store import RabbitStore
from homing.stores.sql import SqlStore

# What is dead belongs into the dead-letter store: where a store keeps it aside, somebody has yet to bring it there.
_UNFINISHED = (AVAILABLE, LEASED, SCHEDULED, DEAD)
_MANY = 100_000


@dataclass(frozen=True)
class Letter:
    """A dead letter: whose it is, why it is dead, and what is wrong with it. A pipeline's has `errors` by flow."""

    message_id: str
    reason: str
    errors: dict[str, str] = field(default_factory=dict)
    fault: str = ""


class Inspector:
    """Looks into the stores of one subject, directly.

    What a broker has to hand out to be looked at is kept here: a message that is handed out again and again would be
    taken for one that kills.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._kept: list[Letter] = []

    def still_there(self) -> list[str]:
        """The messages that wait, are held, or have not been brought to the dead-letter store."""
        subject = self._subject
        found = list(self._in_store(subject.store))
        if subject.source:
            found += self._in_bus() if subject.source.startswith("bus:") else self._in_store(subject.source)
        return found

    def letters(self) -> list[Letter]:
        """All that is in the dead-letter store; for an intake, among the dead of its source as well."""
        subject = self._subject
        if subject.source.startswith("bus:"):
            self._take_bus_letters()
        with open_store(subject.dead) as dead:
            if BROWSE in dead.features:
                return [*self._kept, *(_letter_of(message) for message in dead.browse(_MANY))]
            while (message := dead.retrieve()) is not None:
                self._kept.append(_letter_of(message))
                dead.acknowledge(message)
        return self._kept

    def _in_store(self, url: str) -> Iterator[str]:
        with open_store(url) as store:
            if isinstance(store, RabbitStore):
                for state, number in store.lengths().items():
                    if state in _UNFINISHED:
                        yield from [f"one {state} at the broker"] * number
                return
            assert isinstance(store, SqlStore)
            with store.sibling(f"{store.name}_failures") as failures:
                failures.count()  # makes the table that a listener does without
                for each in (store, failures):
                    yield from (one.rpartition("/")[2] for one, state, _ in each.view.states() if state in _UNFINISHED)

    def _in_bus(self) -> list[str]:
        broker = open_embedded(self._subject.source.removeprefix("bus:"))
        try:
            with broker.store_of(broker.catalog.get(QUEUE)) as queue:
                return [f"{one} on the bus" for one, state, _ in queue.view.states() if state in _UNFINISHED]
        finally:
            broker.close()

    def _take_bus_letters(self) -> None:
        with bus.MessageReceiver(self._subject.source.removeprefix("bus:"), queue=QUEUE) as receiver:
            while (found := receiver.receive(dead_lettered=True, server_wait_time=0)) is not None:
                name = found.message_id or ""
                self._kept.append(Letter(name, found.dead_letter_reason or "", {}, fault_of(name, found.body)))
                receiver.complete(found)


def _letter_of(message: Message) -> Letter:
    """A pipeline's letter is a failure record; a listener's is the message, which says in a header whose it is."""
    if is_record(message.content):
        record = read_record(message.content)
        errors = {flow: str(error["type"]) for flow, error in record.errors.items()}
        original: Any = record.message.content
        name = record.message.id
    else:
        errors, original = {}, message.content
        name = str(message.headers.get("homing-message-id") or message.id)
    return Letter(name, message.dead_letter_reason or "", errors, fault_of(name, original))
