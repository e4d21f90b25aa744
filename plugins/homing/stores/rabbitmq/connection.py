"""One connection with one channel, driven by whichever thread holds its lock.

pika's event loop runs only inside the calls below, so a caller waits for exactly what it asked for, confirms can be
in flight by the thousand, and nothing happens behind a caller's back. Between calls the owner must `poll` regularly,
 or heartbeats stop.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import RLock
from typing import Any, NoReturn

import pika
from pika import exceptions, frame, spec
from pika.adapters.select_connection import IOLoop

from homing.errors import ConfigurationError, StoreUnavailableError, TlsError, TooLargeError
from homing.invocation.fork_safety import hang_up, leave_to_parent
from homing.stores.tls import find_handshake_fault

log = logging.getLogger(__name__)

#: The only header of a message whose properties cannot be read.
UNREADABLE = "homing-unreadable"

_PRECONDITION_FAILED = 406
_TOO_LARGE = "larger than configured max size"
_FAREWELL = 2.0  # seconds for the broker to answer when we leave
_LAST_ROUNDS = 3
_MOST_KEPT = 128 * 1024  # bytes


class Connection(pika.SelectConnection):  # type: ignore[misc]
    """Hands many frames to the socket at once: pika itself makes a system call for each. And skips the search for
     waiting callbacks when a message arrives: pika does it at every frame.

    pika has no public way to either. Without the first, storing takes a third more of a processor, and without the
    second, receiving a tenth more (measured with pika 1.4.4). If a later pika sends or receives frames in another way,
    this is bypassed, and only the speed is lost.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._kept: list[bytes] | None = None
        self._kept_size = 0
        super().__init__(*args, **kwargs)

    def _output_marshaled_frames(self, marshaled_frames: list[bytes]) -> None:
        if self._kept is None:
            super()._output_marshaled_frames([b"".join(marshaled_frames)])
            return
        self._kept += marshaled_frames
        self._kept_size += sum(map(len, marshaled_frames))
        if self._kept_size > _MOST_KEPT:
            self.flush()
            self.keep()

    def _process_callbacks(self, frame_value: Any) -> bool:
        """Whether the frame was the answer to a request, and was passed on."""
        if type(frame_value) is not frame.Method or type(frame_value.method) is spec.Basic.Deliver:
            return False
        return bool(super()._process_callbacks(frame_value))

    def _read_frame(self) -> Any:
        """The next frame. pika gives up the connection for properties that it cannot read, such as tables a thousand
        levels deep: the message would come again, and stop every consumer of its queue."""
        try:
            return super()._read_frame()
        except Exception:
            if self._frame_buffer[0] != spec.FRAME_HEADER:
                raise
            _, channel, size = struct.unpack_from(">BHL", self._frame_buffer)
            _, _, body_size = struct.unpack_from(">HHQ", self._frame_buffer, spec.FRAME_HEADER_SIZE)
            found = frame.Header(channel, body_size, spec.BasicProperties(headers={UNREADABLE: True}))
            return spec.FRAME_HEADER_SIZE + size + spec.FRAME_END_SIZE, found

    def keep(self) -> None:
        """Collects frames until `flush`."""
        self._kept = []

    def flush(self) -> None:
        kept, self._kept, self._kept_size = self._kept, None, 0
        if kept:
            super()._output_marshaled_frames([b"".join(kept)])


