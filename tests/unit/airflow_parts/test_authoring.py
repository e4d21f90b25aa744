"""The three levels of authoring: DAG factories, the task group, and single operators; their arguments agree."""

from __future__ import annotations

import inspect
import pydoc
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, TaskGroup

from homing import ListenerConfig
from homing.airflow import DeliveryTaskGroup, PipelineConfig, StoreMessagesOperator, delivery_dag, listener_dag
from homing.airflow.dags.listener_dag import ListenOperator
from homing.delivery import PipelineStores
from homing.errors import ConfigurationError
from tests.unit.airflow_parts.conftest import context

DAG_FILE = """
from airflow.sdk import DAG, TaskGroup
from homing.airflow import DeliveryTaskGroup, delivery_dag, listener_dag, reconcile_dag

stores = {{"store": "{0}", "dead_letter_store": "{1}"}}
delivery_dag("orders", chain="{2}", **stores, approve_replays_above=100)
listener_dag("mailer", store="{0}", on_message=print, dead_letter_store="{1}")
reconcile_dag([{{"name": "orders", "chain": "{2}", **stores}}])

with DAG("shop", schedule="@daily"):
    with TaskGroup("outer"):
        DeliveryTaskGroup("invoices", chain="{2}", **stores)
"""


def test_a_dag_file_gives_all_its_dags_whichever_level_they_are_written_at(
    tmp_path: Path, urls: tuple[str, str], chain: str
) -> None:
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "shop.py").write_text(DAG_FILE.format(*urls, chain))

    bag = DagBag(str(folder))

    assert bag.import_errors == {}
    tasks = {dag_id: set(dag.task_ids) for dag_id, dag in bag.dags.items()}
    group = "outer.invoices"
    assert tasks == {
        "orders": {"listen", "process", "deliver.lake", "deliver.crm", "settle"},
        "orders_replay": {"select", "approve", "replay", "settle"},
        "mailer": {"listen"},
        "homing_reconcile": {"orders"},
        "shop": {f"{group}.{name}" for name in ("listen", "process", "deliver.lake", "deliver.crm", "settle")},
        "shop_outer.invoices_replay": {"select", "replay", "settle"},
    }
    shop = bag.dags["shop"]
    assert shop.get_task(f"{group}.settle").is_teardown
    assert shop.get_task(f"{group}.process").upstream_task_ids == {f"{group}.listen"}
    assert bag.dags["orders_replay"].get_task("replay").upstream_task_ids == {"select", "approve"}
    assert bag.dags["orders"].get_task("process").retries == 5
    assert bag.dags["orders_replay"].get_task("replay").retries == 3
    assert bag.dags["orders_replay"].is_paused_upon_creation is False


def test_the_arguments_of_the_factories_are_the_same_with_the_same_defaults() -> None:
    def defaults(function: Any) -> dict[str, Any]:
        found = inspect.signature(function).parameters.values()
        return {each.name: each.default for each in found if each.kind is each.KEYWORD_ONLY}

    dag, group, config = (defaults(each) for each in (delivery_dag, DeliveryTaskGroup.__init__, PipelineConfig))

    assert dag == group == {name: default for name, default in config.items() if name != "group"}


def test_help_tells_the_options_of_the_factories(chain: str) -> None:
    shown = pydoc.render_doc(delivery_dag, renderer=pydoc.plaintext)

    assert "delivery_dag(name: 'str', *, chain: 'str', store: " in shown
    assert "spark_above: 'Count' = 200" in shown
    assert "approval_window     what was replayed by hand" in shown


def test_no_password_is_in_the_repr_of_a_pipeline(chain: str) -> None:
    stores = {name: f"postgresql://me:s3cret@db/{name}" for name in ("store", "dead_letter_store")}
    pipeline = PipelineConfig("orders", chain=chain, **stores, source="amqp://me:s3cret@broker/")

    assert "s3cret" not in repr(pipeline)


