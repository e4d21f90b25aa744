"""Connections that handlers declare: looked up by the task at each try, and handed to the job and to nobody else."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException

from homing.airflow import PipelineConfig, ReplayOperator, SettleOperator, dead_letter_callback, listener_dag
from homing.airflow.hooks.handler_connections import find_connections, find_connections_on_server
from homing.airflow.operators.settle import SettleReplayOperator
from homing.airflow.operators.spark import DeliverOperator, ProcessOperator
from homing.delivery import PipelineStores, open_pipeline_stores
from homing.errors import MissingConnectionError
from homing.spark.submit.job import Job
from homing.spark.submit.secrets import SECRETS_FILE
from tests.unit.airflow_parts.conftest import FakeTask, context
from tests.unit.airflow_parts.test_submitting import Submit, option, secrets, submit
from tests.unit.delivery.conftest import Pipeline, waiting

__all__ = ["secrets", "submit"]  # fixtures

MARK = "Zk-the-password-of-the-crm"
VARIABLE = "AIRFLOW_CONN_CRM_API"

CHAIN = """
from airflow.sdk import BaseHook
from homing import HandlerChain, MessageContext, destination, message_filter

seen = []


@message_filter(connections=["rules"])
def wanted(ctx: MessageContext) -> bool:
    return ctx.connection("rules").host == "rules"


@destination(connections=["lake_api"])
def lake(ctx: MessageContext): ...


@destination(connections=["crm_api"])
def crm(ctx: MessageContext):
    api = ctx.connection("crm_api")
    assert BaseHook.get_connection("crm_api").password == api.password
    seen.append(api.password)
    if api.host == "down":
        raise ConnectionError(f"no login with {api.password}")


chain = HandlerChain("orders", source_flow=wanted, destinations_flow=[lake, crm])
source = HandlerChain("shop", destinations_flow=crm)
"""


class Known(dict[str, Connection]):
    """What Airflow knows of connections. `asked` are those it was asked for, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        for name in ("rules", "lake_api", "crm_api"):
            self.has(name)

    def has(self, conn_id: str, host: str = "", password: str = MARK) -> None:
        extra = json.dumps({"token": f"{password}-token"})
        host = host or conn_id
        self[conn_id] = Connection(conn_id=conn_id, conn_type="http", host=host, password=password, extra=extra)

    def find(self, conn_id: str) -> Connection:
        self.asked.append(conn_id)
        if conn_id not in self:
            raise AirflowNotFoundException(f"The conn_id `{conn_id}` isn't defined")
        return self[conn_id]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    """Not in the environment, where every process would find them anyway."""
    known, real = Known(), BaseHook.get_connection

    def find(conn_id: str) -> Connection:
        in_environment = f"AIRFLOW_CONN_{conn_id.upper()}" in os.environ
        return real(conn_id) if in_environment else known.find(conn_id)

    monkeypatch.setattr(BaseHook, "get_connection", staticmethod(find))
    return known


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "parts_chain.py").write_text(CHAIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "parts_chain:chain"
    sys.modules.pop("parts_chain", None)


def seen() -> list[str]:
    return list(sys.modules["parts_chain"].seen)


@pytest.mark.services
@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "sc://host:15002", "local[*]", "small"])
def test_a_job_gets_the_connections_of_its_handlers_from_its_environment_and_no_other_ones(
    submit: Submit, known: Known, tmp_path: Path, master: str
) -> None:
    work = {} if ":" in master or master == "yarn" else {"spark_above": 1 if master == "small" else 0}

    said = submit("local[*]" if master == "small" else master, work_dir=str(tmp_path / "work"), **work)

    handed = json.loads(said["env"][VARIABLE])
    assert handed == {"conn_type": "http", "host": "crm_api", "password": MARK, "extra": f'{{"token": "{MARK}-token"}}'}
    # The source flow's too: where nothing is left of it, it runs again.
    assert {name for name in said["env"] if name.startswith("AIRFLOW_CONN_")} >= {VARIABLE, "AIRFLOW_CONN_RULES"}
    assert "AIRFLOW_CONN_LAKE_API" not in said["env"]
    assert MARK not in str((said["argv"], said["shown"], said["files"]))
    assert not any(MARK in text for text in os.environ.values())


