"""What a pipeline does when nothing, or something wrong, was said: Spark, Java, options, neighbours, retries."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms

from homing.airflow import (
    DeliveryTaskGroup,
    PipelineConfig,
    StoreSensor,
    dead_letter_callback,
    delivery_dag,
    listener_dag,
)
from homing.airflow.hooks.store import find_url
from homing.airflow.operators.spark import DeliverOperator
from homing.delivery import PipelineStores
from homing.errors import ConfigurationError
from homing.spark.submit.java import require_java
from tests.unit.airflow_parts.conftest import context
from tests.unit.delivery.conftest import Pipeline

# Stands where spark-submit would, and writes down what it was given.
RECORDER = """#!{python}
import json, os, sys
json.dump({{"argv": sys.argv[1:], "conn": os.environ.get("AIRFLOW_CONN_SPARK_DEFAULT")}}, open("{out}", "w"))
"""


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What spark-submit was given, once it was."""
    said, binary = tmp_path / "said.json", tmp_path / "bin" / "spark-submit"
    binary.parent.mkdir()
    binary.write_text(RECORDER.format(python=sys.executable, out=said))
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binary.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT", raising=False)
    return said


def deliver(pipeline: Pipeline, chain: str, urls: tuple[str, str], tmp_path: Path, **options: Any) -> None:
    pipeline.claimed("orders/run", 1)
    config = PipelineConfig(
        "orders",
        chain=chain,
        store=urls[0],
        dead_letter_store=urls[1],
        work_dir=str(tmp_path / "work"),
        **{"spark_above": 0, **options},
    )
    DeliverOperator(task_id="crm", pipeline=config, flow="crm").execute(context())


# -- Spark and Java --------------------------------------------------------------------------------------------


def test_without_a_connection_spark_runs_on_this_machine_and_the_log_says_so(  # noqa: PLR0917
    pipeline: Pipeline,
    chain: str,
    urls: tuple[str, str],
    tmp_path: Path,
    submitted: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    deliver(pipeline, chain, urls, tmp_path)

    said = json.loads(submitted.read_text())
    assert said["argv"][said["argv"].index("--master") + 1] == "local[*]"
    assert said["conn"] is None  # nobody is made to believe that there is one
    log = capsys.readouterr().out
    assert "there is no Airflow connection 'spark_default': Spark runs on this machine (local[*])" in log
    assert "yarn" not in log


@pytest.mark.parametrize(
    ("master", "options", "told"),
    [
        ("local[2]", {}, ["spark.authenticate=true"]),
        ("local[2]", {"spark_conf": {"spark.authenticate": "false"}}, ["spark.authenticate=false"]),
        ("local-cluster[1,1,512]", {}, []),
        ("spark://master:7077", {}, []),
    ],
)
def test_only_a_spark_that_is_one_process_is_told_to_let_nobody_in(  # noqa: PLR0917
    pipeline: Pipeline,
    chain: str,
    urls: tuple[str, str],
    tmp_path: Path,
    submitted: Path,
    monkeypatch: pytest.MonkeyPatch,
    master: str,
    options: dict[str, Any],
    told: list[str],
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": master}))
    # Executors elsewhere could not open a SQLite file, which is not what this is about.
    monkeypatch.setattr("homing.airflow.operators.spark.PipelineJobOperator._bring_code", lambda *_: None)
    deliver(pipeline, chain, urls, tmp_path, **options)

    argv = json.loads(submitted.read_text())["argv"]
    assert [part for part in argv if part.startswith("spark.authenticate")] == told


def test_a_connection_that_was_chosen_and_does_not_exist_is_named(
    pipeline: Pipeline, chain: str, urls: tuple[str, str], tmp_path: Path, submitted: Path
) -> None:
    with pytest.raises(AirflowFailException, match="there is no Airflow connection 'big_cluster'"):
        deliver(pipeline, chain, urls, tmp_path, spark_conn_id="big_cluster")
    assert not submitted.exists()


def test_a_store_whose_connection_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigurationError, match="there is no Airflow connection 'inbox': create one of the type homi"):
        find_url("inbox")


@pytest.mark.parametrize("missing", ["store", "dead_letter_store"])
def test_the_first_line_of_each_tasks_error_names_the_connection_that_does_not_exist(
    chain: str, urls: tuple[str, str], missing: str
) -> None:
    stores = {"store": urls[0], "dead_letter_store": urls[1], missing: "inbox"}
    first_pass, replay_dag = delivery_dag("orders", chain=chain, **stores)

    tasks = [*first_pass.tasks, replay_dag.get_task("select"), replay_dag.get_task("settle")]
    for task in tasks:
        with pytest.raises(
            (ConfigurationError, AirflowFailException), match=r"^there is no Airflow connection 'inbox'"
        ):
            task.execute(context(batch="orders/run"))
    assert len(tasks) >= 6


def test_a_missing_java_is_said_before_spark_is_started(  # noqa: PLR0917
    pipeline: Pipeline,
    chain: str,
    urls: tuple[str, str],
    tmp_path: Path,
    submitted: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))

    with pytest.raises(AirflowFailException, match=r"^Spark needs Java, and there is none: .*apt-get install openjdk"):
        deliver(pipeline, chain, urls, tmp_path)
    assert not submitted.exists()