class Link:
    """A connection that is opened when needed and again after it was lost.

    `epoch` counts the connections: what was received under another epoch belongs to a channel that is gone. Every
    method is to be called with `lock` held.
    """

    def __init__(self, parameters: Any, name: str, *, timeout: float, prepare: Callable[[], None]) -> None:
        self.lock = RLock()
        self.epoch = 0
        self._parameters = parameters
        self._name = name
        self._timeout = timeout
        self._prepare = prepare
        self._loop: Any = None
        self._connection: Any = None
        self._channel: Any = None
        self._failure: BaseException | None = None

    def start_over(self) -> None:
        """In a forked process: the connection is the parent's, and the next is this process's own."""
        self.lock = RLock()
        with suppress(Exception):  # none was there, or it was closed before
            hang_up(self._connection._transport._sock.fileno())  # noqa: SLF001 - pika tells by no other way
        leave_to_parent(self._connection, self._channel, self._loop)
        self._connection = self._channel = self._loop = self._failure = None

    @property
    def is_open(self) -> bool:
        return self._channel is not None and self._failure is None

    @property
    def channel(self) -> Any:
        """The channel; raises StoreUnavailableError when it is gone."""
        if not self.is_open:
            self._give_up()
        return self._channel

    def open(self) -> None:
        """Connects, unless it is connected; raises StoreUnavailableError when that is not possible."""
        if self.is_open:
            return
        self._discard()
        self._loop = IOLoop()
        self._loop.activate_poller()
        opened: list[Any] = []
        self._connection = Connection(
            self._parameters,
            on_open_callback=opened.append,
            on_open_error_callback=self._on_lost,
            on_close_callback=self._on_lost,
            custom_ioloop=self._loop,
        )
        self.run(lambda: bool(opened))
        self._channel = self.new_channel()
        self._channel.add_on_close_callback(self._on_lost)
        self.epoch += 1
        try:
            self._prepare()
        except BaseException:
            self._discard()
            raise
        log.info("store %r is connected to %s:%s", self._name, self._parameters.host, self._parameters.port)

    def new_channel(self) -> Any:
        opened: list[Any] = []
        self._connection.channel(on_open_callback=opened.append)
        self.run(lambda: bool(opened))
        return opened[0]

    def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Sends a request and gives back the broker's answer."""
        answers: list[Any] = []
        method(*args, callback=answers.append, **kwargs)
        self.run(lambda: bool(answers))
        return answers[0]

    def run(self, done: Callable[[], bool]) -> None:
        """Sends and receives until `done()`; raises StoreUnavailableError when the connection is lost before that."""
        if not self.wait(done, self._timeout):
            self._failure = TimeoutError(f"no answer within {self._timeout:g} s")
            self._give_up()

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Sends and receives until `done()`, at most so long; whether it is done. Raises as `run` does."""
        if done():
            return True
        deadline = time.monotonic() + seconds
        timer = self._loop.call_later(seconds, _nothing)
        while not done():
            if self._failure is not None:
                self._give_up()
            if time.monotonic() >= deadline:
                return False
            self._loop.poll()
            self._loop.process_timeouts()
        self._loop.remove_timeout(timer)
        return True

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is written inside goes out as one; nothing is received meanwhile."""
        connection = self._connection
        connection.keep()
        try:
            yield
        finally:
            connection.flush()

    def poll(self) -> None:
        """Sends and receives what can be without waiting. Does not raise: a lost connection shows in `is_open`."""
        if not self.is_open:
            return
        self._loop.call_later(0, _nothing)
        self._loop.poll()
        self._loop.process_timeouts()

    def close(self) -> None:
        """Ends the connection in good order, where it still answers; what was written before is sent."""
        self._discard()

    def _on_lost(self, _source: Any, reason: BaseException) -> None:
        if self._failure is None:
            self._failure = reason

    def _give_up(self) -> NoReturn:
        reason = self._failure
        self._discard()
        where = f"{self._parameters.host}:{self._parameters.port}"
        if isinstance(reason, exceptions.ChannelClosedByBroker) and reason.reply_code == _PRECONDITION_FAILED:
            if _TOO_LARGE in reason.reply_text:
                raise TooLargeError(
                    f"store {self._name!r}: RabbitMQ on {where} refused a message: {reason.reply_text}; raise its "
                    "max_message_size, or set this store's max_message_bytes to a quarter of it"
                ) from reason
            raise ConfigurationError(
                f"store {self._name!r}: RabbitMQ on {where} refused: {reason.reply_text}"
            ) from reason
        fault = find_handshake_fault(reason)
        if fault is not None:
            raise TlsError(
                f"store {self._name!r}: TLS with RabbitMQ on {where} failed: {fault}. Nothing was sent; fix the "
                "certificate, or the URL's TLS options"
            ) from reason
        detail = "the connection is closed" if reason is None else repr(reason)
        raise StoreUnavailableError(f"store {self._name!r}: RabbitMQ on {where} cannot be used: {detail}") from reason

    def _discard(self) -> None:
        """Leaves the connection, whatever state it is in; a broker that does not answer notices by itself."""
        connection, loop = self._connection, self._loop
        self._connection = self._channel = self._loop = None
        self._failure = None
        if loop is None:
            return
        if connection is not None and connection.is_open:
            connection.close()
        deadline, rounds = time.monotonic() + _FAREWELL, 0
        # Once it is closed, pika needs a few rounds more to let go of the socket.
        while rounds < _LAST_ROUNDS and time.monotonic() < deadline:
            rounds += connection is None or connection.is_closed
            loop.call_later(0 if rounds else 0.05, _nothing)
            loop.poll()
            loop.process_timeouts()
        loop.deactivate_poller()
        loop.close()


def _nothing() -> None:
    """Ends a wait in pika's loop."""
