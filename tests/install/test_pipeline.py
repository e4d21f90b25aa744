"""docs/installing.md, followed to the letter on a machine that has nothing of ours: from an empty environment to
messages that a real scheduler delivered."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demo.airflow_api import wait_until
from demo.ports import free_port
from demo.stack import MARKER, marked_processes
from tests.install.environment import REPOSITORY, megabytes, plain_environment, run

pytestmark = [pytest.mark.install, pytest.mark.airflow, pytest.mark.timeout(2400)]

PAGE = (REPOSITORY / "docs" / "installing.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
#: A second pipeline, which the page has not: always on Spark, with a message that fails. Its deliveries tell what ran
#: them.
SPARK_CHAIN = """
import os, sys
from pathlib import Path
import homing
from homing import HandlerChain, destination

@destination
def lake(number: int) -> str:
    if number == 13:
        raise ValueError("thirteen")
    seen = [str(number), homing.__file__, *sys.path]
    Path(__file__).with_name(f"lake.{number}").write_text("\\n".join(seen))
    return "written"

chain = HandlerChain("lake", destinations_flow=[lake])
"""
SPARK_DAG = """
from homing.airflow import delivery_dag

delivery_dag(
    "lake", chain="lake_chain:chain", store="env:LAKE_STORE", dead_letter_store="env:LAKE_DEAD_LETTER_STORE",
    max_retries=0, retry_interval=1, spark_above=0,
)
"""


def commands(section: str) -> list[str]:
    """The lines of a section that a user types."""
    blocks = re.findall(r"^```console\n(.*?)^```", SECTIONS[section], re.DOTALL | re.MULTILINE)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def files(section: str) -> dict[str, str]:
    """The files that a section has its reader write: each begins with its name."""
    blocks = re.findall(r"^```python\n# (\S+)\n(.*?)^```", SECTIONS[section], re.DOTALL | re.MULTILINE)
    return dict(blocks)


@dataclass
class User:
    """Somebody with a folder, who has got the wheel and the constraints."""

    home: Path
    env: dict[str, str]

    def type(self, lines: list[str], timeout: float = 1200) -> None:
        """Runs these lines in one shell, and keeps the environment that they leave behind."""
        kept = self.home / "environment"
        script = "\n".join(["set -e", *lines, f"env -0 > {kept}"])
        (self.home / "typed.sh").write_text(script)
        run(["bash", "typed.sh"], cwd=self.home, env=self.env, timeout=timeout)
        self.env = dict(line.split("=", 1) for line in kept.read_text().split("\0") if "=" in line)

    def books(self, prefix: str, chain: str) -> dict[str, Any]:
        """The sums over one pipeline's store, by the command line."""
        stores = ("--store", f"env:{prefix}_STORE", "--dead-letter-store", f"env:{prefix}_DEAD_LETTER_STORE")
        done = subprocess.run(
            ["homing", "audit", "--chain", chain, *stores, "-o", "json"],
            cwd=self.home, env=self.env, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.stdout, done.stderr
        sums: list[dict[str, Any]] = json.loads(done.stdout)["sums"]
        return next(each for each in sums if each["of"] == "store")


def on_older_sqlalchemy(constraints: str) -> str:
    """With SQLAlchemy 2.0, on which Airflow's own constraints hold people: all other tests have what ours name."""
    older = re.search(r"^sqlalchemy==(2\.0\.\d+)", constraints, re.MULTILINE)
    assert older, "constraints.txt names a SQLAlchemy 2.0, for the oldest Python"
    lines = [line for line in constraints.splitlines() if not line.startswith("sqlalchemy==")]
    return "\n".join([*lines, f"sqlalchemy=={older[1]}", ""])


@pytest.fixture(scope="module")
def user(place: Path, wheel: Path) -> User:
    """Installed as the page says, in `venv`."""
    home = place / "user"
    (home / "dist").mkdir(parents=True)
    shutil.copy(wheel, home / "dist")
    (home / "constraints.txt").write_text(on_older_sqlalchemy((REPOSITORY / "constraints.txt").read_text()))
    made = User(home, plain_environment(home))
    made.type(commands("On Airflow and Spark"))
    return made


@pytest.fixture(scope="module")
def running(user: User) -> Iterator[User]:
    """With Airflow started as the page says, and one pipeline more."""
    marker = uuid.uuid4().hex
    # Airflow on a small machine, and with ports of its own; SPT_NOENV keeps the marker readable.
    user.env |= {
        MARKER: marker,
        "SPT_NOENV": "1",
        "AIRFLOW__API__PORT": str(free_port()),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__CORE__PARALLELISM": "3",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__WORKERS": "1",
        "LAKE_STORE": f"sqlite:///{user.home}/lake.db?store=lake",
        "LAKE_DEAD_LETTER_STORE": f"sqlite:///{user.home}/lake.db?store=lake_dead",
    }
    user.env["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] = (
        f"http://127.0.0.1:{user.env['AIRFLOW__API__PORT']}/execution/"
    )
    pages = files("A first pipeline")
    for name, text in {**pages, "dags/lake_chain.py": SPARK_CHAIN, "dags/lake.py": SPARK_DAG}.items():
        (user.home / name).parent.mkdir(exist_ok=True)
        (user.home / name).write_text(text)
    try:
        user.type(commands("A first pipeline"))
        user.type(["homing send --store env:LAKE_STORE 1 2 13"])
        yield user
    finally:
        stop(marker)


def stop(marker: str) -> None:
    """Ends Airflow, and all that it started."""
    deadline = time.monotonic() + 60
    while alive := marked_processes(marker):
        assert time.monotonic() < deadline, f"{alive} survived"
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)


