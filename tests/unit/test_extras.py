"""A part whose packages are not installed says which extra brings them; nothing else of Homing needs them."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
{code}
"""
OPTIONAL = ("airflow", "azure", "pandas", "pika", "psycopg", "pyarrow", "pymysql", "pyspark")


def run_without(packages: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    program = WITHOUT.format(packages=packages, code=code)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("from homing.airflow import delivery_dag", "airflow"),
        ("from homing.spark import register", "spark"),
        ("import homing; homing.open_store('amqp://localhost/?store=orders')", "rabbitmq"),
        ("import homing; homing.open_store('servicebus://key:secret@host/?store=orders')", "azure"),
    ],
)
def test_a_missing_package_is_an_error_that_names_the_extra(code: str, extra: str) -> None:
    ended = run_without(OPTIONAL, code)

    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("homing.errors.MissingExtraError: "), ended.stderr
    assert last.endswith(f'pip install "homing[{extra}]"')


def test_a_fault_in_what_is_installed_is_not_taken_for_a_missing_extra() -> None:
    ended = run_without(("sqlalchemy",), "from homing.airflow import delivery_dag")

    assert "MissingExtraError" not in ended.stderr
    assert "sqlalchemy" in ended.stderr


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
