"""StoreSensor in its three modes, for a pipeline and for a store alone; and intake from a broker."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from homing import Message, open_store
from homing.airflow import PipelineConfig, StoreEventTrigger, StoreSensor, StoreTrigger
from homing.delivery import PipelineStores
from homing.errors import ConfigurationError, StoreUnavailableError, UnsupportedError
from homing.stores.sql import SqlStore
from tests.servicebus.broker import Settings
from tests.servicebus.server import ServiceBusServer
from tests.unit.airflow_parts.conftest import FakeTask, context
from tests.unit.delivery.conftest import Pipeline


def test_it_claims_at_once_what_is_due_and_a_retry_finds_the_same_batch(
    spec: PipelineConfig, stores: PipelineStores
) -> None:
    stores.store.store_many([1, 2])
    sensor = StoreSensor(task_id="listen", pipeline=spec)

    claimed = sensor.execute(context())
    stores.store.store(3)

    assert claimed == {"batch": "orders/run", "messages": 2}
    assert sensor.execute(context()) == claimed


def test_it_waits_in_the_triggerer_when_nothing_is_due(spec: PipelineConfig, stores: PipelineStores) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        StoreSensor(task_id="listen", pipeline=spec).execute(context())

    _, arguments = deferred.value.trigger.serialize()
    named = {"store": spec.store, "give_way_to": "orders", "source": None}
    assert arguments == {**named, "polling_interval": 1.0, "pipeline": True, "partitions": None}


def test_it_gives_way_only_where_it_holds_the_only_place(spec: PipelineConfig, stores: PipelineStores) -> None:
    many = context()
    many["dag"].max_active_runs = 16

    with pytest.raises(TaskDeferred) as deferred:
        StoreSensor(task_id="listen", pipeline=spec, timeout=60).execute(many)

    assert deferred.value.trigger.give_way_to is None
    assert deferred.value.timeout.total_seconds() == 60


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_in_the_other_modes_a_poke_claims(spec: PipelineConfig, stores: PipelineStores, mode: str) -> None:
    sensor = StoreSensor(task_id="listen", pipeline=replace(spec, polling_interval=7.0), mode=mode)
    assert (sensor.deferrable, sensor.poke_interval) == (False, 7.0)
    assert not sensor.poke(context()).is_done
    stores.store.store(1)

    done = sensor.poke(context())

    assert (done.is_done, done.xcom_value) == (True, {"batch": "orders/run", "messages": 1})


def test_a_run_whose_batch_is_complete_is_skipped(spec: PipelineConfig, pipeline: Pipeline) -> None:
    batch, (message_id,) = pipeline.claimed("orders/run", 1)
    pipeline.delivered("orders/run", message_id, "lake", "crm")
    batch.settle()

    for sensor in (
        StoreSensor(task_id="listen", pipeline=spec),
        StoreSensor(task_id="l", pipeline=spec, mode="poke"),
    ):
        with pytest.raises(AirflowSkipException, match="complete"):
            sensor.execute(context())


def test_a_store_alone_is_claimed_for_whoever_comes_after(urls: tuple[str, str], stores: PipelineStores) -> None:
    stores.store.store("x")

    claimed = StoreSensor(task_id="listen", store=urls[0]).execute(context())

    messages = stores.store.claim(10, batch_id=claimed["batch"])
    assert [message.content for message in messages] == ["x"]
    stores.store.settle(messages)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"store": "sqlite:///x.db", "pipeline": object()}, {"store": "x", "mode": "poke", "deferrable": True}],
)
def test_it_refuses_contradictions(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        StoreSensor(task_id="listen", **arguments)


def test_a_store_whose_leases_end_with_the_task_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="listener_dag"):
        StoreSensor(task_id="listen", store="memory://sensor").execute(context())


def test_two_task_groups_of_one_run_have_a_batch_each(spec: PipelineConfig, stores: PipelineStores) -> None:
    stores.store.store_many([1, 2])
    one, two = (
        StoreSensor(task_id=group, pipeline=replace(spec, group=group, batch_size=1)) for group in ("one", "two")
    )

    assert [sensor.execute(context())["batch"] for sensor in (one, two)] == ["orders/run/one", "orders/run/two"]


def test_two_pipelines_share_a_store_out_by_partition(chain: str, urls: tuple[str, str], tmp_path: Path) -> None:
    url = f"{urls[0]}&partitions=4"
    stores = {"store": url, "dead_letter_store": urls[1]}
    even, odd = (
        PipelineConfig(name, chain=chain, **stores, partitions=numbers, work_dir=str(tmp_path / name))
        for name, numbers in (("even", {0, 2}), ("odd", {1, 3}))
    )
    with open_store(url) as store:
        store.store_many(range(40))
        claimed = [
            StoreSensor(task_id="listen", pipeline=each).execute(FakeTask("run", dag_id=each.name).context)["messages"]
            for each in (even, odd)
        ]

        assert sum(claimed) == 40
        assert all(claimed)
        assert not store.has_due()
        store.store(Message("mine", 1, partition_key="key"))
        mine, other = (even, odd) if store.has_due(partitions=[0, 2]) else (odd, even)
    with pytest.raises(TaskDeferred) as deferred:
        StoreSensor(task_id="listen", pipeline=other).execute(FakeTask("next", dag_id=other.name).context)
    assert deferred.value.trigger.partitions == list(other.partitions or ())
    assert asyncio.run(first_event(StoreTrigger(url, 0.05, partitions=mine.partitions))) == {"give_way": False}
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(first_event(StoreTrigger(url, 0.05, partitions=other.partitions), within=1))


@pytest.mark.parametrize(
    ("url", "error"), [("{}&partitions=2", "has no partitions"), ("{}", "was opened with partitions=0")]
)
def test_partitions_that_the_store_of_a_pipeline_does_not_have_are_refused(
    chain: str, urls: tuple[str, str], url: str, error: str
) -> None:
    with pytest.raises(ConfigurationError, match=error):
        PipelineConfig("x", chain=chain, store=url.format(urls[0]), dead_letter_store=urls[1], partitions=[2])


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ({"polling_interval": 0}, "polling_interval must be a number > 0, got 0"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"lease": -1}, "lease must be a number > 0, got -1"),
    ],
)
def test_a_sensor_of_a_store_alone_says_at_once_what_its_settings_must_be(setting: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        StoreSensor(task_id="listen", store="env:ORDERS", **setting)


@pytest.fixture(params=["rabbitmq", "servicebus"])
def broker_url(request: pytest.FixtureRequest) -> str:
    server = request.getfixturevalue(request.param)
    if request.param == "rabbitmq":
        return f"{server.url}?store=intake_sensor"
    server.broker.make_queue("intake_sensor", Settings())
    return f"{server.url}?store=intake_sensor"


@pytest.mark.services
def test_what_a_broker_holds_is_seen_taken_in_and_acknowledged_there(
    spec: PipelineConfig, stores: PipelineStores, broker_url: str
) -> None:
    with open_store(broker_url) as broker:
        assert broker.has_due() is False
        broker.store(Message("m", {"number": 1}, headers={"traceparent": "00-abc-def-01"}))
        assert broker.has_due() is True
        sensor = StoreSensor(task_id="listen", pipeline=replace(spec, source=broker_url))

        assert sensor.execute(context()) == {"batch": "orders/run", "messages": 1}

        (message,) = stores.store.browse()
        assert (message.id, message.content, message.headers["traceparent"]) == ("m", {"number": 1}, "00-abc-def-01")
        assert broker.has_due() is False


def test_a_run_that_is_cleared_takes_nothing_in(spec: PipelineConfig, stores: PipelineStores) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    stores.store.store(1)
    sensor = StoreSensor(task_id="listen", pipeline=replace(spec, source=url))
    assert sensor.execute(context())["messages"] == 1
    with open_store(url) as broker:
        broker.store("for the next run")

        assert sensor.execute(context())["messages"] == 1

        assert broker.has_due() is True


@pytest.mark.services
def test_what_is_due_behind_many_that_are_not_is_seen(servicebus: ServiceBusServer) -> None:
    servicebus.call(lambda: servicebus.broker.make_queue("scheduled_first", Settings()))
    later = datetime.now(timezone.utc) + timedelta(hours=1)
    with open_store(f"{servicebus.url}?store=scheduled_first") as broker:
        broker.store_many([Message(f"m{n}", n, scheduled_at=later) for n in range(250)])
        assert broker.has_due() is False
        broker.store("now")

        assert broker.has_due() is True


def test_a_broker_that_is_away_holds_up_nothing_that_is_here(spec: PipelineConfig, stores: PipelineStores) -> None:
    stores.store.store(1)
    sensor = StoreSensor(task_id="listen", pipeline=replace(spec, source="amqp://127.0.0.1:1/?store=orders"))

    assert sensor.execute(context())["messages"] == 1


def test_a_store_that_takes_nothing_is_not_taken_for_a_broker_that_is_away(
    spec: PipelineConfig, stores: PipelineStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(_: object) -> None:
        raise StoreUnavailableError("cannot write to store 'orders': it is read-only")

    stores.store.store(1)
    monkeypatch.setattr(SqlStore, "require_writable", read_only)
    sensor = StoreSensor(task_id="listen", pipeline=replace(spec, source="amqp://127.0.0.1:1/?store=orders"))

    with pytest.raises(StoreUnavailableError, match="read-only"):  # and the task is tried again
        sensor.execute(context())


# -- triggers --------------------------------------------------------------------------------------------------


async def first_event(trigger: Any, within: float = 20.0) -> Any:
    async def ask() -> Any:
        return (await anext(trigger.run())).payload

    return await asyncio.wait_for(ask(), within)


def test_the_trigger_fires_when_something_is_due_and_claims_nothing(
    urls: tuple[str, str], stores: PipelineStores
) -> None:
    async def scene() -> Any:
        waiting = asyncio.create_task(first_event(StoreTrigger(urls[0], 0.05)))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        stores.store.store(1)
        return await waiting

    assert asyncio.run(scene()) == {"give_way": False}
    assert stores.store.count()["available"] == 1


def test_the_trigger_of_a_pipeline_does_not_fire_for_what_waits_for_a_replay_of_its_session(
    urls: tuple[str, str], stores: PipelineStores
) -> None:
    stores.failures.store(Message("failed", {}, session_id="a"))
    stores.store.store(Message("next", {}, session_id="a"))

    async def scene() -> Any:
        waiting = asyncio.create_task(first_event(StoreTrigger(urls[0], 0.05, pipeline=True)))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        stores.failures.acknowledge(stores.failures.claim(1)[0])
        return await waiting

    assert asyncio.run(scene()) == {"give_way": False}


def test_an_event_is_repeated_while_something_is_due_and_so_never_lost(
    urls: tuple[str, str], stores: PipelineStores
) -> None:
    async def scene() -> list[Any]:
        stores.store.store(1)
        seen = []
        async for event in StoreEventTrigger(urls[0], 0.02, 0.1).run():
            seen.append(event.payload)
            if len(seen) == 3:
                return seen
        return seen

    assert asyncio.run(asyncio.wait_for(scene(), 20)) == [{"store": "orders"}] * 3
    assert stores.store.count()["available"] == 1


def test_a_store_that_is_away_is_waited_for(tmp_path: Any) -> None:
    async def scene() -> None:
        folder = tmp_path / "later"
        waiting = asyncio.create_task(first_event(StoreTrigger(f"sqlite:///{folder}/x.db", 0.05)))
        await asyncio.sleep(0.2)
        folder.mkdir()
        with open_store(f"sqlite:///{folder}/x.db") as store:
            store.store(1)
        await waiting

    asyncio.run(scene())


def test_a_scheduled_message_is_noticed_when_it_is_due_and_not_at_the_next_look(urls: tuple[str, str]) -> None:
    due = datetime.now(timezone.utc) + timedelta(seconds=1)
    with open_store(urls[0]) as store:
        store.store("later", scheduled_at=due)

    assert asyncio.run(first_event(StoreTrigger(urls[0], 30))) == {"give_way": False}

    assert due <= datetime.now(timezone.utc) < due + timedelta(seconds=5)


def test_a_store_that_cannot_be_asked_is_tried_now_and_then(
    urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqlStore, "has_due", lambda store: None)
    monkeypatch.setattr("homing.airflow.triggers.store.TRY_EVERY", 0.2)
    began = time.monotonic()

    assert asyncio.run(first_event(StoreTrigger(urls[0], 0.05))) == {"give_way": False}
    assert time.monotonic() - began > 0.2


@pytest.mark.parametrize(
    "trigger",
    [
        StoreTrigger("orders", 2.0, "dag", "queue", pipeline=True, partitions=(0, 2)),
        StoreEventTrigger("orders", 2.0, 30.0),
    ],
)
def test_a_trigger_comes_back_from_its_serialized_form(trigger: Any) -> None:
    path, arguments = trigger.serialize()
    again = type(trigger)(**arguments)

    assert path == f"{type(trigger).__module__}.{type(trigger).__name__}"
    assert again.serialize() == trigger.serialize()


@pytest.mark.parametrize("kind", [StoreTrigger, StoreEventTrigger])
def test_a_trigger_shows_no_url_in_logs(kind: Any) -> None:
    assert "s3cret" not in repr(kind("postgresql://me:s3cret@db/x", 1.0))
