"""The broker behind the test server: queues, topics, locks, sessions. One thread, no I/O, a real clock."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from tests.servicebus.letters import Letter
from tests.servicebus.rules import Rule, copies

ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2


class Refusal(Exception):
    """An AMQP error: its condition and text."""

    def __init__(self, condition: str, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.condition, self.text, self.status = condition, text, status


def lock_lost(text: str) -> Refusal:
    return Refusal("com.microsoft:message-lock-lost", text, 410)


def too_large(size: int, limit: int) -> Refusal:
    return Refusal(
        "amqp:link:message-size-exceeded", f"The message of {size} bytes exceeds the limit of {limit} bytes."
    )


def not_found(text: str) -> Refusal:
    return Refusal("amqp:not-found", f"The messaging entity '{text}' could not be found.", 404)


@dataclass(eq=False)
class Entry:
    """A message in a queue."""

    sequence: int
    letter: Letter
    enqueued: float
    enqueued_sequence: int
    state: int = ACTIVE
    due: float = 0.0
    expires: float | None = None
    delivery_count: int = 0
    token: uuid.UUID | None = None
    locked_until: float = 0.0

    @property
    def session(self) -> str | None:
        return self.letter.properties.get("session_id")


@dataclass
class Settings:
    """What an administrator can say of an entity."""

    lock_duration: float = 30.0
    max_delivery_count: int = 10
    time_to_live: float | None = None
    dead_letter_expired: bool = True
    requires_session: bool = False
    forward_to: str | None = None
    duplicate_window: float | None = None
    max_message_size: int = 262_144


@dataclass(eq=False)
class Hold:
    """A session in a receiver's hands."""

    owner: Any
    until: float


class Queue:
    """A queue, a subscription or a dead-letter queue."""

    def __init__(self, broker: Broker, path: str, settings: Settings, *, dead: Queue | None = None) -> None:
        self.broker, self.path, self.settings, self.dead = broker, path, settings, dead
        self.entries: dict[int, Entry] = {}
        self.sessions: dict[str, Hold] = {}
        self._numbers = count(1)
        self._seen: dict[str, float] = {}

    # -- arriving ----------------------------------------------------------------------------------------------

    def is_duplicate(self, letter: Letter) -> bool:
        window, now = self.settings.duplicate_window, time.time()
        message_id = letter.properties.get("message_id")
        if window is None or message_id is None:
            return False
        known = self._seen.get(message_id, 0) > now - window
        self._seen[message_id] = self._seen[message_id] if known else now
        return known

    def put(self, letter: Letter, due: float | None = None, origin: Entry | None = None) -> Entry:
        now, number = time.time(), next(self._numbers)
        lives = [life for life in (letter.time_to_live, self.settings.time_to_live) if life is not None]
        entry = Entry(number, letter, now, origin.enqueued_sequence if origin else number)
        if due is not None and due > now:
            entry.state, entry.due = SCHEDULED, due
        if lives and self.dead is not None:
            entry.expires = max(now, entry.due) + min(lives)
        self.entries[number] = entry
        return entry

    # -- handing out -------------------------------------------------------------------------------------------

    def available(self, session: str | None = None) -> Iterator[Entry]:
        for entry in list(self.entries.values()):
            if entry.state == ACTIVE and entry.token is None and (session is None or entry.session == session):
                yield entry

    def lock(self, entry: Entry) -> None:
        entry.token = uuid.uuid4()
        hold = self.sessions.get(entry.session or "")
        entry.locked_until = hold.until if hold else time.time() + self.settings.lock_duration

    def by_token(self, token: uuid.UUID) -> Entry:
        for entry in self.entries.values():
            if entry.token == token and entry.locked_until > time.time():
                return entry
        raise lock_lost(f"The lock supplied is invalid: {token}")

    # -- settling ----------------------------------------------------------------------------------------------

    def complete(self, entry: Entry) -> None:
        del self.entries[entry.sequence]

    def abandon(self, entry: Entry) -> None:
        entry.token = None
        entry.delivery_count += 1
        if self.dead is not None and entry.delivery_count >= self.settings.max_delivery_count:
            self.bury(entry, "MaxDeliveryCountExceeded", "Message could not be consumed after max delivery attempts.")

    def defer(self, entry: Entry) -> None:
        entry.token, entry.state = None, DEFERRED

    def release(self, entry: Entry) -> None:
        entry.token = None

    def bury(self, entry: Entry, reason: str | None, description: str | None) -> None:
        del self.entries[entry.sequence]
        assert self.dead is not None
        said = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        said = {key: value for key, value in said.items() if value is not None}
        letter = replace(entry.letter, application={**entry.letter.application, **said})
        buried = self.dead.put(letter, origin=entry)
        buried.delivery_count = entry.delivery_count

    def tick(self) -> None:
        now = time.time()
        for entry in list(self.entries.values()):
            if entry.token is not None and entry.locked_until <= now:
                self.abandon(entry)
            elif entry.state == SCHEDULED and entry.due <= now:
                # It goes to the tail, under a new number.
                del self.entries[entry.sequence]
                entry.sequence, entry.state = next(self._numbers), ACTIVE
                self.entries[entry.sequence] = entry
            elif entry.expires is not None and entry.expires <= now and entry.token is None and entry.state == ACTIVE:
                if self.settings.dead_letter_expired:
                    self.bury(entry, "TTLExpiredException", "The message expired and was dead lettered.")
                else:
                    del self.entries[entry.sequence]


