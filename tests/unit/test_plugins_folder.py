"""Airflow imports every .py file it finds below plugins/ under its bare name: it must find none of ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

PLUGINS = Path(__file__).parents[2] / "plugins"

WALK = """
import json, sys
from airflow._shared.module_loading.file_discovery import find_path_from_directory
from airflow.configuration import conf
syntax = conf.get_mandatory_value("core", "dag_ignore_file_syntax", fallback="glob")
print(json.dumps(list(find_path_from_directory(sys.argv[1], ".airflowignore", syntax))))
"""


def found_by_airflow(folder: Path, airflow_home: Path) -> set[Path]:
    """What Airflow's plugin loader would import from this folder, with Airflow's default configuration."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    walked = subprocess.run(
        [sys.executable, "-c", WALK, folder],
        env={**environment, "AIRFLOW_HOME": str(airflow_home)},
        check=True,
        capture_output=True,
        text=True,
    )
    files = json.loads(walked.stdout.splitlines()[-1])
    return {Path(file).relative_to(folder) for file in files if file.endswith(".py")}


def test_airflow_finds_no_module_of_ours_below_plugins(tmp_path: Path) -> None:
    assert list(PLUGINS.glob("homing/**/*.py"))
    assert list(PLUGINS.glob("pyspark_homing/*.py"))

    assert found_by_airflow(PLUGINS, tmp_path) == set()


def test_without_the_ignore_file_airflow_would_import_every_module(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    (plugins / "homing").mkdir(parents=True)
    (plugins / "homing" / "store.py").touch()

    assert found_by_airflow(plugins, tmp_path) == {Path("homing/store.py")}


def test_the_ignore_file_leaves_the_plugins_of_others_alone(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    (plugins / "theirs" / "homing").mkdir(parents=True)
    (plugins / ".airflowignore").write_text((PLUGINS / ".airflowignore").read_text())
    (plugins / "theirs.py").touch()
    (plugins / "theirs" / "homing" / "plugin.py").touch()

    assert found_by_airflow(plugins, tmp_path) == {Path("theirs.py"), Path("theirs/homing/plugin.py")}
