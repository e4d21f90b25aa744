"""StoreTrigger: asks, again and again, whether a store has anything due. It never claims."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Collection
from contextlib import ExitStack
from typing import Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from homing.airflow.hooks.store import find_url
from homing.airflow.triggers.wake_up import WakeUpCall
from homing.errors import StoreUnavailableError
from homing.pipeline_store import is_pipeline_store
from homing.store import WAKE_UP, Store
from homing.store_ref import StoreRef
from homing.stores import open_store

log = logging.getLogger(__name__)

_LOOK_FOR_OTHERS_EVERY = 5.0  # seconds
#: How often a task is started to look into a store that the trigger cannot ask.
TRY_EVERY = 15.0  # seconds


class StoreTrigger(BaseTrigger):
    """Fires when a message is due, or when another run of the DAG `give_way_to` is queued.

    `give_way_to` is for a DAG of which only one run may be active. If a run of it is cleared, to be done again, it must
    not wait until a message comes for the run that listens.

    `store`, and `source` from which it is filled, are URLs, `env:NAME` or connection ids. `polling_interval` is in
    seconds. With `partitions`, only messages of the store in these partitions count. With `pipeline`, a message in the
    store is not due while another message of its session waits for a replay.
    """

    def __init__(
        self,
        store: str | StoreRef,
        polling_interval: float,
        give_way_to: str | None = None,
        source: str | StoreRef | None = None,
        *,
        pipeline: bool = False,
        partitions: Collection[int] | None = None,
    ) -> None:
        super().__init__()
        self.store = StoreRef(store)
        self.polling_interval = polling_interval
        self.give_way_to = give_way_to
        self.source = None if source is None else StoreRef(source)
        self.pipeline = pipeline
        self.partitions = None if partitions is None else list(partitions)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("polling_interval", "give_way_to", "pipeline", "partitions")
        stores = {"store": self.store.text, "source": None if self.source is None else self.source.text}
        about = {**stores, **{name: getattr(self, name) for name in names}}
        return f"{type(self).__module__}.{type(self).__qualname__}", about

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"  # Airflow's own would show the store's URL

    async def run(self) -> AsyncIterator[TriggerEvent]:
        with ExitStack() as opened:
            stores = [
                opened.enter_context(open_store(await sync_to_async(find_url)(reference)))
                for reference in (self.store, self.source)
                if reference is not None
            ]
            if self.pipeline and is_pipeline_store(stores[0]):
                opened.enter_context(stores[0].failures())
            shares = [self.partitions, None]
            call = opened.enter_context(WakeUpCall(stores, self.polling_interval, shares))
            began = looked = time.monotonic()
            while not await self._is_time(stores, shares, call, began):
                if time.monotonic() - looked > _LOOK_FOR_OTHERS_EVERY:
                    looked = time.monotonic()
                    if await self._others_wait():
                        yield TriggerEvent({"give_way": True})
                        return
                # A store that wakes ends the sleep. Looking all the same is for the case that it does not. The sleep is
                # no longer than until the next scheduled message is due.
                asked = zip(stores, shares, strict=False)
                soonest = [await due_in(store, share) or self.polling_interval for store, share in asked]
                await call.sleep(min(self.polling_interval, *soonest))
        yield TriggerEvent({"give_way": False})

    @staticmethod
    async def _is_time(
        stores: Collection[Store], shares: Collection[Collection[int] | None], call: WakeUpCall, began: float
    ) -> bool:
        call.get_ready()
        answers = [await is_due(*asked) for asked in zip(stores, shares, strict=False)]
        return any(answers) or (None in answers and time.monotonic() - began > TRY_EVERY)

    async def _others_wait(self) -> bool:
        if self.give_way_to is None:
            return False
        try:
            queued = await sync_to_async(RuntimeTaskInstance.get_dr_count)(dag_id=self.give_way_to, states=["queued"])
        except Exception as error:  # noqa: BLE001 - whatever is wrong with asking, listening goes on
            log.warning("cannot ask for queued runs of %s: %s", self.give_way_to, error)
            return False
        return queued > 0


async def is_due(store: Store, partitions: Collection[int] | None = None) -> bool | None:
    """As `store.has_due`, asked off the event loop."""
    try:
        return await asyncio.to_thread(store.has_due, **_share(partitions))
    except StoreUnavailableError as error:
        # A store that is away has nothing due for now; failing would end the listening.
        log.warning("%s", error)
        return False


async def due_in(store: Store, partitions: Collection[int] | None) -> float | None:
    """Returns in how many seconds the store has a message to hand out; None when it cannot tell. Asks off the event
    loop."""
    if WAKE_UP not in store.features:
        return None
    try:
        return await asyncio.to_thread(store.due_in, **_share(partitions))
    except StoreUnavailableError:
        return None  # as `is_due` has said already


def _share(partitions: Collection[int] | None) -> dict[str, Collection[int]]:
    return {} if partitions is None else {"partitions": partitions}
