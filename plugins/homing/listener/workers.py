"""Run: the threads of a listener between one start and the stop that follows it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

from homing.errors import LeaseLostError, NotInFlightError, UnsupportedError
from homing.invocation.batch_result import Answer
from homing.invocation.error_info import frames_of, sign_of
from homing.listener import metrics
from homing.listener.config import ListenerConfig, name_of
from homing.listener.delivery import Delivery
from homing.listener.in_flight import Board
from homing.listener.service import Service, UnsaidError
from homing.listener.settlement import Settler
from homing.listener.wake_up import Bell
from homing.message import Message
from homing.store import CLAIM, RENEW, WAKE_UP, Store

log = logging.getLogger(__name__)

_PATIENCE = 10.0  # seconds an immediate stop waits for a settlement that is on its way
_LOOK_FOR_DEAD_EVERY = 10.0  # seconds
_FIRST_RENEWAL = 1.0  # where the store alone knows how long its lease is


class _Worker:
    """A thread that handles messages, and what it is doing."""

    def __init__(self, name: str, work: Callable[[_Worker], None]) -> None:
        self.thread = threading.Thread(target=work, args=(self,), name=name, daemon=True)
        self.is_retired = False
        self.prefers_new = False
        self.busy_with: Sequence[Delivery] = ()
        self.busy_since = math.inf


class Run:
    """Takes messages, hands them to the service and settles them, in threads that never keep a process alive."""

    def __init__(self, store: Store, config: ListenerConfig, service: Service, counts: metrics.Counts) -> None:
        self._store = store
        self._store_name = name_of(store)
        self._config = config
        self._service = service
        self._counts = counts
        self.board = Board(config.polling_seconds, config.batch_size if service.is_batch else 1)
        self._bell = Bell(store, self.board.poll_now, config.polling_seconds, config.share)
        self._settler = Settler(store, config, service, self.board, counts)
        self._workers: list[_Worker] = []
        self._ended = threading.Event()
        self._look_for_dead = 0.0
        self._watch = threading.Thread(target=self._keep_watch, name=f"homing-{self._store_name}-watch", daemon=True)

    # -- lifecycle ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the threads."""
        for _ in range(self._config.concurrency):
            self._add_worker()
        self._watch.start()
        self._bell.start()

    def drain(self, timeout: float | None, give_back: bool) -> bool:
        """Takes nothing more, and waits until what was begun has its outcome; False when that took too long."""
        released = self.board.drain(give_back)
        self._bell.stop()
        for delivery in released:
            self._settler.release(delivery)
        if any(worker.thread is threading.current_thread() for worker in list(self._workers)):
            return True  # a handler stops its own listener: it cannot wait for itself
        limit = None if timeout is None else time.monotonic() + timeout
        # The list may grow meanwhile: a handler that hangs is replaced.
        while alive := self._alive():
            if self.board.is_stopped:
                return False  # stopped meanwhile: nothing watches for hung handlers any more
            left = 0.1 if limit is None else min(0.1, limit - time.monotonic())
            if left <= 0:
                return False
            alive[0].thread.join(left)
        self._ended.set()
        return True

    def stop(self) -> None:
        """Takes and settles nothing more. Handlers that run are left alone; what they do has no outcome."""
        self._bell.stop()
        self.board.stop(_PATIENCE)
        self._ended.set()

    def _alive(self) -> list[_Worker]:
        return [worker for worker in list(self._workers) if worker.thread.is_alive() and not worker.is_retired]

    # -- handling ----------------------------------------------------------------------------------------------

    def _add_worker(self) -> None:
        worker = _Worker(f"homing-{self._store_name}-{len(self._workers) + 1}", self._work)
        self._workers.append(worker)
        worker.thread.start()

    def _work(self, worker: _Worker) -> None:
        while True:
            work = self.board.next_work(worker.prefers_new, lambda: worker.is_retired)
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
                    self.board.finished(delivery)
            worker.busy_with = ()

    def _poll(self) -> Sequence[Delivery]:
        """Takes what is due; nothing when the store cannot be asked, which is tried again at the next interval."""
        config, limit, found, due_in = self._config, self.board.take_limit, list[Message](), None
        renew_in = config.lease_seconds / 3
        try:
            if CLAIM in self._store.features:
                found = list(self._store.claim(limit, lease=config.lease_seconds, **config.share))
            else:
                renew_in = min(_FIRST_RENEWAL, renew_in)
                while len(found) < limit and (message := self._store.retrieve()) is not None:
                    found.append(message)
            if not found and WAKE_UP in self._store.features:
                due_in = self._store.due_in(**config.share)
        except BaseException as error:  # noqa: BLE001 - a store that is away must not end the listener
            log.warning("cannot retrieve from store %s, trying again: %s", self._store_name, sign_of(error))
        messages = [item for item in found if isinstance(item, Message) and type(item.id) is str]
        if len(messages) < len(found):
            count = len(found) - len(messages)
            log.error("store %s handed out %d things that are no messages", self._store_name, count)
        fresh, not_now = self.board.arrived(messages, time.monotonic() + renew_in, due_in)
        if fresh or not_now:
            self._bell.answered()
        else:
            self._bell.listen()
        for delivery in not_now:
            self._settler.release(delivery)
        return fresh

    def _handle(self, worker: _Worker, deliveries: Sequence[Delivery]) -> None:
        if not deliveries or self.board.is_stopped:
            return
        worker.busy_with = deliveries
        verdict = deliveries[0].verdict
        if verdict is None:
            ready = [delivery for delivery in deliveries if self._settler.take_in_hand(delivery)]
            if ready:
                self._attempt(worker, ready)
        else:
            with self.board.settling() as allowed:
                if allowed:
                    self._settler.settle(deliveries[0], *verdict)

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
        with self.board.settling() as allowed:
            if allowed:
                self._tell(ended)
                if unsaid is not None:
                    self._separate(called, unsaid.__cause__ or unsaid)

    def _tell(self, ended: Sequence[tuple[Delivery, Answer]]) -> None:
        self._settler.succeeded([delivery for delivery, answer in ended if answer.error is None])
        for delivery, answer in ended:
            if answer.error is not None:
                self._settler.failed(delivery, answer.error)

    def _separate(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
        log.warning(
            "%s failed on a batch without saying which messages, so each is tried alone: %s: %s",
            *(self._service.name, _ids(deliveries), sign_of(error)),
        )
        for delivery in deliveries:
            delivery.take_back_attempt()
            self._settler.keep(delivery, 0.0)

    # -- keeping watch -----------------------------------------------------------------------------------------

    def _keep_watch(self) -> None:
        """Renews leases, and replaces threads whose handler hangs."""
        lease = self._config.lease_seconds
        tick = min(lease / 3, _FIRST_RENEWAL, self._config.handling_seconds / 3)
        while self._alive() and not self._ended.wait(tick):
            try:
                self._give_up_hung(time.monotonic() - self._config.handling_seconds)
                if RENEW in self._store.features:
                    self._renew(lease)
                self._bring_dead()
            except BaseException as error:  # noqa: BLE001 - a listener goes on
                log.error("the watch over store %s goes on after an error: %s", self._store_name, frames_of(error))  # noqa: TRY400

    def _bring_dead(self) -> None:
        if time.monotonic() < self._look_for_dead:
            return
        self._look_for_dead = time.monotonic() + _LOOK_FOR_DEAD_EVERY
        try:
            self._settler.bring_dead()
        except Exception as error:  # noqa: BLE001 - it is kept where it is, and looked for again
            log.warning("what is dead in store %s stays there for now: %s", self._store_name, sign_of(error))

    def _renew(self, lease: float) -> None:
        now = time.monotonic()
        for delivery in self.board.held():
            if delivery.renew_at > now or self._ended.is_set():
                continue
            delivery.renew_at = now + lease / 3
            try:
                self._store.renew(delivery.message, lease)
            except (LeaseLostError, NotInFlightError, UnsupportedError) as error:
                self._renewal_refused(delivery, error)
            except Exception as error:  # noqa: BLE001 - there is time for another try before the lease ends
                delivery.renew_at = now
                log.warning("message %s: its lease could not be renewed, trying again: %s", delivery.id, sign_of(error))

    def _renewal_refused(self, delivery: Delivery, error: Exception) -> None:
        if delivery.lost or isinstance(error, UnsupportedError):
            return
        log.error("message %s of store %s: %s", delivery.id, self._store_name, sign_of(error))
        if delivery.began == 0 or all(delivery not in worker.busy_with for worker in list(self._workers)):
            self.board.finished(delivery)

    def _give_up_hung(self, begun_before: float) -> None:
        for worker in list(self._workers):
            hung = worker.busy_with
            if not hung or worker.is_retired or worker.busy_since > begun_before:
                continue
            worker.is_retired = True
            for delivery in hung:
                self.board.remember(delivery.id, 0.0, delivery.attempts - 1, alone=True)
                self.board.finished(delivery)
                self._counts.add(metrics.LOST_LEASES)
            log.error(
                "%s has had %s of store %s for more than %g s and counts as hung: its lease is no longer renewed, so "
                "the store delivers it again",
                *(self._service.name, _ids(hung), self._store_name, self._config.handling_seconds),
            )
            self._add_worker()
            self.board.wake()


def _ids(deliveries: Sequence[Delivery]) -> str:
    return ", ".join(f"message {delivery.id}" for delivery in deliveries) or "no message"
