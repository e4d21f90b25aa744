"""What `homing new` writes: its own tests pass, with those of docs/testing.md beside them, and its DAG delivers on a
real Airflow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from demo.airflow_api import wait_until
from demo.orders import expect, make_orders
from demo.pipeline import OrdersPipeline
from homing import open_store
from homing.delivery import AuditReport, open_pipeline_stores, run_audit
from tests.airflow.conftest import PROJECT, connections_of

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
BLOCK = re.compile(r"^```python\n# (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TEST = re.compile(r"^def (test_\w+)", re.MULTILINE)


def run_tests(project: Path) -> dict[str, str]:
    """How each test of this project ended, run as its author runs them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    report = project / "report.xml"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"--junitxml={report}"],
        cwd=project, env=environment, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert report.exists(), done.stdout + done.stderr
    cases = ET.parse(report).iter("testcase")  # noqa: S314 - pytest has just written it
    return {str(case.get("name")): _ended(case) for case in cases}


def _ended(case: ET.Element) -> str:
    return next(
        (f"{child.tag}: {child.text}" for child in case if child.tag in ("failure", "error", "skipped")), "passed"
    )


def test_its_own_tests_and_those_of_the_page_about_testing_pass(tmp_path: Path) -> None:
    copy = tmp_path / "shop"
    subprocess.run(
        [str(Path(sys.executable).parent / "homing"), "new", "shop"],
        cwd=tmp_path, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    files = dict(BLOCK.findall(PAGE))
    for name, text in files.items():
        (copy / name).write_text(text)
    written = {name for path in (copy / "tests").glob("test_*.py") for name in TEST.findall(path.read_text())}

    ended = run_tests(copy)

    assert len(files) == PAGE.count("```python\n") == 5
    assert len(written) == 11
    assert ended == dict.fromkeys(written, "passed")


def test_its_dag_delivers_on_the_stack_of_the_demo(pipeline: OrdersPipeline, project: Path) -> None:
    variables = connections_of(project)
    urls = variables["HOMING_STORE"], variables["HOMING_DEAD_LETTER_STORE"]
    orders = [order for order in make_orders(40) if order["quantity"]]
    wanted = expect(orders)
    with open_store(urls[0]) as store:
        store.store_many(orders)

    def books() -> AuditReport:
        with open_pipeline_stores(*urls) as stores:
            return run_audit(stores, ["lake"])

    for dag in (PROJECT, f"{PROJECT}_replay"):
        pipeline.airflow.wait_for_dag(dag)
        pipeline.airflow.unpause(dag)
    try:
        settled = wait_until(
            lambda: None if (found := books()).total.waiting else found,
            timeout=600, what=lambda: f"the new project's orders to be delivered:\n{books()}", every=2,
        )  # fmt: skip
    finally:
        for dag in (PROJECT, f"{PROJECT}_replay"):
            pipeline.airflow.unpause(dag, paused=True)

    assert (settled.total.delivered, settled.total.dropped) == (len(wanted.lake), wanted.dropped)
    assert settled.balanced
    lines = [line for file in (project / "var" / "lake").iterdir() for line in file.read_text().splitlines()]
    assert sorted(json.loads(line)["number"] for line in lines) == sorted(wanted.lake)
