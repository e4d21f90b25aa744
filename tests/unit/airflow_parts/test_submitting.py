"""What reaches spark-submit for each kind of cluster: the code, the stores, and no secret where others can read it."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks import spark_submit
from airflow.sdk.exceptions import AirflowException, AirflowFailException

import homing
from homing.airflow import PipelineConfig
from homing.airflow.operators.spark import DeliverOperator
from homing.delivery import Batch, open_pipeline_stores
from homing.spark.submit.secrets import SECRETS_FILE, read_secrets_file
from tests.servers import PostgreSQL
from tests.unit.airflow_parts.conftest import context

pytestmark = pytest.mark.services

# Stands where spark-submit would, and writes down what it was given. The clusters themselves are not to be had here.
RECORDER = """#!{python}
import json, os, sys
sent = sys.argv[sys.argv.index("--files") + 1].split(",") if "--files" in sys.argv else []
sent = [part.partition("#")[0] for part in sent]
said = {{"argv": sys.argv[1:], "env": dict(os.environ), "files": {{name: open(name).read() for name in sent}},
        "modes": [oct(os.stat(name).st_mode & 0o777) for name in sent]}}
json.dump(said, open("{out}", "w"))
print("Exit code: 0")
"""

Submit = Callable[..., dict[str, Any]]


@pytest.fixture
def secrets(postgresql: PostgreSQL) -> tuple[str, str]:
    database = postgresql.empty_database()
    return f"{database}?store=orders", f"{database}?store=orders_dead"


@pytest.fixture
def submit(
    postgresql: PostgreSQL, secrets: tuple[str, str], chain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Submit:
    monkeypatch.setenv("ORDERS", secrets[0])
    monkeypatch.setenv("ORDERS_DEAD", secrets[1])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    binary = tmp_path / "bin" / "spark-submit"
    binary.parent.mkdir()
    binary.write_text(RECORDER.format(python=sys.executable, out=tmp_path / "said.json"))
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binary.parent}{os.pathsep}{os.environ['PATH']}")
    # The hook asks only whether there is such a client.
    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)

    # A client of Spark Connect, and who works on a small batch, is started without spark-submit.
    monkeypatch.setattr(sys, "executable", str(binary))

    def submit(
        master: str, mode: str | None = None, work_dir: str = "hdfs:///work", spark_above: int = 200, **conf: str
    ) -> dict[str, Any]:
        stores = {"store": "env:ORDERS", "dead_letter_store": "env:ORDERS_DEAD"}
        spec = PipelineConfig("orders", chain=chain, work_dir=work_dir, spark_above=spark_above, **stores)
        connection = {"conn_type": "spark", "host": master, "extra": {"deploy-mode": mode} if mode else {}}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
        with open_pipeline_stores(*secrets) as opened:
            opened.store.store("order")
            Batch(opened, "orders/run", spec.flows).claim(1)
        settings = {name.replace("__", "."): value for name, value in conf.items()}
        operator = DeliverOperator(task_id="crm", pipeline=spec, flow="crm", conf=settings)
        operator.execute(context())
        said = dict(json.loads((tmp_path / "said.json").read_text()))
        said["shown"] = {name: str(getattr(operator, name)) for name in operator.template_fields}
        return said

    return submit


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host:6443"])
def test_a_driver_on_this_machine_gets_the_stores_from_its_environment_and_the_code_as_a_zip(
    submit: Submit, secrets: tuple[str, str], master: str
) -> None:
    said = submit(master)

    assert option(said["argv"], "--master") == master
    assert (said["env"]["HOMING_STORE"], said["env"]["HOMING_DEAD_LETTER_STORE"]) == secrets
    assert said["files"] == {}
    with zipfile.ZipFile(option(said["argv"], "--py-files")) as code:
        assert {"homing/spark/jobs.py", "parts_chain.py"} <= set(code.namelist())
    assert not any(secret in str((said["argv"], said["shown"])) for secret in secrets)


def test_a_driver_in_yarn_gets_the_stores_as_a_file_that_is_its_owners_alone(
    submit: Submit, secrets: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = submit("yarn", "cluster")

    assert option(said["argv"], "--deploy-mode") == "cluster"
    ((path, text),) = said["files"].items()
    assert said["modes"] == ["0o600"]
    assert option(said["argv"], "--files") == f"{path}#{SECRETS_FILE}"
    assert not Path(path).exists()  # YARN has its own by now
    assert not any(secret in str((said["argv"], said["shown"])) for secret in secrets)

    (tmp_path / SECRETS_FILE).write_text(text)  # as YARN lays it out for the driver
    for name in ("HOMING_STORE", "HOMING_DEAD_LETTER_STORE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    read_secrets_file(tmp_path)
    assert (os.environ["HOMING_STORE"], os.environ["HOMING_DEAD_LETTER_STORE"]) == secrets


def test_a_driver_in_kubernetes_gets_the_stores_from_a_secret_there(submit: Submit, secrets: tuple[str, str]) -> None:
    prefix = "spark__kubernetes__driver__secretKeyRef__"
    refs = {f"{prefix}HOMING_STORE": "homing:store", f"{prefix}HOMING_DEAD_LETTER_STORE": "homing:dead"}

    with pytest.raises(AirflowFailException, match=r"secretKeyRef\.HOMING_DEAD_LETTER_STORE to <secret>:<key>"):
        submit("k8s://https://host:6443", "cluster", **{f"{prefix}HOMING_STORE": "homing:store"})
    said = submit("k8s://https://host:6443", "cluster", **refs)

    assert "spark.kubernetes.driver.secretKeyRef.HOMING_STORE=homing:store" in said["argv"]
    assert not any(secret in str((said["argv"], said["shown"])) for secret in secrets)


def test_a_client_of_spark_connect_gets_everything_from_its_environment(
    submit: Submit, secrets: tuple[str, str], tmp_path: Path
) -> None:
    said = submit("sc://host:15002/;token=abc", work_dir=str(tmp_path / "work"))

    assert Path(said["argv"][0]) == Path(homing.__file__).parent / "spark/applications/homing_deliver.py"
    assert said["env"]["SPARK_REMOTE"] == "sc://host:15002/;token=abc"
    assert (said["env"]["HOMING_STORE"], said["env"]["HOMING_DEAD_LETTER_STORE"]) == secrets
    with zipfile.ZipFile(said["env"]["HOMING_PY_FILES"]) as code:
        assert {"homing/spark/jobs.py", "parts_chain.py"} <= set(code.namelist())
    assert not any(secret in str((said["argv"], said["shown"])) for secret in (*secrets, "abc"))


@pytest.mark.parametrize(
    ("master", "mode", "reason"),
    [
        ("spark://host:7077", "cluster", "no Python applications on spark://host:7077 in cluster mode"),
        ("sc://host:15002/;token=abc", "cluster", "no Python applications on sc://host:15002 in cluster mode"),
        ("sc://host:15002/;token=abc", None, "no Hadoop to reach hdfs:///work"),
    ],
)
def test_where_no_driver_can_run_is_refused_at_once(submit: Submit, master: str, mode: str | None, reason: str) -> None:
    with pytest.raises(AirflowFailException, match=reason) as refused:
        submit(master, mode)
    assert "abc" not in str(refused.value)


@pytest.mark.parametrize(
    ("master", "work_dir", "spark_above", "alone"),
    [
        ("local[*]", "work", 1, True),
        ("local[*]", "work", 0, False),
        ("local[*]", "hdfs:///work", 1, False),
        ("spark://host:7077", "work", 1, False),
    ],
)
def test_a_small_batch_needs_no_spark_where_spark_would_be_on_this_machine(  # noqa: PLR0917
    submit: Submit, secrets: tuple[str, str], tmp_path: Path, master: str, work_dir: str, spark_above: int, alone: bool
) -> None:
    place = work_dir if ":" in work_dir else str(tmp_path / work_dir)

    said = submit(master, work_dir=place, spark_above=spark_above)

    assert ("--without-spark" in said["argv"]) is alone
    assert ("--master" in said["argv"]) is not alone
    assert (said["env"]["HOMING_STORE"], said["env"]["HOMING_DEAD_LETTER_STORE"]) == secrets
    assert not any(secret in str((said["argv"], said["shown"])) for secret in secrets)


def test_spark_goes_on_where_the_process_that_was_alone_has_died(
    submit: Submit, secrets: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(operator: DeliverOperator, *more: str) -> None:
        with open_pipeline_stores(*secrets) as stores:
            stores.ledger.open_step("orders/run", "deliver.crm", 600)
        raise AirflowException("deliver.py ended with -9")

    monkeypatch.setattr(DeliverOperator, "_run_client", die)

    said = submit("local[*]", work_dir=str(tmp_path / "work"))

    assert option(said["argv"], "--master") == "local[*]"


def test_what_fails_in_an_orderly_way_alone_is_left_to_the_next_try(
    submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(operator: DeliverOperator, *more: str) -> None:
        raise AirflowException("deliver.py ended with 1")

    monkeypatch.setattr(DeliverOperator, "_run_client", fail)

    with pytest.raises(AirflowException, match="ended with 1"):
        submit("local[*]", work_dir=str(tmp_path / "work"))
    assert not (tmp_path / "said.json").exists()
