"""A work directory in another file system, which only Hadoop knows the way to: viewfs, by a mount table."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from homing.delivery import work_files
from homing.errors import WorkDirError
from homing.spark.submit import hadoop_shell
from tests.spark.conftest import Numbers, delivered
from tests.spark.test_applications import submit

MOUNTS = """<configuration><property>
  <name>fs.viewfs.mounttable.homing.link./work</name><value>file://{}</value>
</property></configuration>
"""
URL = "viewfs://homing/work/orders"


@pytest.fixture
def behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that `viewfs://homing/work` shows."""
    folder, settings = tmp_path / "behind", tmp_path / "conf"
    folder.mkdir()
    settings.mkdir()
    (settings / "core-site.xml").write_text(MOUNTS.format(folder))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(settings))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.chdir(tmp_path)
    return folder


def test_what_process_left_at_a_url_is_delivered_and_removed(numbers: Numbers, output: Path, behind: Path) -> None:
    numbers.claim("run", {"n": 1}, {"n": 2, "fail": "source"}, {"n": 3})
    arguments = ["--chain", "spark_chain:chain", "--run-id", "run", "--work-dir", URL]
    work_files.require(URL, hadoop_shell)

    processed = submit(numbers, output, "process.py", *arguments)
    assert processed.returncode == 0, processed.stdout
    (run,) = (behind / "orders").iterdir()
    assert run.stat().st_mode & 0o777 == 0o700
    assert list(run.glob("processed-*/0/*.parquet"))

    (output / "mended").touch()  # who runs the source flow from now on finds no fault
    done = submit(numbers, output, "deliver.py", *arguments, "--flow", "lake")
    assert done.returncode == 0, done.stdout
    assert [n for n, _, _ in delivered(output, "lake")] == [1, 3]

    work_files.remove(URL, "run", hadoop_shell)
    work_files.remove(URL, "run", hadoop_shell)
    assert list((behind / "orders").iterdir()) == []
    assert not Path("viewfs:").exists()


def test_of_what_was_forged_at_a_url_nothing_is_delivered(numbers: Numbers, output: Path, behind: Path) -> None:
    numbers.claim("run", {"n": 1}, {"n": 3})
    arguments = ["--chain", "spark_chain:chain", "--run-id", "run", "--work-dir", URL]
    assert submit(numbers, output, "process.py", *arguments).returncode == 0
    forged = next(iter((behind / "orders").glob("*/processed-*/0/*.parquet")))
    forged.with_name(f".{forged.name}.crc").unlink()  # who forges a file has no use for Hadoop's own check of it
    forged.write_bytes(forged.read_bytes().replace(b'"n":', b'"m":'))

    done = submit(numbers, output, "deliver.py", *arguments, "--flow", "lake")

    assert done.returncode == 1
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("ERROR homing")]
    assert f"the work file {URL}/run-" in said
    assert "is not what was left there" in said
    assert delivered(output, "lake") == []
    assert numbers.batch("run").settle().released == 2


def test_a_url_that_nobody_knows_the_way_to_is_told_so(numbers: Numbers, output: Path, behind: Path) -> None:
    with pytest.raises(WorkDirError, match=r'gopher://hole/work cannot be used.*No FileSystem for scheme "gopher"'):
        work_files.require("gopher://hole/work", hadoop_shell)
    with pytest.raises(WorkDirError, match=r"Caused by.*S3AFileSystem not found.*Spark's jars must have"):
        work_files.require("s3a://bucket/work", hadoop_shell)
    numbers.claim("run", {"n": 1})
    arguments = ["--chain", "spark_chain:chain", "--run-id", "run", "--work-dir", "gopher://hole/work"]

    done = submit(numbers, output, "process.py", *arguments)

    assert done.returncode == 1
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("ERROR homing")]
    assert "process of batch run: the work directory cannot be used: gopher://hole/work" in said
    assert 'No FileSystem for scheme "gopher"' in said
