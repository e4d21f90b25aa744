"""Waiting for a message: until the next one is due, or PostgreSQL says that one may be."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from homing.calling.forks import leave_to_parent
from homing.errors import StoreError, StoreUnavailableError
from homing.stores.sql.database import NANOSECONDS, Database
from homing.stores.sql.durability import PLEDGE

log = logging.getLogger(__name__)

_POLL = 0.1  # seconds between looks where the database cannot call
_LOOK_AGAIN = 30.0  # seconds between looks where it can: plain SQL inserts send no notification
_CALL = sa.select(sa.func.pg_notify(sa.bindparam("channel", type_=sa.Text), sa.literal_column("''")))
_CALL_AND_PLEDGE = _CALL.add_columns(PLEDGE)


def notify(connection: Connection, channel: str, *, pledged: bool = False) -> None:
    """Wakes up waiting consumers, if the database can; once per transaction, however often it is called.

    `pledged` asks in the same breath for a commit that is not forgotten.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(_CALL_AND_PLEDGE if pledged else _CALL, {"channel": channel})


class WakeUp:
    """One store's waiting. Thread-safe; only one thread at a time listens, others look again and again."""

    def __init__(self, database: Database, channel: str, next_due: Callable[[], int | None]) -> None:
        self._database = database
        self._channel = channel
        self._next_due = next_due
        self._lock = threading.Lock()
        self._listener: Any = None

    def start_over(self) -> None:
        """In a forked process: who listens is the parent."""
        self._lock = threading.Lock()
        leave_to_parent(self._listener)
        self._listener = None

    def wait(self, timeout: float, *, listens: bool) -> bool:
        deadline = time.monotonic() + timeout
        listening = listens and self._lock.acquire(blocking=False)
        try:
            if listening:
                self._listen()  # before the first look, so that nothing falls in between
            while True:
                due, now = self._next_due(), self._database.now()
                if due is not None and due <= now:
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                pause = min(left, _LOOK_AGAIN if listening else _POLL)
                if due is not None:
                    pause = min(pause, (due - now) / NANOSECONDS)
                self._pause(pause, listening)
        finally:
            if listening:
                self._lock.release()

    def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _listen(self) -> None:
        if self._listener is None:
            listener = self._database.connect_apart()
            try:
                driver: Any = listener.dbapi_connection
                driver.autocommit = True
                driver.execute(f'LISTEN "{self._channel}"')
            except Exception as error:  # the driver's own errors, which this layer does not import
                listener.close()
                raise StoreUnavailableError(f"cannot listen on {self._channel}: {error}") from error
            self._listener = listener

    def _pause(self, seconds: float, listening: bool) -> None:
        if not listening:
            time.sleep(seconds)
            return
        try:
            for _ in self._listener.dbapi_connection.notifies(timeout=seconds, stop_after=1):
                pass
        except Exception as error:  # noqa: BLE001 - the driver's own errors, which this layer does not import
            self.close()
            log.warning("no longer listening on %s: %s", self._channel, error)
            try:
                self._listen()
            except StoreError:
                time.sleep(min(seconds, 1.0))
