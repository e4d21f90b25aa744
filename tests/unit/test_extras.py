"""A part whose packages are not installed says which extra brings them; nothing else of Homing needs them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from homing.errors import ConfigurationError
from homing.spark import installation

PYPROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text()
#: What the extras bring that Homing itself imports.
OPTIONAL = ("airflow", "azure", "hypothesis", "pandas", "pika", "psycopg", "pyarrow", "pymysql", "pyspark", "pytest")
#: What needs a package, the package, and the extra that brings it.
NEEDS = [
    ("from homing.airflow import delivery_dag", "airflow", "airflow"),
    ("from homing.airflow import StoreSensor", "airflow", "airflow"),
    ("from homing.airflow import StoreHook", "airflow", "airflow"),
    ("from homing.spark import register", "pyspark", "spark"),
    ("from homing.spark import parquet_lake", "pyspark", "spark"),
    ("from homing.spark import register", "pyarrow", "spark"),
    ("import pyspark_homing", "pyarrow", "spark"),
    ("open_store('postgresql://localhost/db?store=orders')", "psycopg", "postgres"),
    ("open_store('mysql://localhost/db?store=orders')", "pymysql", "mysql"),
    ("open_store('mariadb://localhost/db?store=orders')", "pymysql", "mysql"),
    ("open_broker('postgresql://localhost/db')", "psycopg", "postgres"),
    ("open_store('amqp://localhost/?store=orders')", "pika", "rabbitmq"),
    ("open_store('servicebus://key:secret@host/?store=orders')", "azure", "azure"),
    ("open_broker('servicebus://key:secret@host/')", "azure", "azure"),
    (
        "import os; from homing.testing import run_dag; os.environ['AIRFLOW_HOME'] = 'homing-testing-'; run_dag(None)",
        "airflow",
        "airflow",
    ),
    ("import homing.testing.dataframes", "pyspark", "spark"),
    ("import homing.testing.dataframes", "pyarrow", "spark"),
    ("import homing.testing.conformance", "pytest", "testing"),
    ("import homing.testing.conformance", "hypothesis", "testing"),
]

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys({packages!r}))  # as if they were not installed
from homing import open_store
from homing.bus.connection import open_broker
{code}
"""


def run_without(packages: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    program = WITHOUT.format(packages=packages, code=code)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("code", "package", "extra"), NEEDS)
def test_a_missing_package_is_an_error_that_names_the_extra(code: str, package: str, extra: str) -> None:
    ended = run_without((package,), code)

    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("homing.errors.MissingExtraError: "), ended.stderr
    assert package in last
    assert last.endswith(f'pip install "homing[{extra}]"')


def test_every_extra_that_a_part_needs_is_tried() -> None:
    table = PYPROJECT.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = \[", table, re.MULTILINE))

    assert {extra for _, _, extra in NEEDS} == extras - {"all", "dev"}


JOB = """
import os
from pathlib import Path
Path("job_chain.py").write_text("from homing import HandlerChain, destination\\nchain = HandlerChain('orders', "
    "destinations_flow=[destination(name='crm')(lambda content: None)])")
from homing.delivery import Batch, open_pipeline_stores
from homing.spark.jobs import process_main
os.environ["HOMING_STORE"] = "sqlite:///job.db?store=orders"
os.environ["HOMING_DEAD_LETTER_STORE"] = "sqlite:///job.db?store=dead"
sys.path.insert(0, ".")
with open_pipeline_stores("env:HOMING_STORE", "env:HOMING_DEAD_LETTER_STORE") as stores:
    stores.store.store(1)
    Batch(stores, "run", ["crm"], chain="orders").claim(1)
sys.exit(process_main(["--chain", "job_chain:chain", "--run-id", "run", "--work-dir", "work", *{arguments!r}]))
"""


@pytest.mark.parametrize(("package", "arguments"), [("pyspark", []), ("pyarrow", []), ("pyarrow", ["--without-spark"])])
def test_a_job_without_its_packages_is_set_up_wrongly_and_names_the_extra(
    package: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run_without((package,), JOB.format(arguments=arguments))

    assert ended.returncode == 2, ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert package in last
    assert last.endswith('pip install "homing[spark]"')


def test_a_version_that_lacks_what_is_needed_is_an_error_that_names_the_extra() -> None:
    older = "import airflow.sdk\nairflow.sdk = sys.modules['airflow.sdk']\n"
    hide = "class Older(type(airflow.sdk)):\n    def __getattr__(self, name): raise AttributeError(name)\n"
    code = f"{older}{hide}sys.modules['airflow.sdk'] = Older('airflow.sdk')\nfrom homing.airflow import delivery_dag"
    ended = run_without((), code)

    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("homing.errors.MissingExtraError: "), ended.stderr
    assert last.endswith('does not work with this version of airflow: pip install "homing[airflow]"')


def test_a_fault_in_what_is_installed_is_not_taken_for_a_missing_extra() -> None:
    ended = run_without((), "sys.modules['jinja2'] = None\nfrom homing.airflow import delivery_dag")

    assert "MissingExtraError" not in ended.stderr
    assert "jinja2" in ended.stderr


@pytest.mark.parametrize(("client", "mixed"), [("4.2.0", False), ("4.1.3", True), (None, False)])
def test_spark_in_two_versions_over_each_other_is_refused(
    client: str | None, mixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        found = {"pyspark": "4.2.0", "pyspark-client": client}[name]
        if found is None:
            raise installation.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(installation, "version", version)
    if not mixed:
        installation.refuse_mixed_versions()
        return
    with pytest.raises(ConfigurationError, match=r"pyspark 4\.2\.0 and pyspark-client 4\.1\.3 .* pip install"):
        installation.refuse_mixed_versions()


def test_a_chain_a_store_and_the_command_line_need_no_optional_package(tmp_path: object) -> None:
    code = f"""
from homing import HandlerChain, StoreListener, destination, open_store
from homing.cli.main import main

@destination
def crm(ctx):
    return ctx.get_content()["number"]

url = "sqlite:///{tmp_path}/inbox.db?store=orders"
with open_store(url) as store:
    store.store({{"number": 1}})
    message = store.retrieve()
    print(HandlerChain("orders", destinations_flow=[crm]).execute(message.content).destination_results)
    store.acknowledge(message)
sys.exit(main(["stores", url]))
"""
    ended = run_without(OPTIONAL, code)

    assert ended.returncode == 0, ended.stderr
    assert "{'crm': 1}" in ended.stdout
    assert "orders" in ended.stdout
