"""EmbeddedBroker: the stores behind the catalog, and how messages move from one to the next."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from homing import message as m
from homing.bus.broker import Administration, Broker, ReceiveLink, ReceiveOptions, SendLink
from homing.bus.embedded import rows
from homing.bus.embedded.catalog import MAX_HOPS, Catalog, CatalogEntry, dead_store
from homing.bus.entities import Subscription, Topic
from homing.bus.message import Message
from homing.bus.options import RetryOptions
from homing.bus.rules import copies
from homing.errors import ConfigurationError, NoSuchEntityError, UnstorableContentError
from homing.ids import new_id
from homing.invocation.fork_safety import start_over_after_fork
from homing.row import NANOSECONDS, envelope, refuse_bad_text
from homing.store import EXPIRED
from homing.stores.database import SqlStore, open_sql_store

log = logging.getLogger(__name__)

Result = TypeVar("Result")

# The reasons that the service writes on its dead letters.
TTL_EXPIRED = "TTLExpiredException"
NO_TARGET = "ForwardTargetNotFound"
NO_SESSION = "SessionIdMissing"
TOO_FAR = "MaxTransferHopCountExceeded"
RULE_FAILED = "FilterEvaluationException"
UNFIT = "MessageRefusedByTarget"  # ours: the service refuses such texts when they are sent

_TURN = "turn to pass on"  # what is held while passing on
_PASSED_ON = 100  # messages passed on in one transaction
_PASSING = 30.0  # seconds for which the right to pass on is held
_KEPT = 3600.0  # seconds for which finished messages are kept
_NEVER = 1_000_000_000  # the bus counts deliveries itself
_SWEEP = 1000
_CANDIDATES = 8  # ids looked for at a time


class EmbeddedBroker(Broker):
    """The bus in one SQL database. Thread-safe; any number of processes may use the same database."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self.shared_as: tuple[int, str] | None = None
        self.catalog = Catalog(url)
        self._stores: dict[tuple[str, float], SqlStore] = {}
        self._lock = threading.Lock()
        start_over_after_fork(self)

    def start_over(self) -> None:
        """Called in a forked process, where opening the bus by its URL makes a new one."""
        self._lock = threading.Lock()
        self.shared_as = None

    def open_sender(self, path: str, retry: RetryOptions) -> SendLink:
        from homing.bus.embedded.sender import EmbeddedSendLink

        return EmbeddedSendLink(self, path, retry)

    def open_receiver(self, path: str, options: ReceiveOptions, *, dead_lettered: bool = False) -> ReceiveLink:
        from homing.bus.embedded.receiver import EmbeddedReceiveLink

        return EmbeddedReceiveLink(self, path, options, dead_lettered=dead_lettered)

    def administration(self) -> Administration:
        from homing.bus.embedded.administration import EmbeddedAdministration

        return EmbeddedAdministration(self.catalog)

    def close(self) -> None:
        if self.shared_as is not None and not _given_back(self.shared_as):
            return
        with self._lock:
            for store in self._stores.values():
                store.close()
            self._stores.clear()
        self.catalog.close()

    # -- stores ------------------------------------------------------------------------------------------------

    def store_of(self, entry: CatalogEntry, *, dead: bool = False) -> SqlStore:
        """The store of an entity, or of its dead letters."""
        name, window = (dead_store(entry.store), 0.0) if dead else (entry.store, _window(entry))
        with self._lock:
            if (name, window) not in self._stores:
                options = {"store": name, "duplicate_window": window, "purge_after": max(window, _KEPT)}
                query = {key: str(value) for key, value in {**options, "max_deliveries": _NEVER}.items()}
                url = self._url.update_query_dict(query).render_as_string(hide_password=False)
                self._stores[name, window] = open_sql_store(url)
            return self._stores[name, window]

    # -- storing -----------------------------------------------------------------------------------------------

    def prepare(self, entry: CatalogEntry, message: Message, at: datetime | None = None, hops: int = 0) -> m.Message:
        """The message as the entity's store is to keep it."""
        entity = entry.entity
        row_id = new_id()
        if not isinstance(entity, Subscription) and entity.requires_duplicate_detection and message.message_id:
            row_id = self._known_by(entry, message.message_id)
        lives = [seconds for seconds in (message.time_to_live, entity.default_message_time_to_live) if seconds]
        message = replace(message, message_id=message.message_id or row_id, time_to_live=min(lives) if lives else None)
        # A message that is passed on does not expire here: it would become a dead letter of a topic.
        in_session = not isinstance(entity, Topic) and entity.requires_session
        return rows.to_store(message, row_id, in_session=in_session, expires=not entry.passes_on, at=at, hops=hops)

    def _known_by(self, entry: CatalogEntry, message_id: str) -> str:
        """The row id by which a duplicate is detected. A message that has waited for longer than the window does not
        keep out another one of its id: that one gets the next of a series of ids, which is the same for every
        sender."""
        refuse_bad_text("message_id", message_id)
        store, free, number = self.store_of(entry), "", 0
        while True:
            ids = [_candidate(message_id, number + step) for step in range(_CANDIDATES)]
            found = {kept.id: kept for kept in store.browse(_CANDIDATES, ids=ids)}
            for kept in found.values():
                assert kept.enqueued_at is not None
                age = self.catalog.database.now() / NANOSECONDS - kept.enqueued_at.timestamp()
                if age <= _window(entry):
                    return kept.id
            usable = [one for one in ids if one not in found or found[one].state == m.ACKNOWLEDGED]
            free = free or next(iter(usable), "")
            if not found or (free and len(found) < _CANDIDATES):
                return free
            number += _CANDIDATES

    def transact(self, work: Callable[[Connection], Result]) -> Result:
        """Runs `work` in one transaction over all stores of the bus."""
        return self.catalog.database.write(work)

    # -- passing on --------------------------------------------------------------------------------------------

    def pass_on_to(self, path: str) -> None:
        """Passes on all due messages that are on their way to this entity."""
        for entry in self.catalog.feeding(path):
            self.pass_on(entry)

    def pass_on(self, entry: CatalogEntry) -> None:
        """Passes on the due messages of a topic, or of a queue that forwards.

        Only one process at a time does so, which keeps the order; the others leave the work to it.
        """
        store, me, onwards = self.store_of(entry), new_id(), dict[str, CatalogEntry]()
        while store.has_due() and self.catalog.hold(entry.store, _TURN, me, _PASSING):
            try:
                batch = store.claim(_PASSED_ON, lease=_PASSING)
                if not batch:
                    break
                try:
                    onwards |= self._move(entry, store, batch)
                except Exception:
                    store.settle(batch, success=False)  # available again now, not only when the lease ends
                    raise
            finally:
                self.catalog.let_go(entry.store, _TURN, me)
        for behind in onwards.values():
            self.pass_on(behind)

    def _move(self, entry: CatalogEntry, store: SqlStore, batch: Sequence[m.Message]) -> dict[str, CatalogEntry]:
        """Moves a batch to its targets in one transaction; returns those targets that pass messages on themselves."""
        step = 0 if isinstance(entry.entity, Topic) else 1
        originals = [(rows.passed_on(kept), rows.hops(kept) + step) for kept in batch]
        places = self.catalog.database.read(
            lambda connection: [
                (place, copy, original, hops)
                for original, hops in originals
                for place, copy in self._places(connection, entry, original, hops)
            ]
        )
        # Prepared before the transaction: this may look into other stores, or make them.
        copies = [self._arriving(*arriving) for arriving in places]

        def work(connection: Connection) -> None:
            for goes_to, kept in copies:
                goes_to.store_many([kept], transaction=connection)
            store.settle(batch, transaction=connection)

        self.transact(work)
        return {place.store: place for place, *_ in places if place.passes_on and place.store != entry.store}

    def _arriving(self, place: CatalogEntry, copy: Message, original: Message, hops: int) -> tuple[SqlStore, m.Message]:
        """The store a copy goes to, and the message it is to keep. If that store would refuse the copy, the original
        becomes a dead letter: one such message must not delay the next ones."""
        try:
            kept = self._kept(place, copy, hops)
            if (refusal := self.store_of(place).refusal(kept)) is not None:
                raise refusal
        except (ArithmeticError, UnstorableContentError) as error:
            copy = _explained(original, UNFIT, str(error), place)
            kept = self._kept(place, copy, hops)
        return self.store_of(place, dead=copy.dead_letter_reason is not None), kept

    def _kept(self, place: CatalogEntry, copy: Message, hops: int) -> m.Message:
        if copy.dead_letter_reason is not None:
            return rows.to_store(copy, new_id(), in_session=False, expires=False)
        return self.prepare(place, copy, hops=hops)

    def _places(
        self, connection: Connection, entry: CatalogEntry, message: Message, hops: int
    ) -> list[tuple[CatalogEntry, Message]]:
        """The targets of a message that leaves this entity, with a copy for each; an undeliverable one is a dead
        letter."""
        if isinstance(entry.entity, Topic):
            return [
                (subscription, copy)
                for subscription in self.catalog.subscriptions(connection, entry.entity.path)
                for copy in _copies(subscription, message)
            ]
        if hops > MAX_HOPS:
            # A circle, made by two processes that changed entities at the same time.
            return [(entry, _explained(message, TOO_FAR, f"it was forwarded {MAX_HOPS} times already", entry))]
        try:
            target = self.catalog.find(connection, str(entry.entity.forward_to))
        except NoSuchEntityError as error:
            return [(entry, _explained(message, NO_TARGET, str(error), entry))]
        return [(target, _fitting(target, message))]

    # -- dead letters ------------------------------------------------------------------------------------------

    def dead_letter(self, entry: CatalogEntry, held: m.Message, reason: str, description: str | None) -> None:
        """Moves a locked message to the dead letters of its entity, in one transaction; fenced by its lock."""
        store, dead = self.store_of(entry), self.store_of(entry, dead=True)
        sequence = held.sequence_number or 0
        kept = next((row for row in store.browse(1, after=sequence - 1) if row.sequence_number == sequence), held)
        letter = _explained(rows.passed_on(kept), reason, description, entry)

        def work(connection: Connection) -> None:
            # Fenced first: a message whose lock is lost is not copied either.
            store.acknowledge(held, transaction=connection)
            dead.store_many([_as_letter(letter, kept)], transaction=connection)

        self.transact(work)
        log.warning("message %s of %r was dead-lettered: %s", letter.message_id, entry.entity.path, reason)

    def collect_dead(self, entry: CatalogEntry) -> None:
        """Moves what the store itself found dead to the dead letters, or drops it if the entity says so."""
        store, dead = self.store_of(entry), self.store_of(entry, dead=True)
        store.expire()
        while found := store.browse(_SWEEP, state=m.DEAD):
            keeps = isinstance(entry.entity, Topic) or entry.entity.dead_lettering_on_message_expiration
            letters = [
                _as_letter(_explained(rows.passed_on(kept), *_said(kept), entry), kept)
                for kept in found
                if keeps or kept.dead_letter_reason != EXPIRED
            ]
            dead.store_many(letters)
            # Only after the copies are durable; repeating it stores no copy twice.
            store.finish_dead([kept.id for kept in found])


