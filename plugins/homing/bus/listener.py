"""BusListener: the listener of a queue or subscription."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from homing.bus.broker import NEXT_SESSION
from homing.bus.message import Message
from homing.bus.receiver import MessageReceiver
from homing.constraints import AtLeastOne, check
from homing.errors import ConfigurationError
from homing.invocation.error_info import frames_of, sign_of
from homing.invocation.invalid_return import find_return_fault
from homing.listener.lifecycle import Listener

log = logging.getLogger(__name__)

_WAIT = 1.0  # seconds a worker waits for a message before it looks whether it is to stop
_AFTER_ERROR = 1.0  # seconds before the next attempt when receiving failed


class BusService:
    """An object with `on_message(message)`, and `on_error(error)` if it likes, or a plain function in its place.

    Either may take a second parameter, the Caller.
    """

    def __init__(self, attached: Any) -> None:
        """Raises ConfigurationError for what cannot be called with a message."""
        self.attached = attached
        self.on_message: Callable[..., Any] = getattr(attached, "on_message", attached)
        self.on_error: Callable[[BaseException], Any] | None = getattr(attached, "on_error", None)
        self.name = str(getattr(attached, "__qualname__", None) or type(attached).__qualname__)
        try:
            self.takes_caller = len(inspect.signature(self.on_message).parameters) > 1
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{attached!r} is neither a function nor has an on_message method") from error


class Caller:
    """Settles the message a service is just handling; at most once."""

    def __init__(self, receiver: MessageReceiver, message: Message) -> None:
        self._receiver = receiver
        self._message = message
        self.settled = message.lock_token is None  # RECEIVE_AND_DELETE leaves nothing to settle

    def complete(self) -> None:
        self._receiver.complete(self._message)
        self.settled = True

    def abandon(self) -> None:
        self._receiver.abandon(self._message)
        self.settled = True

    def dead_letter(self, **explanation: Any) -> None:
        self._receiver.dead_letter(self._message, **explanation)
        self.settled = True

    def defer(self) -> int:
        sequence_number = self._receiver.defer(self._message)
        self.settled = True
        return sequence_number


class BusListener(Listener[BusService, "BusWorkers"]):
    """Calls a service for every message of a queue or subscription, in `max_concurrent_calls` threads at a time.

    With `auto_complete` a message is completed when `on_message` returns and has not settled it through its Caller.
    When it raises, the message is abandoned, so that it is delivered again, and after `max_delivery_count` times is a
    dead letter. `on_error` is called for that, for lost locks and for a bus that cannot be reached. The other arguments
    are those of MessageReceiver.
    """

    def __init__(
        self, connection: str, *, auto_complete: bool = True, max_concurrent_calls: int = 1, **receiver: Any
    ) -> None:
        check("max_concurrent_calls", max_concurrent_calls, AtLeastOne)
        self._open: Callable[[], MessageReceiver] = lambda: MessageReceiver(connection, **receiver)
        self._open().close()  # refuses a wrong configuration here, not in a thread
        self._many_sessions = receiver.get("session_id") == NEXT_SESSION
        self._auto_complete = auto_complete
        self._calls = max_concurrent_calls
        super().__init__(f"the bus on {receiver.get('queue') or receiver.get('topic')!r}")

    def _make_service(self, service: Any) -> BusService:
        return BusService(service)

    def _make_run(self, service: BusService) -> BusWorkers:
        return BusWorkers(
            service, self._open, self._calls, auto_complete=self._auto_complete, many_sessions=self._many_sessions
        )


class BusWorkers:
    """The threads of a BusListener between one start and the stop that follows it, each with a receiver of its own."""

    def __init__(
        self,
        service: BusService,
        open_receiver: Callable[[], MessageReceiver],
        count: int,
        *,
        auto_complete: bool,
        many_sessions: bool,
    ) -> None:
        self._service = service
        self._open = open_receiver
        self._auto_complete = auto_complete
        self._many_sessions = many_sessions
        self._is_draining, self._is_stopped = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"homing-bus-listener-{number}", daemon=True)
            for number in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def drain(self, timeout: float | None, give_back: bool) -> bool:
        self._is_draining.set()
        if threading.current_thread() in self._threads:
            return True  # a service stops its own listener: it cannot wait for itself
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        self._is_stopped.set()
        self._is_draining.set()

    # -- one worker --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        receiver: MessageReceiver | None = None
        while not self._is_draining.is_set():
            try:
                receiver = receiver or self._open()
                message = receiver.receive(server_wait_time=_WAIT)
            except Exception as error:  # noqa: BLE001 - whatever it is, the listener goes on and says so
                self._tell(error)
                _close(receiver)
                receiver = None
                self._is_draining.wait(_AFTER_ERROR)
                continue
            if message is not None:
                self._handle(receiver, message)
            elif self._many_sessions:
                _close(receiver)  # this releases its session: the next receiver takes another one
                receiver = None
        _close(receiver)

    def _handle(self, receiver: MessageReceiver, message: Message) -> None:
        if self._is_stopped.is_set():
            return
        caller = Caller(receiver, message)
        try:
            arguments = (message, caller) if self._service.takes_caller else (message,)
            fault = find_return_fault(self._service.on_message(*arguments))
            if fault is not None:
                raise fault  # noqa: TRY301
        except BaseException as error:  # noqa: BLE001 - a failing service fails its message, never the listener
            self._tell(error)
            self._settle(caller, caller.abandon)
        else:
            if self._auto_complete:
                self._settle(caller, caller.complete)

    def _settle(self, caller: Caller, settle: Callable[[], None]) -> None:
        if caller.settled or self._is_stopped.is_set():
            return
        try:
            settle()
        except Exception as error:  # noqa: BLE001 - the message comes again, and the worker goes on
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        log.warning("bus listener: %s", sign_of(error))
        if self._service.on_error is None:
            return
        try:
            self._service.on_error(error)
        except Exception as trouble:  # noqa: BLE001 - an author's code, of which nothing depends
            log.error("on_error itself failed: %s", frames_of(trouble))  # noqa: TRY400 - its text may be a message's


def _close(receiver: MessageReceiver | None) -> None:
    try:
        if receiver is not None:
            receiver.close()
    except Exception as error:  # noqa: BLE001 - as in receiving
        log.warning("cannot close a receiver: %s", sign_of(error))