@pytest.mark.services
def test_a_driver_in_yarn_gets_them_in_the_file_that_is_its_owners_alone(submit: Submit, known: Known) -> None:
    said = submit("yarn", "cluster")

    ((path, text),) = said["files"].items()
    assert option(said["argv"], "--files") == f"{path}#{SECRETS_FILE}"
    assert json.loads(json.loads(text)[VARIABLE])["password"] == MARK
    assert said["modes"] == ["0o600"]
    assert MARK not in str((said["argv"], said["shown"]))


@pytest.mark.services
def test_a_driver_in_kubernetes_is_to_get_them_from_a_secret_there(submit: Submit, known: Known) -> None:
    prefix = "spark__kubernetes__driver__secretKeyRef__"
    refs = {f"{prefix}{name}": "homing:x" for name in ("HOMING_STORE", "HOMING_DEAD_LETTER_STORE")}

    with pytest.raises(AirflowFailException, match=r"secretKeyRef\.AIRFLOW_CONN_CRM_API to <secret>:<key>"):
        submit("k8s://https://host:6443", "cluster", **refs)


def test_a_hook_finds_them_in_a_process_that_airflow_keeps_from_its_database(
    spec: PipelineConfig, stores: PipelineStores, pipeline: Pipeline, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.claimed("orders/run", 1)
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "airflow-db-not-allowed:///")  # as it does

    for operator in (
        ProcessOperator(task_id="process", pipeline=spec),
        *(DeliverOperator(task_id=flow, pipeline=spec, flow=flow) for flow in ("lake", "crm")),
    ):
        operator.execute(context())
    with spec.open_batch("orders/run") as batch:
        assert batch.settle().acknowledged == 1
    assert os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == "airflow-db-not-allowed:///"


