"""Waits for a message, until the next one is due or PostgreSQL says that one may be due."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from homing.errors import StoreError, StoreUnavailableError
from homing.invocation.fork_safety import leave_to_parent
from homing.row import NANOSECONDS
from homing.stores.sql.database import Database
from homing.stores.sql.durability import PLEDGE

log = logging.getLogger(__name__)

_POLL = 0.1  # seconds between looks where the database cannot call
_LOOK_AGAIN = 30.0  # seconds between looks where it can: plain SQL inserts send no notification
_PATIENCE = 1.0  # seconds that closing waits for the listening thread
_CALL = sa.select(sa.func.pg_notify(sa.bindparam("channel", type_=sa.Text), sa.literal_column("''")))
_CALL_AND_PLEDGE = _CALL.add_columns(PLEDGE)


def notify(connection: Connection, channel: str, *, pledged: bool = False) -> None:
    """Wakes up waiting consumers, if the database can; once per transaction, however often it is called.

    `pledged` asks in the same breath for a commit that is not forgotten.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(_CALL_AND_PLEDGE if pledged else _CALL, {"channel": channel})


class WakeUp:
    """Waits for messages of one store. Thread-safe. One thread at a time listens; others look again and again."""

    def __init__(self, database: Database, channel: str) -> None:
        self._database = database
        self._channel = channel
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._listener: Any = None
        #: The listening thread sleeps on its connection, which no other thread may touch: this is how it is woken.
        self._calls: tuple[socket.socket, socket.socket] | None = None
        self._is_closing = False

    def start_over(self) -> None:
        """In a forked process: the parent is the one that listens."""
        leave_to_parent(self._listener, self._calls)
        self._begin()

    def wait(
        self, timeout: float, next_due: Callable[[], int | None], *, listens: bool, ended: Callable[[], bool]
    ) -> bool:
        deadline, listening = time.monotonic() + timeout, False
        try:
            while not (ended() or (listening and self._is_closing)):
                due, now = next_due(), self._database.now()
                if due is not None and due <= now:
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if listens and not listening and self._lock.acquire(blocking=False):
                    listening = True
                    self._listen()
                    continue  # with another look, so that nothing falls in between
                pause = min(left, _LOOK_AGAIN if listening else _POLL)
                if due is not None:
                    pause = min(pause, (due - now) / NANOSECONDS)
                self._pause(pause, listening)
            return False
        finally:
            if listening:
                try:
                    self._fall_silent(for_good=self._is_closing or ended())
                finally:
                    self._lock.release()

    def wake(self) -> None:
        """Has the listening thread ask at once whether the waiting has ended; the others ask soon by themselves."""
        calls = self._calls
        if calls is not None:
            with suppress(OSError):  # full: it is woken already; or closed: no thread listens
                calls[1].send(b"!")

    def close(self) -> None:
        """Ends the waiting of the listening thread."""
        self._is_closing = True
        self.wake()
        if self._lock.acquire(timeout=_PATIENCE):  # otherwise that thread hangs up when the database lets go of it
            try:
                self._hang_up()
            finally:
                self._is_closing = False
                self._lock.release()

    def _listen(self) -> None:
        try:
            if self._calls is None:
                calls = socket.socketpair()
                for end in calls:
                    end.setblocking(False)
                self._calls = calls
            if self._listener is None:
                self._listener = self._database.connect_apart()
                self._listener.dbapi_connection.autocommit = True
            self._listener.dbapi_connection.execute(f'LISTEN "{self._channel}"')
        except StoreError:
            raise
        except Exception as error:  # the driver's own errors, which this layer does not import
            self._hang_up()
            raise StoreUnavailableError(f"cannot listen on {self._channel}: {error}") from error

    def _fall_silent(self, *, for_good: bool) -> None:
        """What is sent to a connection that is not read piles up in the server, until no transaction can send more."""
        if for_good:
            self._is_closing = False
            self._hang_up()
        elif self._listener is not None:
            try:
                self._listener.dbapi_connection.execute("UNLISTEN *")
                self._read(self._listener.dbapi_connection)
            except Exception as error:  # noqa: BLE001 - the driver's own errors, which this layer does not import
                log.warning("no longer listening on %s: %s", self._channel, error)
                self._hang_up()

    def _hang_up(self) -> None:
        listener, self._listener = self._listener, None
        calls, self._calls = self._calls, None
        for end in filter(None, (listener, *(calls or ()))):
            end.close()

    def _pause(self, seconds: float, listening: bool) -> None:
        if not listening:
            time.sleep(seconds)
            return
        try:
            self._sleep(self._listener.dbapi_connection, seconds)
        except Exception as error:  # noqa: BLE001 - the driver's own errors, which this layer does not import
            log.warning("no longer listening on %s, connecting again: %s", self._channel, error)
            self._hang_up()
            self._listen()  # and what was said meanwhile is seen by the look that follows

    def _sleep(self, driver: Any, seconds: float) -> None:
        """Until the database says something on this connection, or another thread wakes this one."""
        called: Any = self._calls and self._calls[0]
        with selectors.DefaultSelector() as sources:
            sources.register(driver.fileno(), selectors.EVENT_READ)
            sources.register(called, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in sources.select(seconds)]
        if called in ready:
            called.recv(4096)
        self._read(driver)

    def _read(self, driver: Any) -> None:
        for _ in driver.notifies(timeout=0):
            pass
