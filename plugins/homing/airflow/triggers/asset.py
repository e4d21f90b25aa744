"""Event-driven scheduling: an asset whose events say that a store has something due.

An event is a hint, never a message: the messages stay in the store until a run has settled them. A message carried by
the event itself would be lost on a DAG that is paused when it comes. A hint counts as said only once Airflow has stored
the event, and is repeated for as long as something is due: so a triggerer that dies, a DAG that is paused, or a burst
of messages loses nothing and strands nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer
from asgiref.sync import sync_to_async

from homing.airflow.hooks.store import find_url
from homing.airflow.triggers.store import is_due
from homing.airflow.triggers.wake_up import WakeUpCall
from homing.stores import open_store


class StoreEventTrigger(BaseEventTrigger):
    """Fires when something is due in a store, and again every `repeat_interval` seconds while there still is.

    For `AssetWatcher(name, trigger=StoreEventTrigger(store="orders"))`. Watchers of a store that ask alike share one
    look at it. `store` is a URL, `env:NAME` or a connection id; a URL is kept in Airflow's database as it is, so one
    with a password belongs into a connection.
    """

    def __init__(self, store: str, polling_interval: float = 1.0, repeat_interval: float = 60.0) -> None:
        super().__init__()
        self.store = store
        self.polling_interval = polling_interval
        self.repeat_interval = repeat_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("store", "polling_interval", "repeat_interval")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"  # Airflow's own would show the store's URL

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """For code that runs the trigger directly, such as MessageQueueTrigger; it cannot tell what was stored."""
        hints = Hints(**self.serialize()[1])
        async for hint, _ in hints.open_stream():
            yield TriggerEvent(hint)
            hints.said(stored=True)

    def shared_stream_key(self) -> Hashable:
        """Airflow logs the key: it must not show a URL."""
        asked = f"{self.store} {self.polling_interval} {self.repeat_interval}"
        return f"{type(self).__name__}-{hashlib.sha256(asked.encode()).hexdigest()}"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Hints(**kwargs)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for hint in shared_stream:
            yield TriggerEvent(hint)


class Hints(SharedStreamProducer):
    """Says that something is due, and says so again unless Airflow has stored it. One hint at a time is on its way."""

    def __init__(self, store: str, polling_interval: float, repeat_interval: float) -> None:
        self._store = store
        self._polling_interval = polling_interval
        self._repeat_interval = repeat_interval
        self._under_way = False
        self._stored_at: float | None = None

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, str], None]]:
        with (
            open_store(await sync_to_async(find_url)(self._store)) as store,
            WakeUpCall([store], self._polling_interval) as call,
        ):
            while True:
                call.get_ready()
                if await is_due(store) is False:
                    self._stored_at = None  # drained: the next message is news
                    await call.sleep(self._polling_interval)
                    continue
                call.answered()
                if not self._under_way and self._is_time():
                    self._under_way = True
                    yield {"store": store.name}, None
                await asyncio.sleep(self._polling_interval)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Called once the hint is in Airflow's database, or when it will not be."""
        self.said(stored=batch[-1].outcome.is_clean)

    def said(self, *, stored: bool) -> None:
        self._under_way = False
        self._stored_at = time.monotonic() if stored else None

    def _is_time(self) -> bool:
        return self._stored_at is None or time.monotonic() - self._stored_at >= self._repeat_interval


class StoreQueueProvider:
    """Makes `MessageQueueTrigger(scheme="homing", store="x")` of the provider common.messaging a StoreEventTrigger.

    It has the methods of that provider's BaseMessageQueueProvider, and does not need it to be installed.
    """

    scheme = "homing"

    def scheme_matches(self, scheme: str) -> bool:
        return scheme == self.scheme

    def queue_matches(self, queue: str) -> bool:
        return False

    def trigger_class(self) -> type[BaseEventTrigger]:
        return StoreEventTrigger

    def trigger_kwargs(self, queue: str, **kwargs: Any) -> dict[str, Any]:
        return {}
