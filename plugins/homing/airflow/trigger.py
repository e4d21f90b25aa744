"""StoreTrigger: asks, again and again, whether a store has anything due. It never claims."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from homing.airflow.hook import find_url
from homing.errors import StoreUnavailableError, UnsupportedError
from homing.stores import open_store
from homing.stores.sql import SqlStore

log = logging.getLogger(__name__)

_LOOK_FOR_OTHERS_EVERY = 5.0  # seconds


class StoreTrigger(BaseTrigger):
    """Fires once something is due, or once another run of the DAG `give_way_to` is queued: a run that listens holds
    the only place, and one that somebody cleared to replay it must not wait for the next message.

    `store` is a URL, `env:NAME` or a connection id; `polling_interval` is in seconds.
    """

    def __init__(self, store: str, polling_interval: float, give_way_to: str | None = None) -> None:
        super().__init__()
        self.store = store
        self.polling_interval = polling_interval
        self.give_way_to = give_way_to

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"store": self.store, "polling_interval": self.polling_interval, "give_way_to": self.give_way_to},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        url = await sync_to_async(find_url)(self.store)
        store = open_store(url)
        if not isinstance(store, SqlStore):
            raise UnsupportedError(f"store {store.name!r} cannot be asked whether something is due")
        with store:
            looked = time.monotonic()
            while not await self._is_due(store):
                if time.monotonic() - looked > _LOOK_FOR_OTHERS_EVERY:
                    looked = time.monotonic()
                    if await self._others_wait():
                        yield TriggerEvent({"give_way": True})
                        return
                await asyncio.sleep(self.polling_interval)
        yield TriggerEvent({"give_way": False})

    async def _is_due(self, store: SqlStore) -> bool:
        try:
            return await asyncio.to_thread(store.has_due)
        except StoreUnavailableError as error:
            # A store that is away has nothing due for now; failing would end the listening.
            log.warning("%s", error)
            return False

    async def _others_wait(self) -> bool:
        if self.give_way_to is None:
            return False
        try:
            queued = await sync_to_async(RuntimeTaskInstance.get_dr_count)(dag_id=self.give_way_to, states=["queued"])
        except Exception as error:  # noqa: BLE001 - whatever is wrong with asking, listening goes on
            log.warning("cannot ask for queued runs of %s: %s", self.give_way_to, error)
            return False
        return queued > 0
