"""ListenerWorkers: the threads of a listener between one start and the stop that follows it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

from homing.invocation.batch_result import Answer
from homing.invocation.error_info import frames_of, sign_of
from homing.listener import metrics
from homing.listener.config import ListenerConfig, name_of
from homing.listener.delivery import Delivery
from homing.listener.in_flight import InFlight
from homing.listener.leases import DeliveryLeases
from homing.listener.service import Service, UnsaidError
from homing.listener.settlement import OutcomeWriter
from homing.listener.wake_up import Waker
from homing.message import Message
from homing.store import CLAIM, WAKE_UP, Store

log = logging.getLogger(__name__)

_PATIENCE = 10.0  # seconds an immediate stop waits for a settlement that is on its way
_LOOK_FOR_DEAD_EVERY = 10.0  # seconds
_WATCH_EVERY = 1.0  # seconds, between looks for handlers that hang


class _Worker:
    """A thread that handles messages, and what it is doing."""

    def __init__(self, name: str, work: Callable[[_Worker], None]) -> None:
        self.thread = threading.Thread(target=work, args=(self,), name=name, daemon=True)
        self.is_retired = False
        self.prefers_new = False
        self.busy_with: Sequence[Delivery] = ()
        self.busy_since = math.inf


class ListenerWorkers:
    """Takes messages, hands them to the service and settles them, in threads that never keep a process alive."""

    def __init__(self, store: Store, config: ListenerConfig, service: Service, counts: metrics.Counts) -> None:
        self._store = store
        self._store_name = name_of(store)
        self._config = config
        self._service = service
        self._counts = counts
        self._leases = DeliveryLeases(store, config.lease_seconds, self._let_go_of_lost)
        size, leases = config.batch_size if service.is_batch else 1, self._leases
        self.in_flight = InFlight(config.polling_seconds, size, keep=leases.keep, forget=leases.forget)
        self._waker = Waker(store, self.in_flight.poll_now, config.polling_seconds, config.share)
        self._outcomes = OutcomeWriter(store, config, service, self.in_flight, counts)
        self._workers: list[_Worker] = []
        self._ended = threading.Event()
        self._look_for_dead = 0.0
        self._watch = threading.Thread(target=self._keep_watch, name=f"homing-{self._store_name}-watch", daemon=True)

    # -- lifecycle ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        for _ in range(self._config.concurrency):
            self._add_worker()
        self._watch.start()
        self._waker.start()

    def drain(self, timeout: float | None, give_back: bool) -> bool:
        """Takes nothing more, and waits until what was begun has its outcome; False when that took too long."""
        released = self.in_flight.drain(give_back)
        self._waker.stop()
        for delivery in released:
            self._outcomes.release(delivery)
        if any(worker.thread is threading.current_thread() for worker in list(self._workers)):
            return True  # a handler stops its own listener: it cannot wait for itself
        limit = None if timeout is None else time.monotonic() + timeout
        # The list may grow meanwhile: a handler that hangs is replaced.
        while alive := self._alive():
            if self.in_flight.is_stopped:
                return False  # stopped meanwhile: nothing watches for hung handlers any more
            left = 0.1 if limit is None else min(0.1, limit - time.monotonic())
            if left <= 0:
                return False
            alive[0].thread.join(left)
        self._ended.set()
        self._leases.close()
        return True

    def stop(self) -> None:
        """Takes and settles nothing more. Handlers that run are left alone; what they do has no outcome."""
        self._waker.stop()
        self.in_flight.stop(_PATIENCE)
        self._ended.set()
        self._leases.close()

    def _alive(self) -> list[_Worker]:
        return [worker for worker in list(self._workers) if worker.thread.is_alive() and not worker.is_retired]

    # -- handling ----------------------------------------------------------------------------------------------

    def _add_worker(self) -> None:
        worker = _Worker(f"homing-{self._store_name}-{len(self._workers) + 1}", self._work)
        self._workers.append(worker)
        worker.thread.start()

    def _work(self, worker: _Worker) -> None:
        while True:
            work = self.in_flight.next_work(worker.prefers_new, lambda: worker.is_retired)
            if work is None:
                return
            worker.prefers_new = bool(work)
            try:
                self._handle(worker, work or self._poll())
            except BaseException as error:  # noqa: BLE001 - a listener goes on
                # Not the service's doing, whose errors are answers. The messages come back when their leases end.
                log.error(  # noqa: TRY400 - its text may be what a message says
                    "the listener of store %s could not handle %s: %s",
                    *(self._store_name, _ids(worker.busy_with), frames_of(error)),
                )
                for delivery in worker.busy_with:
                    self.in_flight.finished(delivery)
            worker.busy_with = ()

    def _poll(self) -> Sequence[Delivery]:
        """Takes what is due; nothing when the store cannot be asked, which is tried again at the next interval."""
        config, limit, found, due_in = self._config, self.in_flight.take_limit, list[Message](), None
        try:
            if CLAIM in self._store.features:
                found = list(self._store.claim(limit, lease=config.lease_seconds, **config.share))
            else:
                while len(found) < limit and (message := self._store.retrieve()) is not None:
                    found.append(message)
            if not found and WAKE_UP in self._store.features:
                due_in = self._store.due_in(**config.share)
        except BaseException as error:  # noqa: BLE001 - a store that is away must not end the listener
            log.warning("cannot retrieve from store %s, trying again: %s", self._store_name, sign_of(error))
        messages = [item for item in found if isinstance(item, Message) and type(item.id) is str]
        if len(messages) < len(found):
            count = len(found) - len(messages)
            log.error("store %s handed out %d objects that are not messages", self._store_name, count)
        fresh, not_now = self.in_flight.arrived(messages, due_in)
        if fresh or not_now:
            self._waker.answered()
        else:
            self._waker.listen()
        for delivery in not_now:
            self._outcomes.release(delivery)
        return fresh

    def _handle(self, worker: _Worker, deliveries: Sequence[Delivery]) -> None:
        if not deliveries or self.in_flight.is_stopped:
            return
        worker.busy_with = deliveries
        verdict = deliveries[0].verdict
        if verdict is None:
            ready = [delivery for delivery in deliveries if self._outcomes.take_in_hand(delivery)]
            if ready:
                self._attempt(worker, ready)
        else:
            with self.in_flight.settling() as allowed:
                if allowed:
                    self._outcomes.settle(deliveries[0], *verdict)

    def _attempt(self, worker: _Worker, deliveries: Sequence[Delivery]) -> None:
        worker.busy_since = time.monotonic()
        ended: list[tuple[Delivery, Answer]] = []
        called: list[Delivery] = []
        unsaid: UnsaidError | None = None
        try:
            messages = []
            for delivery in deliveries:
                delivery.begin_attempt()
                try:
                    messages.append(delivery.copy())
                    called.append(delivery)
                except Exception as error:  # noqa: BLE001 - nested too deeply to be copied: its own failure, no other's
                    ended.append((delivery, Answer(error=error)))
            ended += zip(called, self._service.call(messages), strict=True)
        except UnsaidError as error:
            unsaid = error
        finally:
            worker.busy_since = math.inf
        with self.in_flight.settling() as allowed:
            if allowed:
                self._tell(ended)
                if unsaid is not None:
                    self._separate(called, unsaid.__cause__ or unsaid)

    def _tell(self, ended: Sequence[tuple[Delivery, Answer]]) -> None:
        self._outcomes.succeeded([delivery for delivery, answer in ended if answer.error is None])
        for delivery, answer in ended:
            if answer.error is not None:
                self._outcomes.failed(delivery, answer.error)

    def _separate(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
        log.warning(
            "%s failed on a batch without saying which messages, so each is tried alone: %s: %s",
            *(self._service.name, _ids(deliveries), sign_of(error)),
        )
        for delivery in deliveries:
            delivery.take_back_attempt()
            self._outcomes.keep(delivery, 0.0)

    # -- keeping watch -----------------------------------------------------------------------------------------

    def _keep_watch(self) -> None:
        """Replaces threads whose handler hangs, and moves what the store gave up."""
        tick = min(_WATCH_EVERY, self._config.handling_seconds / 3)
        while self._alive() and not self._ended.wait(tick):
            try:
                self._give_up_hung(time.monotonic() - self._config.handling_seconds)
                self._bring_dead()
            except BaseException as error:  # noqa: BLE001 - a listener goes on
                log.error("the watch over store %s goes on after an error: %s", self._store_name, frames_of(error))  # noqa: TRY400

    def _bring_dead(self) -> None:
        if time.monotonic() < self._look_for_dead:
            return
        self._look_for_dead = time.monotonic() + _LOOK_FOR_DEAD_EVERY
        try:
            self._outcomes.bring_dead()
        except Exception as error:  # noqa: BLE001 - it is kept where it is, and looked for again
            log.warning("the dead messages of store %s stay there for now: %s", self._store_name, sign_of(error))

    def _let_go_of_lost(self, delivery: Delivery) -> None:
        """Its lease is lost: unless a handler has it, it is not handled here any more. What a handler has is asked
        about again: should it fail there, it is not to be tried again here."""
        if delivery.began == 0 or all(delivery not in worker.busy_with for worker in list(self._workers)):
            self.in_flight.finished(delivery)
        elif not delivery.lost:
            self._leases.keep(delivery)

    def _give_up_hung(self, begun_before: float) -> None:
        for worker in list(self._workers):
            hung = worker.busy_with
            if not hung or worker.is_retired or worker.busy_since > begun_before:
                continue
            worker.is_retired = True
            for delivery in hung:
                self.in_flight.remember(delivery.id, 0.0, delivery.attempts - 1, isolated=True)
                self.in_flight.finished(delivery)
                self._counts.add(metrics.LOST_LEASES)
            log.error(
                "%s has had %s of store %s for more than %g s and counts as hung: its lease is no longer renewed, so "
                "the store delivers it again",
                *(self._service.name, _ids(hung), self._store_name, self._config.handling_seconds),
            )
            self._add_worker()
            self.in_flight.wake()


def _ids(deliveries: Sequence[Delivery]) -> str:
    return ", ".join(f"message {delivery.id}" for delivery in deliveries) or "no message"
