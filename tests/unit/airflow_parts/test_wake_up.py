"""A trigger on a store that says by itself when it has something: no test here waits for the next look."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.triggers.base import TriggerEvent

from homing import open_store
from homing.airflow import StoreEventTrigger
from homing.airflow.triggers.store import StoreTrigger
from homing.store import Store

#: Nothing that is noticed here was found by looking again.
NEVER = 3600.0
PATIENCE = 30.0

LISTENERS = sa.text("SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()")

pytestmark = pytest.mark.services


@pytest.fixture
def address(postgresql: Any) -> str:
    return f"{postgresql.empty_database()}?store=orders"


def play(address: str, scene: Callable[[Store, Callable[[], int]], Coroutine[Any, Any, None]]) -> None:
    """Runs a scene with a producer's store, and a function that counts the connections that listen."""
    engine = sa.create_engine(address.partition("?")[0], isolation_level="AUTOCOMMIT")

    def listening() -> int:
        with engine.connect() as connection:
            return len(connection.execute(LISTENERS).all())

    with open_store(address) as producer:
        asyncio.run(asyncio.wait_for(scene(producer, listening), 4 * PATIENCE))
    engine.dispose()


async def until(true: Callable[[], Any]) -> None:
    async def look() -> None:
        while not await asyncio.to_thread(true):
            await asyncio.sleep(0.05)

    await asyncio.wait_for(look(), PATIENCE)


def wakers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.endswith("-waker")]


async def next_of(events: AsyncIterator[TriggerEvent]) -> TriggerEvent:
    return await events.__anext__()


@pytest.mark.parametrize("kind", [StoreTrigger, StoreEventTrigger])
def test_it_fires_when_a_message_is_committed_and_not_at_the_next_look(address: str, kind: Any) -> None:
    async def scene(producer: Store, listening: Callable[[], int]) -> None:
        fired = asyncio.create_task(next_of(kind(address, NEVER).run()))
        await until(listening)
        assert not fired.done()

        await asyncio.to_thread(producer.store, 1)

        await asyncio.wait_for(fired, PATIENCE)

    play(address, scene)


def test_a_message_of_the_store_it_is_filled_from_is_noticed_too(address: str, tmp_path: Any) -> None:
    async def scene(producer: Store, listening: Callable[[], int]) -> None:
        trigger = StoreTrigger(f"sqlite:///{tmp_path}/here.db?store=here", NEVER, source=address)
        fired = asyncio.create_task(next_of(trigger.run()))
        await until(listening)
        await asyncio.to_thread(producer.store, 1)
        await asyncio.wait_for(fired, PATIENCE)

    play(address, scene)


@pytest.mark.parametrize("kind", [StoreTrigger, StoreEventTrigger])
def test_a_trigger_that_is_cancelled_leaves_neither_thread_nor_connection(address: str, kind: Any) -> None:
    async def scene(_: Store, listening: Callable[[], int]) -> None:
        fired = asyncio.create_task(next_of(kind(address, NEVER).run()))
        await until(listening)
        assert wakers()

        fired.cancel()
        await asyncio.gather(fired, return_exceptions=True)

        await until(lambda: not wakers())
        await until(lambda: not listening())

    play(address, scene)
