"""Publisher: sends messages, persistent, mandatory and confirmed by the broker, with many confirms in flight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from homing.errors import PartlyStoredError, StoreError, StoreUnavailableError
from homing.stores.rabbitmq.connection import Link
from homing.stores.rabbitmq.envelope import Outgoing
from homing.stores.rabbitmq.options import RabbitOptions
from homing.stores.rabbitmq.topology import declare_store, delay_name, look, make_levels, settle_store

_IN_FLIGHT = 1000
_TOGETHER = 50


class Publisher:
    """Sends over its own connection: when the broker blocks publishers, consumers can still acknowledge."""

    def __init__(self, parameters: Any, options: RabbitOptions, *, only_looks: bool = False) -> None:
        self._name = options.name
        self._only_looks = only_looks
        self._queue_type = options.queue_type
        self.link = Link(parameters, options.name, timeout=options.timeout, prepare=self._prepare)
        self._levels = 0  # so many are known to be there
        self._is_doubtful = False  # whether some of them may be gone
        self._sent = 0  # on this channel: the broker counts with us
        self._first = 0  # the number of the first packed of this call
        self._confirmed = bytearray()  # one byte for each packed of this call
        self._open_from = 0  # every packed before this one is confirmed or refused
        self._answered = 0
        self._refused: list[int] = []
        self._returned: dict[str, str] = {}

    def publish(self, outgoing: Sequence[Outgoing]) -> None:
        """Returns when the broker has taken responsibility for all of them.

        Raises StoreError when it refused or could not route one, StoreUnavailableError when the connection was lost
        before it answered for one, PartlyStoredError when it had answered for others by then.
        """
        with self.link.lock:
            self.link.open()
            waits = [int(packed.exchange.rpartition(".")[2]) for packed in outgoing if packed.exchange]
            if waits:
                self._require_level(max(waits))
            self._begin(len(outgoing))
            try:
                self._send(outgoing)
            except StoreUnavailableError as error:
                raise self._unfinished(outgoing, error) from error
            except BaseException:
                self.link.close()  # answers that are still to come must not be mixed up with those of the next call
                raise
            if self._refused or self._returned:
                raise self._not_taken(outgoing)

    def _begin(self, count: int) -> None:
        self._first = self._sent + 1
        self._confirmed = bytearray(count)
        self._open_from = self._answered = 0
        self._refused, self._returned = [], {}

    def _send(self, outgoing: Sequence[Outgoing]) -> None:
        link = self.link
        for start in range(0, len(outgoing), _TOGETHER):
            group = outgoing[start : start + _TOGETHER]
            publish = link.channel.basic_publish
            with link.together():
                for packed in group:
                    publish(packed.exchange, packed.routing_key, packed.body, packed.properties, mandatory=True)
            self._sent += len(group)
            link.poll()
            if start - self._answered >= _IN_FLIGHT:
                link.run(partial(self._has_answered, start - _IN_FLIGHT // 2))
        link.run(partial(self._has_answered, len(outgoing)))

    def _has_answered(self, count: int) -> bool:
        return self._answered >= count

    def _on_answer(self, frame: Any) -> None:
        """The broker confirms or refuses one packed, or all up to it."""
        method = frame.method
        last = method.delivery_tag - self._first
        if last < 0:
            return  # the answer to an earlier call, which is over
        first = self._open_from if method.multiple else last
        taken = method.NAME == "Basic.Ack"
        for index in range(first, last + 1):
            if self._confirmed[index]:
                continue
            self._confirmed[index] = 1
            self._answered += 1
            if not taken:
                self._refused.append(index)
        if first == self._open_from:
            self._open_from = last + 1

    def _on_return(self, _channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        self._returned[properties.message_id or "?"] = f"{method.reply_text} ({method.routing_key})"

    def _unfinished(self, outgoing: Sequence[Outgoing], error: StoreUnavailableError) -> StoreUnavailableError:
        refused = set(self._refused)
        stored = [
            packed.message_id
            for index, packed in enumerate(outgoing)
            if self._confirmed[index] and index not in refused and packed.message_id not in self._returned
        ]
        if len(outgoing) == 1:
            return StoreUnavailableError(f"message {outgoing[0].message_id} may or may not be stored: {error}")
        return PartlyStoredError(
            f"{len(stored)} of {len(outgoing)} messages are stored, the others may or may not be; "
            f"store them again under the same ids: {error}",
            ids=[packed.message_id for packed in outgoing],
            stored=stored,
        )

    def _not_taken(self, outgoing: Sequence[Outgoing]) -> StoreError:
        bad = len(self._refused) + len(self._returned)
        if self._returned:
            message_id, why = next(iter(self._returned.items()))
            self._is_doubtful = True
            self.link.close()  # a queue is missing: the next connection creates it again
        else:
            message_id, why = outgoing[self._refused[0]].message_id, "refused, as a full queue does"
        return StoreError(
            f"store {self._name!r}: RabbitMQ did not take {bad} of {len(outgoing)} messages; "
            f"the first is {message_id}: {why}"
        )

    def _prepare(self) -> None:
        if self._only_looks:
            return
        link, channel = self.link, self.link.channel
        declare_store(link, self._name, self._queue_type)
        settle_store(link, self._name, self._queue_type)
        channel.add_on_return_callback(self._on_return)
        self._sent = self._levels = 0
        answered: list[Any] = []
        channel.confirm_delivery(self._on_answer, answered.append)
        link.run(lambda: bool(answered))

    def _require_level(self, level: int) -> None:
        """Makes the levels of waiting up to this one, where it is not there: then all below it are."""
        if level < self._levels:
            return
        if self._is_doubtful or not self._has_exchange(delay_name(self._name, level)):
            make_levels(self.link, self._name, level)
            self._is_doubtful = False
        self._levels = level + 1

    def waiting(self) -> int:
        """How many messages wait in the levels there are."""
        total, level = 0, 0
        with self.link.lock:
            self.link.open()
            while (found := self._queue_length(delay_name(self._name, level))) is not None:
                total += found
                level += 1
        return total

    def length(self, queue: str) -> int:
        """How many messages are ready in a queue."""
        with self.link.lock:
            self.link.open()
            return self._queue_length(queue) or 0

    def has_queue(self, queue: str) -> bool:
        with self.link.lock:
            self.link.open()
            return self._queue_length(queue) is not None

    def _queue_length(self, queue: str) -> int | None:
        """The number of ready messages; None if the queue does not exist."""
        answer = look(self.link, "queue_declare", queue=queue)
        return None if answer is None else int(answer.method.message_count)

    def _has_exchange(self, exchange: str) -> bool:
        return look(self.link, "exchange_declare", exchange=exchange) is not None