def test_an_old_java_is_said_too_and_one_that_spark_itself_is_told_of_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    (tmp_path / "release").write_text('IMPLEMENTOR="Any"\nJAVA_VERSION="11.0.22"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)

    with pytest.raises(ConfigurationError, match="Spark does not run on Java 11"):
        require_java()
    (tmp_path / "spark-env.sh").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    require_java()
    (tmp_path / "spark-env.sh").unlink()
    (tmp_path / "release").write_text('JAVA_VERSION="21.0.2"\n')
    require_java()


# -- options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "hint"),
    [("max_retires", "did you mean max_retries=?"), ("catch_up", "did you mean catchup=?"), ("xyz", "help(delivery_")],
)
def test_an_option_that_does_not_exist_is_named_with_the_one_that_was_meant(
    chain: str, urls: tuple[str, str], option: str, hint: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        delivery_dag("orders", chain=chain, store=urls[0], dead_letter_store=urls[1], **{option: 3})

    assert f"delivery_dag('orders') has no option {option!r}" in str(refused.value)
    assert hint in str(refused.value)


def test_so_it_is_at_the_other_levels(chain: str, urls: tuple[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"has no option 'max_retires'; did you mean max_retries=\?"):
        listener_dag("mailer", store=urls[0], on_message=print, max_retires=3)
    with DAG("shop", schedule=None), pytest.raises(ConfigurationError, match="did you mean batch_size="):
        DeliveryTaskGroup("orders", chain=chain, store=urls[0], dead_letter_store=urls[1], batchsize=3)


# -- neighbours ------------------------------------------------------------------------------------------------

HEAD = """
from homing.airflow import delivery_dag, listener_dag
one = {{"store": "{0}", "dead_letter_store": "{1}"}}
two = {{"store": "{0}_two", "dead_letter_store": "{1}_two"}}
"""


def read(tmp_path: Path, urls: tuple[str, str], text: str) -> str:
    """What Airflow says of a DAG file with this text."""
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "shop.py").write_text(HEAD.format(*urls) + text)
    return "\n".join(DagBag(str(folder)).import_errors.values())


@pytest.mark.parametrize(
    "text",
    [
        'delivery_dag("orders", chain="{0}", **one)\ndelivery_dag("orders", chain="{0}", **two)',
        'delivery_dag("orders", chain="{0}", **one)\nlistener_dag("orders_replay", store="{1}", on_message=id)',
    ],
    ids=["twice", "as a replay"],
)
def test_two_dags_of_one_name_in_a_file_are_refused(
    tmp_path: Path, urls: tuple[str, str], chain: str, text: str
) -> None:
    assert "this file makes two DAGs with the id 'orders" in read(tmp_path, urls, text.format(chain, urls[0]))


def test_two_chains_on_one_store_are_refused(
    tmp_path: Path, urls: tuple[str, str], chain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other_chain.py").write_text((tmp_path / "parts_chain.py").read_text())
    both = f'delivery_dag("a", chain="{chain}", **one{{0}})\ndelivery_dag("b", chain="other_chain:chain", **{{1}})'

    assert "the pipelines 'a' and 'b' are on one store with different chains" in read(
        tmp_path, urls, both.format("", "one")
    )
    (tmp_path / "dags" / "shop.py").write_text(HEAD.format(*urls) + both.format("", "two"))
    assert DagBag(str(tmp_path / "dags")).import_errors == {}


def test_one_chain_twice_on_one_store_is_warned_of_unless_they_have_partitions_of_their_own(
    tmp_path: Path, urls: tuple[str, str], chain: str, caplog: pytest.LogCaptureFixture
) -> None:
    both = f'delivery_dag("a", chain="{chain}", **one{{0}})\ndelivery_dag("b", chain="{chain}", **one{{1}})'

    assert not read(tmp_path, urls, both.format("", ""))
    assert "the pipelines 'a' and 'b' are on one store: each message goes to one of them only" in caplog.text
    caplog.clear()
    (tmp_path / "dags" / "shop.py").write_text(
        HEAD.format(*(f"{url}&partitions=2" for url in urls)) + both.format(", partitions=[0]", ", partitions=[1]")
    )
    assert DagBag(str(tmp_path / "dags")).import_errors == {}
    assert "are on one store" not in caplog.text


# -- retries and callbacks -------------------------------------------------------------------------------------


def waits(task: Any) -> float:
    """The least that Airflow waits in all for this task's last try, in seconds."""
    delays = (task.retry_delay.total_seconds() * task.retry_exponential_backoff**n for n in range(task.retries))
    longest = task.max_retry_delay.total_seconds()
    return sum(min(delay, longest) for delay in delays)


def test_an_outage_of_five_minutes_is_waited_for_by_all_tasks_but_the_replay(chain: str, urls: tuple[str, str]) -> None:
    stores = {"store": urls[0], "dead_letter_store": urls[1]}
    dags = [*delivery_dag("orders", chain=chain, **stores), listener_dag("mailer", store=urls[0], on_message=print)]

    tasks = {f"{dag.dag_id}.{task.task_id}": task for dag in dags for task in dag.tasks}
    replay = tasks.pop("orders_replay.replay")
    assert min(waits(task) for task in tasks.values()) >= 300
    assert (replay.retries, replay.retry_delay) == (3, timedelta(seconds=1))
    process, deliver = tasks["orders.process"], tasks["orders.deliver.crm"]
    assert process._lease() == deliver._lease() == 600 + 160  # nobody takes the batch away meanwhile


def test_what_default_args_say_of_retries_goes_for_the_spark_jobs(chain: str, urls: tuple[str, str]) -> None:
    dag, _ = delivery_dag("orders", chain=chain, store=urls[0], dead_letter_store=urls[1], default_args={"retries": 0})

    assert {task.task_id: task.retries for task in dag.tasks} == {
        "listen": 5, "process": 0, "deliver.lake": 0, "deliver.crm": 0, "settle": 5,
    }  # fmt: skip
    assert dag.get_task("process")._lease() == 600


def tell(context: Any) -> None: ...


def page(context: Any) -> None: ...


@pytest.mark.parametrize(("said", "called"), [(None, []), (tell, [tell]), ([tell, page], [tell, page])])
def test_callbacks_of_the_author_are_called_after_ours(
    chain: str, urls: tuple[str, str], said: Any, called: list[Any]
) -> None:
    stores = {"chain": chain, "store": urls[0], "dead_letter_store": urls[1]}
    default_args = {"on_failure_callback": said} if said else {}
    dags = [delivery_dag("orders", **stores, default_args=default_args, on_failure_callback=page)[1]]
    with DAG("shop", schedule=None, default_args=default_args, on_failure_callback=page):
        dags.append(DeliveryTaskGroup("orders", **stores).replay_dag)

    for dag in dags:
        assert list(dag.get_task("replay").on_failure_callback) == [dead_letter_callback, *called]
        assert list(dag.get_task("select").on_failure_callback) == called
        assert dag.on_failure_callback == page


def test_a_callback_that_raises_does_not_hinder_the_others(chain: str, urls: tuple[str, str]) -> None:
    called: list[str] = []

    def broken(context: Any) -> None:
        raise RuntimeError("the pager is away")

    stores = {"chain": chain, "store": urls[0], "dead_letter_store": urls[1]}
    callbacks = [broken, lambda context: called.append("second")]
    _, dag = delivery_dag("orders", **stores, default_args={"on_failure_callback": callbacks})
    # Ours raises too: it is given nothing of what it needs.
    task_runner._run_task_state_change_callbacks(
        dag.get_task("replay"), "on_failure_callback", {}, task_runner.structlog.get_logger()
    )

    assert called == ["second"]


# -- test runs -------------------------------------------------------------------------------------------------


def test_a_test_run_does_not_wait_for_messages(
    chain: str, urls: tuple[str, str], stores: PipelineStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PipelineConfig("orders", chain=chain, store=urls[0], dead_letter_store=urls[1])
    tasks = [
        StoreSensor(task_id="listen", pipeline=config),
        listener_dag("mailer", store=urls[0], on_message=print).get_task("listen"),
    ]
    for task in tasks:
        with pytest.raises(TaskDeferred):
            task.execute(context())

    comms = InProcessSupervisorComms(supervisor=SimpleNamespace())  # type: ignore[arg-type]
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", comms, raising=False)
    for task in tasks:
        with pytest.raises(AirflowSkipException, match="nothing is due in store orders, and a test run does not wait"):
            task.execute(context())
