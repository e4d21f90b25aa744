"""The work directory: a local path, a `file://` URL, or a URL that no path of this machine is made of."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from homing.delivery import work
from homing.delivery.work import LocalFiles, WorkDir, local_path
from homing.errors import WorkDirError


class Elsewhere:
    """A file system that knows only names."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.files: dict[str, str] = {}

    def make_folder(self, name: str) -> None:
        self.folders.append(name)

    def write(self, name: str, text: str) -> None:
        self.files[name] = text

    def read(self, name: str) -> str | None:
        return self.files.get(name)


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("/var/work", "/var/work"),
        ("work/orders", "work/orders"),
        ("file:///var/some%20work", "/var/some work"),
        ("file:/var/work", "/var/work"),
        ("file://localhost/var/work", "/var/work"),
        ("file://another-host/var/work", None),
        ("hdfs://nodes:8020/work", None),
        ("hdfs:///work", None),
        ("s3a://bucket/work", None),
    ],
)
def test_only_what_is_on_this_machine_has_a_path(written: str, path: str | None) -> None:
    assert local_path(written) == path


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_local_one_is_its_owners_alone_and_removed_with_its_run(tmp_path: Path, form: str) -> None:
    place, files = form.format(tmp_path / "work"), Elsewhere()
    mine = WorkDir(place, files)

    output = mine.new_output("orders/run 1", "owner")
    Path(output).mkdir()
    mine.publish("orders/run 1", [f"{output}/0"])

    assert mine.published("orders/run 1") == [f"{output}/0"]
    assert stat.S_IMODE(Path(output).parent.stat().st_mode) == 0o700
    assert files.folders == []
    work.require(place)
    work.remove(place, "orders/run 1")
    work.remove(place, "orders/run 1")
    assert list((tmp_path / "work").iterdir()) == []


def test_of_a_url_no_file_of_this_machine_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = Elsewhere()
    mine = WorkDir("s3a://bucket/work/", files)

    output = mine.new_output("run", "owner")
    mine.publish("run", [f"{output}/0", f"{output}/1"])

    assert output.startswith("s3a://bucket/work/run-")
    assert mine.published("run") == [f"{output}/0", f"{output}/1"]
    assert mine.published("another") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", '["processed-ow', "processed-1/0\n"])
def test_what_was_not_written_to_its_end_was_not_published(tmp_path: Path, text: str) -> None:
    mine = WorkDir(str(tmp_path), LocalFiles())
    folder = Path(mine.new_output("run", "owner")).parent
    mine.publish("run", [])
    assert mine.published("run") == []
    (folder / "published").write_text(text)
    assert mine.published("run") is None


def test_without_spark_a_url_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with pytest.raises(WorkDirError, match="spark-class"):
        work.require("hdfs://nodes:8020/work")