def test_the_arguments_of_listener_dag_are_those_of_listener_config() -> None:
    given = inspect.signature(listener_dag).parameters
    config = {field.name: field.default for field in fields(ListenerConfig)}

    assert {name: given[name].default for name in config} == config
    shared = ("polling_interval", "max_retries", "retry_interval")
    assert {name: inspect.signature(delivery_dag).parameters[name].default for name in shared} == {
        name: config[name] for name in shared
    }


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"max_retries": -1}, "max_retries"),
        ({"store": "sqllite:///x"}, "did you mean"),
        ({"schedule": "@daily"}, "sets schedule itself"),
        ({"polling_interval": 0}, "polling_interval"),
    ],
)
def test_what_is_wrong_with_a_listener_is_said_at_once(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        listener_dag("x", **{"store": "sqlite:///x.db", "on_message": print, **arguments})


def test_a_source_that_is_a_sql_store_is_refused(chain: str, urls: tuple[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="is a SQL store already"):
        PipelineConfig("x", chain=chain, store=urls[0], dead_letter_store=urls[1], source="sqlite:///y.db?store=other")


def test_the_replay_dag_of_a_group_keeps_out_of_the_group_that_is_open(chain: str, urls: tuple[str, str]) -> None:
    with DAG("shop", schedule=None), TaskGroup("outer"):
        group = DeliveryTaskGroup("mails", chain=chain, store=urls[0], dead_letter_store=urls[1])

    assert group.group_id == "outer.mails"
    assert set(group.replay_dag.task_ids) == {"select", "replay", "settle"}


def test_groups_of_one_name_in_different_groups_share_nothing(chain: str, urls: tuple[str, str]) -> None:
    with DAG("shop", schedule=None):
        groups = []
        for outer in ("eu", "us"):
            with TaskGroup(outer):
                groups.append(DeliveryTaskGroup("mails", chain=chain, store=urls[0], dead_letter_store=urls[1]))

    assert [group.replay_dag.dag_id for group in groups] == ["shop_eu.mails_replay", "shop_us.mails_replay"]
    pipelines = [group.replay_dag.get_task("replay").pipeline for group in groups]
    assert [pipeline.run_key(context()) for pipeline in pipelines] == ["orders/run/eu.mails", "orders/run/us.mails"]
    assert pipelines[0].work_folder != pipelines[1].work_folder


def test_a_pipeline_whose_messages_have_no_retries_still_waits_for_its_stores_and_for_spark(
    chain: str, urls: tuple[str, str]
) -> None:
    first_pass, replay = delivery_dag("x", chain=chain, store=urls[0], dead_letter_store=urls[1], max_retries=0)

    assert {task.task_id: task.retries for task in first_pass.tasks} == {
        "listen": 5,
        "process": 5,
        "deliver.lake": 5,
        "deliver.crm": 5,
        "settle": 5,
    }
    assert replay.get_task("replay").retries == 0


# -- producing -------------------------------------------------------------------------------------------------


def test_messages_are_stored_once_however_often_the_task_runs(urls: tuple[str, str], stores: PipelineStores) -> None:
    operator = StoreMessagesOperator(task_id="send", store=urls[0], contents=[1, {"a": 2}], headers={"h": "v"})

    first, second = operator.execute(context()), operator.execute(context())

    assert first == second
    assert [(message.id, message.content, message.headers) for message in stores.store.browse()] == [
        (first[0], 1, {"h": "v"}),
        (first[1], {"a": 2}, {"h": "v"}),
    ]
    assert operator.execute(context("another run")) != first


def test_a_retry_that_finds_other_contents_stores_those_too(urls: tuple[str, str], stores: PipelineStores) -> None:
    for contents in ([1, 2], ["other", 2]):
        StoreMessagesOperator(task_id="send", store=urls[0], contents=contents).execute(context())

    assert [message.content for message in stores.store.browse()] == [1, 2, "other"]


def test_messages_can_be_scheduled_and_must_be_a_list(urls: tuple[str, str], stores: PipelineStores) -> None:
    StoreMessagesOperator(task_id="a", store=urls[0], contents=[1], scheduled_at="PT1H").execute(context())

    assert stores.store.count()["scheduled"] == 1
    with pytest.raises(ConfigurationError, match="a list"):
        StoreMessagesOperator(task_id="b", store=urls[0], contents="abc").execute(context())


# -- listening without Spark ----------------------------------------------------------------------------------


def test_a_listener_handles_all_that_is_due_and_dead_letters_what_fails(
    urls: tuple[str, str], stores: PipelineStores
) -> None:
    seen: list[int] = []

    def on_message(number: int) -> None:
        if number == 2:
            raise ValueError("no twos")
        seen.append(number)

    dag = listener_dag(
        "listener",
        store=urls[0],
        on_message=on_message,
        dead_letter_store=urls[1],
        max_retries=0,
        polling_interval=0.1,
    )
    stores.store.store_many([1, 2, 3])
    listen = dag.get_task("listen")
    assert isinstance(listen, ListenOperator)

    counted = listen.execute(context())

    assert (sorted(seen), counted["processed"], counted["dead_lettered"]) == ([1, 3], 2, 1)
    assert [message.content for message in stores.dead_letters.browse()] == [2]


def test_a_listener_waits_in_the_triggerer(urls: tuple[str, str]) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    dag = listener_dag("listener", store=urls[0], on_message=print)

    with pytest.raises(TaskDeferred):
        dag.get_task("listen").execute(context())