_open: dict[tuple[int, str], tuple[EmbeddedBroker, int]] = {}
_opening = threading.Lock()


def _start_over() -> None:
    global _opening  # noqa: PLW0603 - a forked process has the lock of a thread that it does not have
    _opening = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_over)


def open_embedded(url: str) -> EmbeddedBroker:
    """The bus in the database of this URL; raises ConfigurationError for anything but a database URL.

    All callers in a process share one bus per URL, with its connections; the last to close it closes it.
    """
    with _opening:
        key = (os.getpid(), url)
        broker, users = _open.get(key) or (EmbeddedBroker(_checked(url)), 0)
        broker.shared_as = key
        _open[key] = (broker, users + 1)
        return broker


def _given_back(key: tuple[int, str]) -> bool:
    """Whether no caller uses it any more."""
    with _opening:
        broker, users = _open.pop(key)
        if users > 1:
            _open[key] = (broker, users - 1)
        return users == 1


def _checked(url: str) -> URL:
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # which quote the URL
        raise ConfigurationError("this is not a database URL such as sqlite:///bus.db") from None
    if parsed.query:
        raise ConfigurationError(f"the URL of a bus takes no options, got {', '.join(parsed.query)}")
    open_sql_store(url).close()  # refuses a database that SQL stores do not support
    return parsed


