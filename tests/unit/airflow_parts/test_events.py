"""Event-driven scheduling on Airflow's own shared stream: a hint counts as said only once it is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import structlog
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.triggers.base import TriggerEvent
from airflow.triggers.shared_stream import AckTimeout, SharedStreamManager

from homing.airflow import StoreEventTrigger
from homing.delivery import PipelineStores
from tests.unit.delivery.conftest import FLOWS, Pipeline

PATIENCE = 20.0
QUICK = {"polling_interval": 0.02, "repeat_interval": 0.2}


class Triggerer:
    """What Airflow's triggerer does with event triggers: its own shared streams, and events that wait to be stored."""

    def __init__(self, ack_timeout: float = 60.0) -> None:
        self.streams = SharedStreamManager(log=structlog.get_logger(), ack_timeout=ack_timeout)
        self.events: asyncio.Queue[tuple[int, Any, int | None]] = asyncio.Queue()
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, trigger: StoreEventTrigger) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(self._run(len(self.tasks), trigger)))
        return self.tasks[-1]

    async def _run(self, number: int, trigger: StoreEventTrigger) -> None:
        key = trigger.shared_stream_key()
        stream = self.streams.subscribe(trigger_id=number, trigger=trigger, key=key)
        async for event in trigger.filter_shared_stream(stream):
            seq = self.streams.bind_pending_event(trigger_id=number, key=key)
            self.events.put_nowait((number, event.payload, seq))

    async def event(self) -> tuple[int, Any, int | None]:
        return await asyncio.wait_for(self.events.get(), PATIENCE)

    def store(self, *seqs: int | None) -> None:
        """The events are in Airflow's database."""
        self.streams.confirm_persisted([seq for seq in seqs if seq is not None])

    async def none_within(self, seconds: float) -> bool:
        await asyncio.sleep(seconds)
        return self.events.empty()

    async def kill(self) -> None:
        """As SIGKILL would: whatever was not stored is gone, and nobody is told."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.streams.stop_all()


def play(scene: Callable[[Triggerer], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def run() -> None:
        triggerer = Triggerer(**settings)
        try:
            await scene(triggerer)
        finally:
            await triggerer.kill()

    asyncio.run(asyncio.wait_for(run(), 4 * PATIENCE))


def test_a_hint_is_not_repeated_while_it_waits_to_be_stored_and_is_after(
    urls: tuple[str, str], stores: PipelineStores
) -> None:
    stores.store.store(1)

    async def scene(triggerer: Triggerer) -> None:
        triggerer.start(StoreEventTrigger(urls[0], **QUICK))
        _, hint, seq = await triggerer.event()
        assert hint == {"store": "orders"}
        assert seq is not None  # bound to Airflow's acknowledgement
        assert await triggerer.none_within(0.6)
        triggerer.store(seq)
        await triggerer.event()

    play(scene)


def test_a_triggerer_killed_before_the_hint_was_stored_loses_nothing(
    urls: tuple[str, str], stores: PipelineStores
) -> None:
    stores.store.store_many([1, 2, 3])

    async def scene(first: Triggerer) -> None:
        first.start(StoreEventTrigger(urls[0], **QUICK))
        await first.event()
        await first.kill()
        again = Triggerer()
        again.start(StoreEventTrigger(urls[0], polling_interval=0.02, repeat_interval=3600))
        assert (await again.event())[1] == {"store": "orders"}
        await again.kill()

    play(scene)
    assert stores.store.count()["available"] == 3


def test_a_hint_that_is_never_stored_fails_its_trigger_and_is_said_to_the_next(
    urls: tuple[str, str], stores: PipelineStores
) -> None:
    stores.store.store(1)
    trigger = StoreEventTrigger(urls[0], polling_interval=0.02, repeat_interval=3600)

    async def scene(triggerer: Triggerer) -> None:
        failing = triggerer.start(trigger)
        await triggerer.event()
        with pytest.raises(AckTimeout):
            await asyncio.wait_for(failing, PATIENCE)
        await triggerer.streams.unsubscribe(0, trigger.shared_stream_key())
        triggerer.start(trigger)
        await triggerer.event()

    play(scene, ack_timeout=0.3)


def test_a_burst_is_hinted_at_until_the_last_message_has_been_claimed(
    urls: tuple[str, str], stores: PipelineStores, pipeline: Pipeline
) -> None:
    stores.store.store_many(range(50))
    settled: list[int] = []

    async def scene(triggerer: Triggerer) -> None:
        triggerer.start(StoreEventTrigger(urls[0], **QUICK))
        for run in range(5):  # five runs of ten messages each: a single hint would strand forty
            _, _, seq = await triggerer.event()
            triggerer.store(seq)
            batch = pipeline.batch(f"run {run}")
            settled.append(batch.claim(10))
            for head in batch.messages():
                pipeline.delivered(f"run {run}", head.message_id, *FLOWS)
            batch.settle()
        assert await triggerer.none_within(0.6)

    play(scene)
    assert settled == [10] * 5


def test_hints_that_a_paused_dag_missed_are_repeated_for_it(urls: tuple[str, str], stores: PipelineStores) -> None:
    stores.store.store(1)

    async def scene(triggerer: Triggerer) -> None:
        triggerer.start(StoreEventTrigger(urls[0], **QUICK))
        for _ in range(3):  # stored, and nobody ran for them
            triggerer.store((await triggerer.event())[2])
        await triggerer.event()

    play(scene)
    assert stores.store.count()["available"] == 1


def test_watchers_that_ask_alike_share_one_look_and_each_is_told(urls: tuple[str, str], stores: PipelineStores) -> None:
    stores.store.store(1)

    async def scene(triggerer: Triggerer) -> None:
        for _ in range(2):
            triggerer.start(StoreEventTrigger(urls[0], polling_interval=0.02, repeat_interval=3600))
        told = [await triggerer.event() for _ in range(2)]
        assert {number for number, _, _ in told} == {0, 1}
        assert len(triggerer.streams._groups) == 1
        triggerer.store(told[0][2])  # half of it is not enough
        assert await triggerer.none_within(0.3)

    play(scene)


def test_a_new_message_after_the_store_was_drained_is_news(urls: tuple[str, str], stores: PipelineStores) -> None:
    stores.store.store(1)

    async def scene(triggerer: Triggerer) -> None:
        triggerer.start(StoreEventTrigger(urls[0], polling_interval=0.02, repeat_interval=3600))
        triggerer.store((await triggerer.event())[2])
        stores.store.settle(stores.store.claim(10))
        await asyncio.sleep(0.3)
        stores.store.store(2)
        await triggerer.event()

    play(scene)


def test_a_message_queue_trigger_of_the_scheme_homing_is_a_store_event_trigger(
    urls: tuple[str, str], stores: PipelineStores
) -> None:
    stores.store.store(1)
    trigger = MessageQueueTrigger(scheme="homing", store=urls[0], **QUICK)

    async def first_event() -> Any:
        return await asyncio.wait_for(anext(trigger.run()), PATIENCE)

    assert isinstance(asyncio.run(first_event()), TriggerEvent)
    # This is what Airflow keeps, and runs: the shared stream, and all it promises.
    assert trigger.serialize() == StoreEventTrigger(urls[0], **QUICK).serialize()


def test_the_scheme_of_somebody_else_is_not_ours() -> None:
    with pytest.raises(ValueError, match="not recognized"):
        MessageQueueTrigger(scheme="kafka", topics=["orders"]).serialize()


def test_the_key_that_airflow_logs_shows_no_url() -> None:
    one, other = StoreEventTrigger("postgresql://me:s3cret@db/x"), StoreEventTrigger("postgresql://me:s3cret@db/y")

    assert "s3cret" not in str(one.shared_stream_key())
    assert one.shared_stream_key() != other.shared_stream_key()
