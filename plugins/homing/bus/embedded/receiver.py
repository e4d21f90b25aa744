"""Receiving from a queue or subscription of the embedded bus, or from its dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from homing import message as m
from homing.bus.broker import NEXT_SESSION, ReceiveLink, ReceiveOptions
from homing.bus.embedded import rows
from homing.bus.embedded.catalog import CatalogEntry
from homing.bus.embedded.retry import call_with_retries
from homing.bus.entities import Receivable
from homing.bus.message import Message
from homing.bus.options import ReceiveMode
from homing.errors import ConfigurationError, LeaseLostError, SessionHeldError
from homing.ids import new_id
from homing.invocation.fork_safety import start_over_after_fork
from homing.lease_renewer import LeaseRenewer
from homing.row import from_nanoseconds
from homing.stores.database import SqlStore

if TYPE_CHECKING:
    from homing.bus.embedded.broker import EmbeddedBroker

_LOOK_AGAIN = 0.25  # seconds; a waiting receiver also passes on what is on its way here
_PAUSE = 0.02
_PAGE = 100
_SESSION = "session"  # the key of its lock at the renewer; messages use their tokens
# The reason that the service writes on such dead letters.
_MAX_DELIVERIES = "MaxDeliveryCountExceeded"


class EmbeddedReceiveLink(ReceiveLink):
    def __init__(
        self, broker: EmbeddedBroker, path: str, options: ReceiveOptions, *, dead_lettered: bool = False
    ) -> None:
        super().__init__(path, options, dead_lettered=dead_lettered)
        self._broker = broker
        self._me = new_id()
        self._session: str | None = None
        self._leases = LeaseRenewer("homing-bus-locks")
        start_over_after_fork(self)

    def start_over(self) -> None:
        """Called in a forked process, which is a separate receiver: a session stays the parent's."""
        self._me = new_id()
        self._session = None

    # -- receiving ---------------------------------------------------------------------------------------------

    def receive(self, limit: int, wait: float) -> list[Message]:
        deadline = time.monotonic() + wait
        while True:
            found = call_with_retries(self._options.retry, lambda: self._look(limit))
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            pause = min(left, _LOOK_AGAIN)
            call_with_retries(self._options.retry, lambda pause=pause: self._store(self._entry()).wait(pause))  # type: ignore[misc]
            time.sleep(_PAUSE)  # due messages may belong to another session or receiver

    def _look(self, limit: int) -> list[Message]:
        """Up to `limit` messages that are available now."""
        entry = self._entry()
        if self._dead:
            self._broker.collect_dead(entry)
        else:
            self._broker.pass_on_to(self._path)
            if not self._hold_session(entry):
                return []
        while claimed := self._claim(entry, limit):
            kept = [message for message in claimed if not self._used_up(entry, message)]
            if self._options.mode is ReceiveMode.RECEIVE_AND_DELETE:
                self._store(entry).settle(kept)
                return [rows.to_bus(_unlocked(message)) for message in kept]
            if kept:
                return self._handed_out(entry, kept)
        return []

    def _claim(self, entry: CatalogEntry, limit: int) -> list[m.Message]:
        session = None if self._dead else self._session
        return self._store(entry).claim(limit, lease=_lock_duration(entry), session_id=session)

    def _used_up(self, entry: CatalogEntry, message: m.Message) -> bool:
        """Whether it was handed out as often as allowed; if so, it has been dead-lettered."""
        allowed = _receivable(entry).max_delivery_count
        if self._dead or message.delivery_count <= allowed:
            return False
        self._broker.dead_letter(
            entry, message, _MAX_DELIVERIES, f"it was handed out {allowed} times and never completed"
        )
        return True

    def _handed_out(
        self, entry: CatalogEntry, messages: Sequence[m.Message], *, state: str = m.LEASED
    ) -> list[Message]:
        until = self._until(entry)
        given = [rows.to_bus(replace(message, state=state), locked_until=until) for message in messages]
        for message in given:
            renew = partial(self._renewed, message)
            self._keep(str(message.lock_token), f"message {message.message_id}", renew, entry)
        return given

    def _keep(self, key: str, what: str, renew: Callable[[], float], entry: CatalogEntry) -> None:
        longest = self._options.max_auto_lock_renew_duration
        self._leases.keep(key, what, renew, lasts=_lock_duration(entry), longest=longest)

    def _renewed(self, message: Message) -> float:
        self.renew_lock(message)
        return _lock_duration(self._entry())

    def receive_deferred(self, sequence_number: int) -> Message:
        entry = self._entry()
        store = self._store(entry)
        deferred = store.browse(1, state=m.DEFERRED, after=sequence_number - 1)
        ids = [kept.id for kept in deferred if kept.sequence_number == sequence_number]
        messages = store.receive_deferred(ids, lease=_lock_duration(entry)) if ids else []
        if not messages:
            raise self._not_deferred(sequence_number)
        if self._options.mode is ReceiveMode.RECEIVE_AND_DELETE:
            store.settle(messages)
            return rows.to_bus(replace(_unlocked(messages[0]), state=m.DEFERRED))
        return self._handed_out(entry, messages, state=m.DEFERRED)[0]

    # -- settling ----------------------------------------------------------------------------------------------

    def complete(self, message: Message) -> None:
        self._store(self._entry()).acknowledge(rows.held(message))
        self._leases.forget(str(message.lock_token))

    def abandon(self, message: Message) -> None:
        entry, held = self._entry(), rows.held(message)
        allowed = _receivable(entry).max_delivery_count
        if not self._dead and message.delivery_count >= allowed:
            text = f"it was handed out {allowed} times and never completed"
            self._broker.dead_letter(entry, held, _MAX_DELIVERIES, text)
        else:
            self._store(entry).acknowledge(held, success=False)
        self._leases.forget(str(message.lock_token))

    def dead_letter(self, message: Message, reason: str, description: str | None) -> None:
        self._refuse_dead(message)
        self._broker.dead_letter(self._entry(), rows.held(message), reason, description)
        self._leases.forget(str(message.lock_token))

    def defer(self, message: Message) -> None:
        self._refuse_dead(message)
        self._store(self._entry()).defer(rows.held(message))
        self._leases.forget(str(message.lock_token))

    def renew_lock(self, message: Message) -> datetime:
        entry = self._entry()
        if self._session is not None:
            self._keep_session(entry)
        self._store(entry).renew(rows.held(message), _lock_duration(entry))
        return self._until(entry)

    def close(self) -> None:
        self._leases.close()
        if self._session is not None:
            self._broker.catalog.let_go(self._entry().store, _session_key(self._session), self._me)
            self._session = None

    # -- sessions ----------------------------------------------------------------------------------------------

    @property
    def session_id(self) -> str | None:
        return self._session

    def _hold_session(self, entry: CatalogEntry) -> bool:
        """Whether no session is required, or this receiver has its lock."""
        wanted = self._options.session_id
        if not _receivable(entry).requires_session:
            if wanted is not None:
                raise ConfigurationError(f"{self._path!r} has no sessions: omit session_id")
            return True
        if wanted is None:
            raise ConfigurationError(f"{self._path!r} requires sessions: receive with session_id or NEXT_SESSION")
        if self._session is not None:
            self._keep_session(entry)
        elif wanted == NEXT_SESSION:
            if not self._take_next_session(entry):
                return False
        elif not self._take_session(entry, wanted):
            raise SessionHeldError(f"session {wanted!r} of {self._path!r} is held by another receiver")
        self._keep(_SESSION, f"session {self._session}", self._renewed_session, entry)
        return True

    def _renewed_session(self) -> float:
        entry = self._entry()
        self._keep_session(entry)
        return _lock_duration(entry)

    def _take_next_session(self, entry: CatalogEntry) -> bool:
        store, held, after = self._store(entry), self._broker.catalog.held(entry.store), 0
        while page := store.browse(_PAGE, state=m.AVAILABLE, after=after):
            for message in page:
                session = message.session_id
                if session and _session_key(session) not in held and self._take_session(entry, session):
                    return True
            after = page[-1].sequence_number or 0
        return False

    def _take_session(self, entry: CatalogEntry, session: str) -> bool:
        if not self._broker.catalog.hold(entry.store, _session_key(session), self._me, _lock_duration(entry)):
            return False
        self._session = session
        return True

    def _keep_session(self, entry: CatalogEntry) -> None:
        assert self._session is not None
        key = _session_key(self._session)
        if not self._broker.catalog.keep(entry.store, key, self._me, _lock_duration(entry)):
            raise LeaseLostError(
                f"the lock on session {self._session!r} of {self._path!r} ran out: open a new receiver"
            )

    # -- inside ------------------------------------------------------------------------------------------------

    def _entry(self) -> CatalogEntry:
        entry = self._broker.catalog.get(self._path)
        if not isinstance(entry.entity, Receivable):
            raise ConfigurationError(f"{self._path!r} is a topic: receive from one of its subscriptions")
        if entry.passes_on and not self._dead:
            raise ConfigurationError(f"{self._path!r} forwards to {entry.entity.forward_to!r}: receive from there")
        return entry

    def _store(self, entry: CatalogEntry) -> SqlStore:
        return self._broker.store_of(entry, dead=self._dead)

    def _until(self, entry: CatalogEntry) -> datetime:
        return from_nanoseconds(self._broker.catalog.database.now()) + timedelta(seconds=_lock_duration(entry))


def _receivable(entry: CatalogEntry) -> Receivable:
    assert isinstance(entry.entity, Receivable)
    return entry.entity


def _lock_duration(entry: CatalogEntry) -> float:
    return _receivable(entry).lock_duration


def _session_key(session: str) -> str:
    return f"session {session}"


def _unlocked(message: m.Message) -> m.Message:
    return replace(message, lock_token=None)
