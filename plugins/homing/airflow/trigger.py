"""StoreTrigger: asks, again and again, whether a store has anything due. It never claims."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from homing.airflow.hook import find_url
from homing.errors import StoreUnavailableError, UnsupportedError
from homing.stores import open_store
from homing.stores.sql import SqlStore

log = logging.getLogger(__name__)


class StoreTrigger(BaseTrigger):
    """Fires once something is due. `store` is a URL, `env:NAME` or a connection id; `polling_interval` in seconds."""

    def __init__(self, store: str, polling_interval: float) -> None:
        super().__init__()
        self.store = store
        self.polling_interval = polling_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"store": self.store, "polling_interval": self.polling_interval},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        url = await sync_to_async(find_url)(self.store)
        store = open_store(url)
        if not isinstance(store, SqlStore):
            raise UnsupportedError(f"store {store.name!r} cannot be asked whether something is due")
        with store:
            while not await self._is_due(store):
                await asyncio.sleep(self.polling_interval)
        yield TriggerEvent({"store": store.name})

    async def _is_due(self, store: SqlStore) -> bool:
        try:
            return await asyncio.to_thread(store.has_due)
        except StoreUnavailableError as error:
            # A store that is away has nothing due for now; failing would end the listening.
            log.warning("%s", error)
            return False
