"""InFlight: what a listener holds, what is due, and when to ask the store again. No store is called here."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from homing.listener.delivery import Delivery
from homing.message import Message

RUNNING = "running"
DRAINING = "draining"
STOPPED = "stopped"

#: With so many messages held, nearly all of them waiting for their next attempt, others wait in the store if it can.
MAX_HELD = 1000
_LATE = 0.2  # seconds by which a store may be late with what it kept for a while
_FORGET_FROM = 10_000
_FORGET_AFTER = 3600.0  # seconds for which a message that went back to the store may have gone elsewhere


def _do_nothing(_: Delivery) -> None: ...


@dataclass(frozen=True)
class Redelivery:
    """What is known of a message that went back to its store: when to go on with it, after how many attempts."""

    due: float
    attempts: int = 0
    isolated: bool = False


def _key(message: Message) -> tuple[str, object]:
    """Which message this is. An id is not enough: a store that keeps no ids apart may hold two messages of one id.

    Without a sequence number nothing tells a message that came back from another of its id: it is taken for another,
    and handled again, which is allowed; to settle the one for the other would lose a message.
    """
    return message.id, message.lock_token if message.sequence_number is None else message.sequence_number


class InFlight:
    """Shared by all threads of one run. Thread-safe."""

    def __init__(
        self,
        polling_interval: float,
        batch_size: int,
        *,
        keep: Callable[[Delivery], object] = _do_nothing,
        forget: Callable[[Delivery], object] = _do_nothing,
    ) -> None:
        """`keep` and `forget` are called when a message comes to be held, or is held under a new lease, and when it
        is not held any more."""
        self._keep_lease = keep
        self._forget_lease = forget
        self._polling_interval = polling_interval
        self._batch_size = batch_size
        self._changed = threading.Condition()
        self._phase = RUNNING
        self._held: dict[tuple[str, object], Delivery] = {}
        self._waiting: list[tuple[float, int, Delivery]] = []
        self._order = itertools.count()
        self._redeliveries: dict[str, Redelivery] = {}
        self._forget_from = _FORGET_FROM
        self._isolates = False
        self._next_poll = 0.0
        self._expected: list[float] = []
        self._is_polling = False
        self._settling = 0
        self._gives_back = False

    # -- what to do next ---------------------------------------------------------------------------------------

    def next_work(self, prefer_new: bool, retired: Callable[[], bool]) -> list[Delivery] | None:
        """Blocks until there is something to do: deliveries that are due; an empty list, which means: poll the store,
        and report with `arrived`; or None, which means: end.

        `prefer_new` puts polling first, so that what failed does not keep new messages waiting.
        """
        with self._changed:
            while self._phase != STOPPED and not retired():
                now = time.monotonic()
                may_poll = self._may_poll(now)
                due = [] if prefer_new and may_poll else self._pop_due(now)
                if due or may_poll:
                    self._is_polling = self._is_polling or not due
                    return due
                if self._phase == DRAINING and not self._waiting:
                    return None
                idle = self._idle_seconds(now)
                self._changed.wait(None if idle is None else min(idle, threading.TIMEOUT_MAX))
            return None

    def arrived(
        self, messages: Sequence[Message], due_in: float | None = None
    ) -> tuple[list[Delivery], list[Delivery]]:
        """Reports what a poll found, and in how many seconds the store has more, if it knows; returns what to handle
        now, and what to give back because it came too late."""
        with self._changed:
            self._is_polling = False
            now = time.monotonic()
            while self._expected and self._expected[0] <= now:
                heapq.heappop(self._expected)
            # A store that has something due and hands out nothing, or no messages, must not make the listener run hot.
            pause = min(due_in or self._polling_interval, self._polling_interval)
            fresh, news = self._sort(messages)
            self._next_poll = now if news else now + pause
            self._changed.notify_all()
            return self._part(fresh) if self._phase == RUNNING else ([], fresh)

    def _sort(self, messages: Sequence[Message]) -> tuple[list[Delivery], bool]:
        """What to handle now, and whether there was anything new at all."""
        fresh: list[Delivery] = []
        now, news = time.monotonic(), False
        for message in messages:
            held = self._held.get(_key(message))
            if held is None:
                news = True
                # One that came back unsettled may have crashed its last consumer.
                suspect = type(message.delivery_count) is int and message.delivery_count > 1
                redelivery = self._redeliveries.pop(message.id, None) or Redelivery(0.0, isolated=suspect)
                delivery = Delivery(message, attempts=redelivery.attempts, isolated=redelivery.isolated)
                self._held[_key(message)] = delivery
                self._keep_lease(delivery)
                if redelivery.due > now and self._phase == RUNNING:
                    self._push(delivery, redelivery.due)
                else:
                    fresh.append(delivery)
            elif message.lock_token != held.message.lock_token:
                # The lease ran out and it came back to us: the handler goes on, under the new lease.
                held.message, news = message, True
                held.is_resting = False
                self._keep_lease(held)
        return fresh, news

    def _part(self, fresh: list[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
        """What to handle now, and what to give back.

        Messages that must be alone are handled one after the other, and until then are safe in the store: if the first
        of them ends this process, that is not held against the others, however often it happens.
        """
        suspects = [delivery for delivery in fresh if delivery.isolated]
        if fresh:
            self._isolates = bool(suspects)
        if not suspects:
            return fresh, []
        for delivery in fresh:
            if not delivery.isolated:
                self._push(delivery, 0.0)
        for delivery in suspects[1:]:
            self._redeliveries[delivery.id] = Redelivery(0.0, delivery.attempts, isolated=True)
        return suspects[:1], suspects[1:]

    def _may_poll(self, now: float) -> bool:
        return self._phase == RUNNING and not self._is_polling and now >= self._poll_at

    @property
    def _poll_at(self) -> float:
        return min([self._next_poll, *self._expected[:1]])

    def _pop_due(self, now: float) -> list[Delivery]:
        due: list[Delivery] = []
        while self._waiting and self._waiting[0][0] <= now and len(due) < self._batch_size:
            following = self._waiting[0][2]
            single = following.isolated or following.verdict is not None
            if due and single:
                break
            heapq.heappop(self._waiting)
            if following.lost:
                continue
            due.append(following)
            if single:
                break
        return due

    def _idle_seconds(self, now: float) -> float | None:
        moments = [self._waiting[0][0]] if self._waiting else []
        if self._phase == RUNNING and not self._is_polling:
            moments.append(self._poll_at)
        return max(0.0, min(moments) - now) if moments else None

    # -- what became of it -------------------------------------------------------------------------------------

    def again(self, delivery: Delivery, delay: float) -> bool:
        """Keeps a delivery for its next attempt; False where attempts are not waited for any more."""
        with self._changed:
            if self._gives_back:
                return False
            self._keep(delivery, delay)
            return True

    def settle_again(self, delivery: Delivery, delay: float) -> None:
        """Keeps a delivery whose outcome is still to be told to its store."""
        with self._changed:
            self._keep(delivery, delay)

    def finished(self, delivery: Delivery) -> None:
        """The listener no longer holds this."""
        with self._changed:
            delivery.lost = True
            self._forget_lease(delivery)
            if self._held.get(_key(delivery.message)) is delivery:
                del self._held[_key(delivery.message)]
            self._changed.notify_all()

    def remember(self, message_id: str, seconds: float, attempts: int = 0, *, isolated: bool = False) -> None:
        """This message goes back to the store. Should it come from there sooner than that, it has to wait here."""
        with self._changed:
            now = time.monotonic()
            if len(self._redeliveries) >= self._forget_from:
                latest = now - _FORGET_AFTER
                self._redeliveries = {key: known for key, known in self._redeliveries.items() if known.due > latest}
                self._forget_from = max(_FORGET_FROM, 2 * len(self._redeliveries))
            self._redeliveries[message_id] = Redelivery(now + seconds, attempts, isolated)

    def expect(self, seconds: float) -> None:
        """The store has something by then: it is asked soon after, however long the polling interval is."""
        with self._changed:
            heapq.heappush(self._expected, time.monotonic() + seconds + _LATE)
            self._changed.notify_all()

    def poll_now(self) -> None:
        """The store has something: it is asked now."""
        with self._changed:
            self._next_poll = 0.0
            self._changed.notify_all()

    def _keep(self, delivery: Delivery, delay: float) -> None:
        if not delivery.lost:
            self._push(delivery, time.monotonic() + delay)
            self._changed.notify_all()

    def _push(self, delivery: Delivery, due: float) -> None:
        heapq.heappush(self._waiting, (due, next(self._order), delivery))

    # -- ending ------------------------------------------------------------------------------------------------

    def drain(self, give_back: bool) -> list[Delivery]:
        """Nothing new is taken from now on; returns what is to be released.

        That is what was not begun, and with `give_back` also what waits for its next attempt, now or later.
        """
        with self._changed:
            if self._phase == RUNNING:
                self._phase = DRAINING
            self._gives_back = self._gives_back or give_back
            waiting = [item[2] for item in self._waiting if item[2].verdict is None]
            released = {delivery for delivery in waiting if give_back or not delivery.is_begun}
            self._waiting = [item for item in self._waiting if item[2] not in released]
            heapq.heapify(self._waiting)
            self._changed.notify_all()
        return list(released)

    def stop(self, patience: float) -> None:
        """Nothing is begun or settled from now on. Waits for a settlement that is on its way, `patience` seconds."""
        with self._changed:
            self._phase = STOPPED
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._settling, patience)

    @contextmanager
    def settling(self) -> Iterator[bool]:
        """Whether messages may be settled; while the block lasts, `stop` waits."""
        with self._changed:
            allowed = self._phase != STOPPED
            self._settling += allowed
        try:
            yield allowed
        finally:
            with self._changed:
                self._settling -= allowed
                self._changed.notify_all()

    def wake(self) -> None:
        """Lets every thread look again at what it waits for."""
        with self._changed:
            self._changed.notify_all()

    def held(self) -> list[Delivery]:
        """All the listener holds now."""
        with self._changed:
            return list(self._held.values())

    @property
    def take_limit(self) -> int:
        """How many messages to take at once: one, while those that come must be alone."""
        with self._changed:
            return 1 if self._isolates else self._batch_size

    @property
    def is_full(self) -> bool:
        """Whether so much is held that the store had better keep what waits."""
        with self._changed:
            return len(self._held) >= MAX_HELD

    @property
    def is_stopped(self) -> bool:
        """Whether nothing may be settled any more."""
        with self._changed:
            return self._phase == STOPPED