def _candidate(message_id: str, number: int) -> str:
    """The row id of the first, second … message of this id; no other message can get the same."""
    return message_id if number == 0 else str(uuid.uuid5(uuid.NAMESPACE_OID, f"{number} {message_id}"))


def _window(entry: CatalogEntry) -> float:
    entity = entry.entity
    if isinstance(entity, Subscription) or not entity.requires_duplicate_detection:
        return 0.0
    return entity.duplicate_detection_window


def _explained(message: Message, reason: str, description: str | None, entry: CatalogEntry) -> Message:
    return replace(
        message,
        dead_letter_reason=reason,
        dead_letter_error_description=description,
        dead_letter_source=entry.entity.path,
    )


def _copies(subscription: CatalogEntry, message: Message) -> list[Message]:
    """The copies of a message for a subscription; a dead letter if its rules fail, so that others are not delayed."""
    try:
        found = copies(subscription.rules, message)
        for copy in found:
            envelope(rows.to_store(copy, "", in_session=False, expires=False))
    except Exception as error:  # noqa: BLE001 - whatever an expression does, it fails this one copy
        return [_explained(message, RULE_FAILED, str(error), subscription)]
    return [_fitting(subscription, copy) for copy in found]


def _fitting(entry: CatalogEntry, message: Message) -> Message:
    """The message, or a dead letter if the entity requires a session and the message has none."""
    entity = entry.entity
    if isinstance(entity, Topic) or not entity.requires_session or message.session_id:
        return message
    return _explained(message, NO_SESSION, f"{entity.path!r} accepts only messages with a session_id", entry)


def _as_letter(letter: Message, kept: m.Message) -> m.Message:
    """The id comes from the message's place in the old store: it is moved once, and never confused with another."""
    return rows.to_store(letter, f"{kept.sequence_number}:{kept.id}", in_session=False, expires=False)


def _said(kept: m.Message) -> tuple[str, str | None]:
    reason = TTL_EXPIRED if kept.dead_letter_reason == EXPIRED else str(kept.dead_letter_reason)
    return reason, kept.dead_letter_description