def settled(user: User, prefix: str, chain: str) -> dict[str, Any]:
    """Waits until nothing of this pipeline is on its way any more."""
    seen: dict[str, Any] = {}

    def check() -> dict[str, Any] | None:
        seen.update(user.books(prefix, chain))
        return seen if not seen["waiting"] and seen["accepted"] else None

    def describe() -> str:
        log = user.home / "standalone.log"
        return f"{chain} to be settled: {seen}\n{log.read_text()[-4000:] if log.exists() else 'Airflow never started'}"

    return wait_until(check, timeout=900, what=describe, every=3)


def test_the_installation_is_consistent_and_kept_the_airflow_that_was_there(
    user: User, capsys: pytest.CaptureFixture[str]
) -> None:
    checked = run(["pip", "check"], cwd=user.home, env=user.env)
    listed = run(["pip", "list", "--format=freeze"], cwd=user.home, env=user.env).split()
    wanted = re.findall(r"apache-airflow==(\S+?)\"", SECTIONS["On Airflow and Spark"])

    assert "No broken requirements" in checked
    assert any(each.lower().startswith("sqlalchemy==2.0.") for each in listed)
    assert [f"apache-airflow=={each}" for each in wanted] == [x for x in listed if x.startswith("apache-airflow==")]
    with capsys.disabled():
        print(f"\n[airflow,spark]: {len(listed)} packages, {megabytes(user.home / 'venv'):.0f} MB")


def test_a_new_project_passes_its_tests_as_the_page_has_its_reader_run_them(user: User) -> None:
    *commands_before, test = commands("A project to begin with")
    assert test == "pytest"

    user.type([*commands_before, "pytest --junitxml=report.xml"])

    report = ET.parse(user.home / "web_shop" / "report.xml").getroot()  # noqa: S314 - pytest has just written it
    (suite,) = report.iter("testsuite")
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5", "failures": "0", "errors": "0", "skipped": "0",
    }  # fmt: skip


def test_the_first_pipeline_of_the_page_delivers_on_a_real_scheduler(running: User) -> None:
    books = settled(running, "HOMING", "shop_chain:chain")
    delivered = (running.home / "dags" / "delivered.txt").read_text().splitlines()

    assert (books["accepted"], books["delivered"], books["dropped"], books["unaccounted"]) == (3, 2, 1, 0), books
    assert delivered == ["order 1", "order 3"]


def test_spark_jobs_run_from_the_wheel_with_no_checkout_on_any_path(running: User) -> None:
    books = settled(running, "LAKE", "lake_chain:chain")
    written = sorted((running.home / "dags").glob("lake.[0-9]*"))

    assert (books["accepted"], books["delivered"], books["dead_lettered"], books["unaccounted"]) == (3, 2, 1, 0), books
    assert [path.suffix for path in written] == [".1", ".2"]
    for path in written:
        _, package, *search = path.read_text().splitlines()
        assert Path(package).is_relative_to(running.home / "venv")
        assert not any(Path(each).is_relative_to(REPOSITORY) for each in search if each)
