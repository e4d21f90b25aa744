"""The wheel is the product: all that the package needs is in it, and nothing else."""

from __future__ import annotations

import zipfile
from configparser import ConfigParser
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import homing

pytestmark = pytest.mark.install


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def text_of(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (each for each in archive.namelist() if each.endswith(f".dist-info/{name}"))
        return archive.read(path).decode()


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    return Parser().parsestr(text_of(wheel, "METADATA"))


def test_every_file_of_the_packages_is_in_the_wheel_and_no_other(names: set[str], sources: Path) -> None:
    plugins = sources / "plugins"
    packages = [path for top in ("homing", "pyspark_homing") for path in (plugins / top).rglob("*") if path.is_file()]

    assert len(packages) > 200
    assert {name for name in names if ".dist-info/" not in name} == {
        str(path.relative_to(plugins)) for path in packages if "__pycache__" not in path.parts
    }


def test_it_has_its_types_and_the_applications_that_spark_is_given(names: set[str]) -> None:
    jobs = {f"homing/spark/applications/homing_{step}.py" for step in ("process", "deliver", "replay")}

    assert {"homing/py.typed", "homing/spark/submit/empty_hadoop_conf/core-site.xml", *jobs} <= names


def test_its_entry_points_are_the_command_the_provider_and_the_plugin(wheel: Path) -> None:
    parser = ConfigParser()
    parser.read_string(text_of(wheel, "entry_points.txt"))

    assert {name: list(parser[name]) for name in parser.sections()} == {
        "airflow.plugins": ["homing"],
        "apache_airflow_provider": ["provider_info"],
        "console_scripts": ["homing"],
    }


def test_what_it_says_of_itself(wheel: Path, metadata: Message) -> None:
    assert metadata["Name"] == "homing"
    assert metadata["Version"] == homing.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Apache License" in text_of(wheel, "licenses/LICENSE")
    assert metadata.get_all("Project-URL") is None
    assert metadata["Home-page"] is None
    classifiers = metadata.get_all("Classifier") or []
    assert [f"Programming Language :: Python :: 3.{minor}" in classifiers for minor in range(9, 15)] == [
        False, True, True, True, True, False,
    ]  # fmt: skip


def test_its_extras_are_those_that_errors_and_pages_name(metadata: Message) -> None:
    assert set(metadata.get_all("Provides-Extra") or []) == {
        "airflow", "spark", "postgres", "mysql", "rabbitmq", "azure", "testing", "all", "dev",
    }  # fmt: skip


def test_the_core_needs_four_packages(metadata: Message) -> None:
    required = [each for each in metadata.get_all("Requires-Dist") or [] if "extra ==" not in each]

    assert sorted(each.partition("<")[0].partition(">")[0] for each in required) == [
        "msgspec", "pendulum", "pyyaml", "sqlalchemy",
    ]  # fmt: skip


def test_the_source_distribution_is_complete(built: Path) -> None:
    """The wheel of these tests was built from it, and not from the repository."""
    assert [path.name for path in built.glob("*.tar.gz")] == [f"homing-{homing.__version__}.tar.gz"]
