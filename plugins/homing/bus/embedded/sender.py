"""Sending to a queue or topic of the embedded bus."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from homing import message as m
from homing.bus.broker import SendLink
from homing.bus.embedded.catalog import CatalogEntry
from homing.bus.embedded.retry import call_with_retries
from homing.bus.entities import Subscription, Topic
from homing.bus.message import Message
from homing.bus.options import RetryOptions
from homing.errors import ConfigurationError, HomingError, TooLargeError

if TYPE_CHECKING:
    from homing.bus.embedded.broker import EmbeddedBroker

log = logging.getLogger(__name__)


class EmbeddedSendLink(SendLink):
    def __init__(self, broker: EmbeddedBroker, path: str, retry: RetryOptions) -> None:
        super().__init__(path)
        self._broker = broker
        self._retry = retry

    def send(self, messages: Sequence[Message]) -> None:
        entry = self._entry()
        self._store(entry, [self._prepared(entry, message) for message in messages])
        if entry.passes_on:
            self._pass_on(entry)

    def _pass_on(self, entry: CatalogEntry) -> None:
        try:
            self._broker.pass_on(entry)
        except HomingError as error:
            # What was sent is durable: an error would make the caller send it again. The next receiver passes it on.
            log.warning("messages sent to %r are durable, but could not be passed on yet: %s", self._path, error)

    def schedule(self, message: Message, at: datetime) -> int:
        entry = self._entry()
        kept = self._prepared(entry, message, at)
        self._store(entry, [kept])
        (stored,) = self._broker.store_of(entry).browse(1, ids=[kept.id])
        assert stored.sequence_number is not None
        return stored.sequence_number

    def cancel(self, sequence_number: int) -> None:
        store = self._broker.store_of(self._entry())
        scheduled = store.browse(1, state=m.SCHEDULED, after=sequence_number - 1)
        mine = [kept.id for kept in scheduled if kept.sequence_number == sequence_number]
        if not mine or not store.cancel(mine[0]):
            raise self._not_scheduled(sequence_number)

    def close(self) -> None:
        """Holds no resources."""

    def _entry(self) -> CatalogEntry:
        entry = call_with_retries(self._retry, lambda: self._broker.catalog.get(self._path))
        if isinstance(entry.entity, Subscription):
            raise ConfigurationError(f"{self._path!r} is a subscription: send to its topic")
        return entry

    def _prepared(self, entry: CatalogEntry, message: Message, at: datetime | None = None) -> m.Message:
        entity = entry.entity
        if not isinstance(entity, Topic) and entity.requires_session and not message.session_id:
            raise ConfigurationError(f"queue {entity.path!r} accepts only messages with a session_id")
        return self._broker.prepare(entry, message, at)

    def _store(self, entry: CatalogEntry, messages: Sequence[m.Message]) -> None:
        """All or none. The messages have their ids by now, so that a repeated attempt stores none twice."""
        assert not isinstance(entry.entity, Subscription)
        limit, size = entry.entity.max_message_size, sum(_size(message) for message in messages)
        if size > limit:
            what = "the message has" if len(messages) == 1 else f"the batch of {len(messages)} messages has"
            raise TooLargeError(
                f"{what} {size} bytes, more than the limit of {limit} of {self._path!r}; nothing was sent"
            )
        call_with_retries(self._retry, lambda: self._broker.store_of(entry).store_many(messages))


def _size(message: m.Message) -> int:
    body = message.content if isinstance(message.content, bytes) else m.encode(message.content).body.encode()
    return len(body) + len((m.encode_headers(message.headers) or "").encode())
