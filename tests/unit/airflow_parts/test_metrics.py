"""What is counted when: Airflow's metrics tell what became of messages, and never stop a delivery."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from airflow.sdk.exceptions import DagRunTriggerException

from homing import HandlerChain, MessageContext, destination
from homing.airflow import (
    PipelineConfig,
    ReconcileOperator,
    ReplayOperator,
    SettleOperator,
    StoreMessagesOperator,
    StoreSensor,
    listener_dag,
)
from homing.airflow.operators.settle import finish_replay
from homing.airflow.pipeline_config import PipelineAddress
from homing.delivery import PipelineStores
from homing.ledger import DROPPED, SOURCE_FLOW, Entry
from tests.unit.airflow_parts.conftest import context
from tests.unit.delivery.conftest import Pipeline


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    found: Counter[str] = Counter()
    monkeypatch.setattr("airflow.sdk.observability.stats.incr", lambda name, number, tags: found.update({name: number}))
    monkeypatch.setattr("airflow.sdk.observability.stats.gauge", lambda name, value, tags: found.update({name: 1}))
    return found


def test_a_batch_is_counted_from_its_arrival_to_its_end(
    spec: PipelineConfig, pipeline: Pipeline, urls: tuple[str, str], counted: Counter[str]
) -> None:
    send = StoreMessagesOperator(task_id="send", store=urls[0], contents=[1, 2, 3, 4])
    delivered, dropped, failed, _ = send.execute(context())
    StoreSensor(task_id="listen", pipeline=spec).execute(context())
    pipeline.delivered("orders/run", delivered, "lake", "crm")
    pipeline.record("orders/run", Entry(pipeline.ref(dropped), SOURCE_FLOW, DROPPED, batch_id="orders/run"))
    pipeline.failed("orders/run", failed, "crm")
    with pytest.raises(DagRunTriggerException):
        SettleOperator(task_id="settle", pipeline=spec, replay_dag_id="orders_replay").execute(context())
    with pytest.raises(Exception, match="still fail"):
        ReplayOperator(task_id="replay", pipeline=spec, ids=[failed], rate=1000).execute(context("replay"))
    finish_replay(spec, "orders/replay")

    assert counted == {
        "homing.accepted": 4,
        "homing.claimed": 4,
        "homing.delivered": 1,
        "homing.dropped": 1,
        "homing.failed": 1,
        "homing.released": 1,
        "homing.replayed": 1,
        "homing.dead_lettered": 1,
        "homing.oldest_age": 1,
    }


def test_what_a_replay_delivered_is_counted_although_others_still_fail(
    spec: PipelineConfig, failed: list[str], pipeline: Pipeline, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.batch("orders/replay").reclaim(failed)
    pipeline.delivered("orders/replay", failed[0], "crm", batch_id="first")  # by a try that was killed right after

    for _ in range(2):
        with pytest.raises(Exception, match="2 messages still fail"):
            ReplayOperator(task_id="replay", pipeline=spec, ids=failed, rate=1000).execute(context("replay"))
    assert (counted["homing.delivered"], counted["homing.replayed"]) == (1, 5)
    monkeypatch.setenv("CRM", "up")
    ReplayOperator(task_id="replay", pipeline=spec, ids=failed, rate=1000).execute(context("replay"))

    assert (counted["homing.delivered"], counted["homing.dead_lettered"]) == (3, 0)


def test_what_was_delivered_and_not_yet_acknowledged_is_counted_by_whoever_acknowledges_it(
    spec: PipelineConfig, failed: list[str], pipeline: Pipeline, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        pipeline.delivered("orders/replay", failed[0], "crm", batch_id="first")
        raise RuntimeError("the job dies before it acknowledges")

    monkeypatch.setattr(ReplayOperator, "_replay_here", die)
    with pytest.raises(RuntimeError, match="dies"):
        ReplayOperator(task_id="replay", pipeline=spec, ids=failed, rate=1000).execute(context("replay"))
    assert counted["homing.delivered"] == 0

    finish_replay(spec, "orders/replay")

    assert (counted["homing.delivered"], counted["homing.released"]) == (1, 2)


def test_a_listener_without_spark_is_counted_too(urls: tuple[str, str], counted: Counter[str]) -> None:
    def on_message(number: int) -> None:
        if number == 2:
            raise ValueError("no twos")

    dag = listener_dag(
        "l", store=urls[0], dead_letter_store=urls[1], on_message=on_message, max_retries=0, polling_interval=0.1
    )
    StoreMessagesOperator(task_id="send", store=urls[0], contents=[1, 2, 3]).execute(context())

    dag.get_task("listen").execute(context())

    assert counted == {
        "homing.accepted": 3,
        "homing.oldest_age": 1,
        "homing.delivered": 2,
        "homing.dead_lettered": 1,
    }


def test_a_backend_that_fails_stops_nothing(
    spec: PipelineConfig, stores: PipelineStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **more: Any) -> None:
        raise RuntimeError("no metrics today")

    monkeypatch.setattr("airflow.sdk.observability.stats.incr", broken)
    monkeypatch.setattr("airflow.sdk.observability.stats.gauge", broken)
    stores.store.store(1)

    assert StoreSensor(task_id="listen", pipeline=spec).execute(context())["messages"] == 1


def test_the_reconciler_shows_the_lag_of_each_destination(
    urls: tuple[str, str], chain: str, failed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gauges = {}
    monkeypatch.setattr(
        "airflow.sdk.observability.stats.gauge",
        lambda name, value, tags: gauges.update({(name, tags.get("destination")): value}),
    )

    ReconcileOperator(
        task_id="x",
        pipeline=PipelineAddress("orders", chain=chain, store=urls[0], dead_letter_store=urls[1]),
        after=300,
    ).execute(context())

    assert (gauges["homing.lag", "crm"], gauges["homing.lag", "lake"]) == (3, 0)


def test_what_settling_did_is_said_in_one_sentence(spec: PipelineConfig, pipeline: Pipeline) -> None:
    _, (message_id,) = pipeline.claimed("orders/run", 1)
    pipeline.delivered("orders/run", message_id, "lake", "crm")

    with pipeline.stores.store:
        settlement = pipeline.batch("orders/run").settle()

    assert str(settlement) == (
        "1 delivered, 0 dropped by rule, 0 failed and to be replayed, 0 dead-lettered, 0 released"
    )


def test_a_traceparent_reaches_the_destination() -> None:
    seen = []

    @destination
    def crm(ctx: MessageContext) -> None:
        seen.append(ctx.message.headers["traceparent"])

    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    HandlerChain("orders", destinations_flow=[crm]).execute({"n": 1}, headers={"traceparent": parent})

    assert seen == [parent]
