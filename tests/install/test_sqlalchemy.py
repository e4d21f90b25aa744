"""The oldest SQLAlchemy that the wheel allows does what the newest does, with which all other tests run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.install.environment import REPOSITORY, Environment
from tests.servers import MariaDB, PostgreSQL

pytestmark = [pytest.mark.install, pytest.mark.services, pytest.mark.timeout(1200)]

OLDEST = re.findall(r'"sqlalchemy>=([\d.]+),<2\.2"', (REPOSITORY / "pyproject.toml").read_text())[0]
#: The suite for authors of stores, on a user's own databases.
SUITE = """
import os

from homing.testing.abilities import *
from homing.testing.fixtures import *
from homing.testing.subject import Subject
from homing.testing.verbs import *

SUBJECTS = [
    Subject("sqlite", lambda request: f"sqlite:///{request.getfixturevalue('tmp_path')}/store.db"),
    Subject("postgresql", lambda request: os.environ["POSTGRESQL"]),
    Subject("mariadb", lambda request: os.environ["MARIADB"]),
]
"""


@pytest.fixture(scope="module")
def older(place: Path, wheel: Path) -> Environment:
    made = Environment(Path(sys.executable), place / "older")
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    constraints = made.folder / "constraints.txt"
    constraints.write_text(
        "\n".join([*(each for each in lines if not each.startswith("sqlalchemy==")), f"sqlalchemy=={OLDEST}"])
    )
    made.install(f"{wheel}[postgres,mysql,testing]", "pytest-timeout", constraints=constraints)
    return made


def test_the_conformance_suite_passes_on_the_oldest_sqlalchemy(
    older: Environment, postgresql: PostgreSQL, mariadb: MariaDB, capsys: pytest.CaptureFixture[str]
) -> None:
    (older.folder / "test_databases.py").write_text(SUITE)
    older.env |= {"POSTGRESQL": postgresql.empty_database(), "MARIADB": mariadb.empty_database()}

    said = older.run("python", "-m", "pytest", "-q", "-ra", "test_databases.py")
    last = said.strip().splitlines()[-1]

    assert older.packages()["sqlalchemy"] == OLDEST
    assert int(re.findall(r"(\d+) passed", last)[0]) > 150, said
    with capsys.disabled():
        print(f"\nSQLAlchemy {OLDEST}: {last}")
