"""Event-driven scheduling: an asset whose events say that a store has something due.

An event is a hint, never a message: the messages stay in the store until a run has settled them. So a triggerer that
dies, a DAG that is paused, or a burst of events loses nothing; and because the hint is repeated for as long as
something is due, nothing is stranded either.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from homing.airflow.hook import find_url
from homing.airflow.trigger import is_due
from homing.stores import open_store


class StoreEventTrigger(BaseEventTrigger):
    """Fires when something is due in a store, and again every `repeat_interval` seconds while there still is.

    For `AssetWatcher(name, trigger=StoreEventTrigger(store="orders"))`. `store` is a URL, `env:NAME` or a connection
    id; a URL is kept in Airflow's database as it is, so one with a password belongs into a connection.
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
        said: float | None = None
        with open_store(await sync_to_async(find_url)(self.store)) as store:
            while True:
                if await is_due(store) is False:
                    said = None  # drained: the next message is news
                elif said is None or time.monotonic() - said >= self.repeat_interval:
                    said = time.monotonic()
                    yield TriggerEvent({"store": store.name})
                await asyncio.sleep(self.polling_interval)


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