@dataclass
class Subscription:
    queue: Queue
    rules: dict[str, Rule] = field(default_factory=dict)


class Topic:
    def __init__(self, broker: Broker, path: str, settings: Settings) -> None:
        self.path = path
        self.subscriptions: dict[str, Subscription] = {}
        # Holds what is scheduled, and knows duplicates; what is due there goes to the subscriptions.
        self.inbox = Queue(broker, path, settings)


class Broker:
    """All entities, by lower-case path."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.topics: dict[str, Topic] = {}
        #: Settings of queues that come into being when they are first used; None: those are not found.
        self.create_missing: Settings | None = None

    def make_queue(self, path: str, settings: Settings) -> Queue:
        dead = Queue(self, f"{path}/$deadletterqueue", replace(settings, requires_session=False, time_to_live=None))
        self.queues[path.lower()] = queue = Queue(self, path, settings, dead=dead)
        return queue

    def make_topic(self, path: str, settings: Settings) -> Topic:
        self.topics[path.lower()] = topic = Topic(self, path, settings)
        return topic

    def remove(self, path: str) -> None:
        path = path.lower()
        self.topics.pop(path, None)
        for key in [key for key in self.queues if key == path or key.startswith(f"{path}/subscriptions/")]:
            del self.queues[key]

    def receivable(self, path: str) -> Queue:
        key = path.lower().removesuffix("/$deadletterqueue")
        if key not in self.queues and key not in self.topics and self.create_missing is not None:
            self.make_queue(key, self.create_missing)
        if key not in self.queues:
            raise not_found(path)
        queue = self.queues[key]
        if key == path.lower():
            if queue.settings.forward_to is not None:
                raise Refusal("amqp:not-allowed", "It is not possible to receive from an entity that forwards.")
            return queue
        assert queue.dead is not None
        return queue.dead

    def inbox(self, path: str) -> Queue:
        """Where what is sent to this path arrives."""
        key = path.lower()
        return self.topics[key].inbox if key in self.topics else self._sendable(key)

    def _sendable(self, key: str) -> Queue:
        if key not in self.queues and self.create_missing is not None:
            self.make_queue(key, self.create_missing)
        if key not in self.queues:
            raise not_found(key)
        return self.queues[key]

    def send(self, path: str, letters: list[Letter]) -> list[Entry]:
        """All or none of them."""
        queue = self.inbox(path)
        if queue.settings.requires_session and not all(letter.properties.get("session_id") for letter in letters):
            raise Refusal(
                "amqp:not-allowed", "The SessionId was not set on a message, and the entity requires sessions."
            )
        sent = [queue.put(letter, letter.scheduled_for) for letter in letters if not queue.is_duplicate(letter)]
        self.pass_on()
        return sent

    def pass_on(self) -> None:
        for topic in self.topics.values():
            for entry in list(topic.inbox.available()):
                topic.inbox.complete(entry)
                for subscription in topic.subscriptions.values():
                    for copy in copies(subscription.rules.values(), entry.letter):
                        subscription.queue.put(copy, origin=entry)
        for queue in list(self.queues.values()):
            if queue.settings.forward_to is not None:
                for entry in list(queue.available()):
                    queue.complete(entry)
                    self.inbox(queue.settings.forward_to).put(entry.letter, origin=entry)

    def tick(self) -> None:
        for topic in self.topics.values():
            topic.inbox.tick()
        for queue in list(self.queues.values()):
            queue.tick()
            if queue.dead is not None:
                queue.dead.tick()
        self.pass_on()