def test_they_are_looked_up_anew_at_every_try(
    spec: PipelineConfig, pipeline: Pipeline, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.claimed("orders/run", 1)
    handed: list[str] = []
    monkeypatch.setattr(DeliverOperator, "_run_client", lambda *_: handed.append(os.environ[VARIABLE]))
    deliver = DeliverOperator(task_id="crm", pipeline=spec, flow="crm")

    for password in ("first-one", "second-one"):
        known.has("crm_api", password=password)
        deliver.execute(context())

    assert [json.loads(text)["password"] for text in handed] == ["first-one", "second-one"]


def test_a_missing_one_fails_the_task_that_needs_it_says_who_asked_and_fails_no_message(
    spec: PipelineConfig, pipeline: Pipeline, stores: PipelineStores, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.claimed("orders/run", 1, 2)
    del known["crm_api"]
    ran: list[str] = []
    monkeypatch.setattr(DeliverOperator, "_run_client", lambda self, *_: ran.append(self.flow))
    monkeypatch.setattr(ProcessOperator, "_run_client", lambda self, *_: ran.append("process"))

    with pytest.raises(MissingConnectionError, match=r"'crm_api', which the destination 'crm' asks for: create it in"):
        DeliverOperator(task_id="crm", pipeline=spec, flow="crm").execute(context())
    ProcessOperator(task_id="process", pipeline=spec).execute(context())
    DeliverOperator(task_id="lake", pipeline=spec, flow="lake").execute(context())
    SettleOperator(task_id="settle", pipeline=spec).execute(context())

    assert ran == ["process", "lake"]
    assert stores.store.count()["available"] == 2
    assert stores.failures.count()["available"] == stores.dead_letters.count()["available"] == 0


@pytest.mark.parametrize("rate", [None, 1000])
def test_one_that_is_missing_at_a_later_try_of_a_replay_dead_letters_nothing(  # noqa: PLR0917
    spec: PipelineConfig, stores: PipelineStores, pipeline: Pipeline, failed: list[str], known: Known, rate: int | None
) -> None:
    pipeline.batch("orders/replay").reclaim(failed)
    for message_id in failed:  # in the first try
        pipeline.failed("orders/replay", message_id, "crm", batch_id="first")
    del known["crm_api"]
    names = [head.ref.name for head in pipeline.batch("orders/replay").messages()]
    task = FakeTask("replay")
    task.get_task_states = lambda dag_id, run_ids, task_ids: {"replay": {"task": "running"}}  # type: ignore[attr-defined]
    replay = ReplayOperator(task_id="replay", pipeline=spec, ids=names, rate=rate)

    with pytest.raises(AirflowFailException, match="which the destination 'crm' asks for") as missing:
        replay.execute(task.context)
    dead_letter_callback({**task.context, "task": replay, "exception": missing.value})
    SettleReplayOperator(task_id="settle", pipeline=spec).execute(task.context)

    assert waiting(stores) == set(failed)
    assert stores.dead_letters.count()["available"] == 0


def test_a_replay_in_the_task_itself_has_them_while_it_lasts(
    spec: PipelineConfig, stores: PipelineStores, pipeline: Pipeline, failed: list[str], known: Known
) -> None:
    names = [ref.name for ref in pipeline.batch("first").unfinished("first")]

    ReplayOperator(task_id="replay", pipeline=spec, ids=names, rate=1000).execute(context("replay"))

    assert seen() == [MARK] * 3
    assert waiting(stores) == set()
    assert VARIABLE not in os.environ


def test_a_replay_in_the_task_itself_prints_none_of_them(  # noqa: PLR0917
    spec: PipelineConfig,
    pipeline: Pipeline,
    failed: list[str],
    known: Known,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def replay(*_: Any, **__: Any) -> Counter[str]:
        print("in as", MARK)  # noqa: T201
        sys.stderr.write(f"again as {MARK}\n")
        return Counter()

    monkeypatch.setattr("homing.airflow.operators.spark.replay_in_process", replay)
    names = [ref.name for ref in pipeline.batch("first").unfinished("first")]

    with pytest.raises(AirflowException, match="3 messages still fail"):
        ReplayOperator(task_id="replay", pipeline=spec, ids=names, rate=1000).execute(context("replay"))

    printed = capsys.readouterr()
    assert "in as ***\n" in printed.out
    assert "again as ***\n" in printed.err
    assert MARK not in printed.out + printed.err


def test_a_chain_behind_a_listener_of_a_dag_has_them_too(chain: str, urls: tuple[str, str], known: Known) -> None:
    from homing.pipeline import load_chain

    with open_pipeline_stores(*urls) as stores:
        stores.store.store({})
    dag = listener_dag("shop", store=urls[0], on_message=load_chain("parts_chain:source"), polling_interval=0.05)
    listen = dag.get_task("listen")

    del known["crm_api"]
    with pytest.raises(MissingConnectionError, match="destination 'crm'"):
        listen.execute(context())
    known.has("crm_api")
    assert listen.execute(context())["processed"] == 1
    assert seen() == [MARK]
    assert VARIABLE not in os.environ


def test_the_command_line_of_airflow_asks_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"crm_api": "destination 'crm'"}
    with pytest.raises(MissingConnectionError, match="destination 'crm'"):
        find_connections_on_server(asked)

    monkeypatch.setenv(VARIABLE, f"http://me:{MARK}@crm")
    assert json.loads(find_connections_on_server(asked)["crm_api"])["password"] == MARK


def test_what_cannot_be_read_is_told_before_anything_runs(known: Known) -> None:
    known["crm_api"].extra = '["no", "object"]'

    with pytest.raises(MissingConnectionError, match=r"'crm_api' cannot be read.*its extra is no JSON object"):
        find_connections({"crm_api": "destination 'crm'"})


def test_what_a_job_prints_is_logged_without_them(
    spec: PipelineConfig, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(DeliverOperator, "log", SimpleNamespace(info=lambda text, line: logged.append(line)))
    monkeypatch.setattr(Job, "client", lambda *_: nullcontext(SimpleNamespace(stdout=[f"in as {MARK}\n"])))
    operator = DeliverOperator(task_id="crm", pipeline=spec, flow="crm")
    find_connections({"crm_api": "destination 'crm'"})

    operator._run_client(Job("deliver.py", spec.chain, "", spec.urls()))

    assert list(operator._watched([f"in as {MARK} by {MARK}-token"])) == ["in as *** by ***"]
    assert logged == ["in as ***"]


def test_the_log_of_a_task_does_not_show_them(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    masked: list[Any] = []
    monkeypatch.setattr("homing.airflow.hooks.handler_connections.mask_secret", masked.append)
    known.has("crm_api", password="a/b?c-secret")  # noqa: S106

    (text,) = find_connections({"crm_api": "destination 'crm'"}).values()

    assert masked == [text, "a/b?c-secret", "a%2Fb%3Fc-secret", {"token": "a/b?c-secret-token"}]
