"""BusListener."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from homing.bus.broker import NEXT_SESSION
from homing.bus.message import Message
from homing.bus.receiver import MessageReceiver
from homing.errors import ConfigurationError
from homing.invocation.error_info import frames_of, sign_of
from homing.invocation.invalid_return import fault_in_return

log = logging.getLogger(__name__)

_WAIT = 1.0  # seconds a worker waits for a message before it looks whether it is to stop
_AFTER_ERROR = 1.0  # seconds before the next attempt when receiving failed


class BusService(Protocol):
    """What a listener calls. `on_message` may take a second parameter, the Caller, and `on_error` may be missing."""

    def on_message(self, message: Message) -> Any: ...


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


class BusListener:
    """Calls a service for every message of a queue or subscription, in `max_concurrent_calls` threads at a time.

    With `auto_complete` a message is completed when `on_message` returns and has not settled it through its Caller.
    When it raises, the message is abandoned, so that it is delivered again, and after `max_delivery_count` times is a
    dead letter. `on_error` is called for that, for lost locks and for a bus that cannot be reached. The other arguments
    are those of MessageReceiver.
    """

    def __init__(
        self, connection: str, *, auto_complete: bool = True, max_concurrent_calls: int = 1, **receiver: Any
    ) -> None:
        if type(max_concurrent_calls) is not int or max_concurrent_calls < 1:
            raise ConfigurationError(f"max_concurrent_calls must be an integer >= 1, got {max_concurrent_calls!r}")
        self._open: Callable[[], MessageReceiver] = lambda: MessageReceiver(connection, **receiver)
        self._open().close()  # refuses a wrong configuration here, not in a thread
        self._many_sessions = receiver.get("session_id") == NEXT_SESSION
        self._auto_complete = auto_complete
        self._calls = max_concurrent_calls
        self._service: BusService | None = None
        self._takes_caller = False
        self._orders = _Orders()
        self._workers: list[threading.Thread] = []

    def attach(self, service: BusService | Callable[..., Any]) -> None:
        """The service to call: an object with `on_message`, or a plain function in its place."""
        if self._service is not None:
            raise ConfigurationError("a service is attached already: detach it first")
        found = service if hasattr(service, "on_message") else _Function(service)
        try:
            parameters = inspect.signature(found.on_message).parameters
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{service!r} is neither a function nor has an on_message method") from error
        self._service, self._takes_caller = found, len(parameters) > 1

    def detach(self) -> None:
        """Removes the service; raises ConfigurationError if there is none or the listener runs."""
        self._forget_ended()
        if self._service is None or self._workers:
            raise ConfigurationError("cannot detach: no service is attached, or the listener must be stopped first")
        self._service = None

    def start(self) -> None:
        """Starts receiving, in its own threads."""
        if self._service is None:
            raise ConfigurationError("no service is attached: attach one before starting the listener")
        self._forget_ended()
        if self._workers:
            raise ConfigurationError("the listener is started already")
        self._orders = orders = _Orders()
        self._workers = [
            threading.Thread(target=self._work, args=(orders,), name=f"homing-bus-listener-{number}", daemon=True)
            for number in range(self._calls)
        ]
        for worker in self._workers:
            worker.start()

    def graceful_stop(self, timeout: float | None = None) -> None:
        """Stops receiving; returns when what is being handled is settled, or after `timeout` seconds.

        A service may call it for its own listener: what that service is handling is settled when it returns.
        """
        self._orders.stop.set()
        deadline = None if timeout is None else time.monotonic() + timeout
        for worker in self._workers:
            if worker is not threading.current_thread():  # a service that stops its own listener
                worker.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self._forget_ended()

    def immediate_stop(self) -> None:
        """Stops receiving and settling: what is being handled is delivered again when its lock ends."""
        self._orders.forget.set()
        self._orders.stop.set()
        self._workers = []

    def _forget_ended(self) -> None:
        self._workers = [worker for worker in self._workers if worker.is_alive()]

    # -- one worker --------------------------------------------------------------------------------------------

    def _work(self, orders: _Orders) -> None:
        receiver: MessageReceiver | None = None
        while not orders.stop.is_set():
            try:
                receiver = receiver or self._open()
                message = receiver.receive(server_wait_time=_WAIT)
            except Exception as error:  # noqa: BLE001 - whatever it is, the listener goes on and says so
                self._tell(error)
                _close(receiver)
                receiver = None
                orders.stop.wait(_AFTER_ERROR)
                continue
            if message is not None:
                self._handle(receiver, message, orders)
            elif self._many_sessions:
                _close(receiver)  # this releases its session: the next receiver takes another one
                receiver = None
        _close(receiver)

    def _handle(self, receiver: MessageReceiver, message: Message, orders: _Orders) -> None:
        if orders.forget.is_set():
            return
        caller = Caller(receiver, message)
        try:
            assert self._service is not None
            arguments = (message, caller) if self._takes_caller else (message,)
            fault = fault_in_return(self._service.on_message(*arguments))
            if fault is not None:
                raise fault  # noqa: TRY301
        except BaseException as error:  # noqa: BLE001 - a failing service fails its message, never the listener
            self._tell(error)
            self._settle(caller, caller.abandon, orders)
        else:
            if self._auto_complete:
                self._settle(caller, caller.complete, orders)

    def _settle(self, caller: Caller, settle: Callable[[], None], orders: _Orders) -> None:
        if caller.settled or orders.forget.is_set():
            return
        try:
            settle()
        except Exception as error:  # noqa: BLE001 - the message comes again, and the worker goes on
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        log.warning("bus listener: %s", sign_of(error))
        on_error = getattr(self._service, "on_error", None)
        if on_error is None:
            return
        try:
            on_error(error)
        except Exception as trouble:  # noqa: BLE001 - an author's code, of which nothing depends
            log.error("on_error itself failed: %s", frames_of(trouble))  # noqa: TRY400 - its text may be a message's

    def __enter__(self) -> BusListener:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.graceful_stop()


class _Orders:
    """What the workers of one start are told. The next start has its own: a stop is not taken back."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.forget = threading.Event()


class _Function:
    """A plain function as a service."""

    def __init__(self, function: Any) -> None:
        self.on_message = function


def _close(receiver: MessageReceiver | None) -> None:
    try:
        if receiver is not None:
            receiver.close()
    except Exception as error:  # noqa: BLE001 - as in receiving
        log.warning("cannot close a receiver: %s", sign_of(error))
