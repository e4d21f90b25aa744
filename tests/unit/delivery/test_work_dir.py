"""The work directory: a local path, a `file://` URL, or a URL that no path of this machine is made of."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from homing.delivery import work_files
from homing.delivery.work_files import LocalFiles, WorkDir, local_path
from homing.errors import LeaseLostError, WorkDirError
from homing.ledger import Fence, Ledger
from homing.spark.submit import hadoop_shell


class Elsewhere:
    """A file system that knows only names."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.files: dict[str, str] = {}

    def make_folder(self, name: str) -> None:
        self.folders.append(name)

    def has_folder(self, name: str) -> bool:
        return name in self.folders

    def below(self, name: str) -> list[str]:
        return [file.removeprefix(f"{name}/") for file in self.files if file.startswith(f"{name}/")]

    def digest(self, name: str) -> str | None:
        return self.files.get(name)


def begun(ledger: Ledger, run_id: str) -> Fence:
    return ledger.open_step(run_id, "process", 600)


def left(tmp_path: Path, ledger: Ledger, run_id: str = "run") -> tuple[WorkDir, list[Path]]:
    """A work directory in which a step of this run has left two files."""
    mine, fence = WorkDir(str(tmp_path / "work"), LocalFiles(), ledger), begun(ledger, run_id)
    output = Path(mine.new_output(run_id, fence.owner))
    for number in range(2):
        (output / str(number)).mkdir(parents=True)
        (output / str(number) / "part.parquet").write_text(f"{run_id}: what message {number} says")
    mine.publish(fence, [f"{output}/0", f"{output}/1"])
    return mine, [output / "0" / "part.parquet", output / "1" / "part.parquet"]


def change(file: Path) -> None:
    file.write_bytes(b"R" + file.read_bytes()[1:])


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def swap(file: Path) -> None:
    file.write_text("another run: what message 1 says")


def link(file: Path) -> None:
    (file.parent / "other").write_text("other")
    file.unlink()
    file.symlink_to(file.parent / "other")


FORGERIES = (change, cut, swap, link, Path.unlink)


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
def test_a_local_one_is_its_owners_alone_and_removed_with_its_run(tmp_path: Path, ledger: Ledger, form: str) -> None:
    place, files = form.format(tmp_path / "work"), Elsewhere()
    mine, fence = WorkDir(place, files, ledger), begun(ledger, "orders/run 1")

    output = Path(mine.new_output("orders/run 1", "owner"))
    output.mkdir()
    (output / "messages.parquet").touch()
    mine.publish(fence, [str(output)])

    assert mine.published("orders/run 1") == [f"{output}/messages.parquet"]
    assert stat.S_IMODE(output.parent.stat().st_mode) == 0o700
    assert files.folders == []
    work_files.require(place, hadoop_shell)
    work_files.remove(place, "orders/run 1", hadoop_shell)
    work_files.remove(place, "orders/run 1", hadoop_shell)
    assert list((tmp_path / "work").iterdir()) == []


def test_of_a_url_no_file_of_this_machine_is_touched(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    files = Elsewhere()
    mine = WorkDir("s3a://bucket/work/", files, ledger)

    output = mine.new_output("run", "owner")
    files.files = {f"{output}/0/a": "1", f"{output}/1/b": "2"}
    mine.publish(begun(ledger, "run"), [f"{output}/0", f"{output}/1"])

    assert output.startswith("s3a://bucket/work/run-")
    assert mine.published("run") == mine.checked("run") == [f"{output}/0/a", f"{output}/1/b"]
    assert mine.published("another") is None
    assert list(Path.cwd().iterdir()) == []
    files.files[f"{output}/1/b"] = "3"
    with pytest.raises(WorkDirError, match="/1/b is not what was left there"):
        mine.checked("run")


def test_what_was_left_is_read_as_it_was_left(tmp_path: Path, ledger: Ledger) -> None:
    mine, files = left(tmp_path, ledger)

    assert mine.checked("run") == list(map(str, files))
    copies = mine.copies("run")
    assert copies is not None
    assert [copy.read() for copy in copies] == [file.read_bytes() for file in files]


@pytest.mark.parametrize("forge", FORGERIES)
def test_a_file_that_is_not_what_was_left_is_not_read(
    tmp_path: Path, ledger: Ledger, forge: Callable[[Path], object]
) -> None:
    mine, files = left(tmp_path, ledger)
    left(tmp_path, ledger, "another run")
    forge(files[1])

    with pytest.raises(WorkDirError, match=r"part\.parquet (is not what was left|is missing).*clear the task"):
        mine.checked("run")
    copies = mine.copies("run")
    assert copies is not None
    assert next(copies).read() == files[0].read_bytes()
    with pytest.raises(WorkDirError, match=r"part\.parquet (is not what was left|cannot be read).*clear the task"):
        next(copies)
    assert mine.checked("another run")


def test_what_is_read_is_what_was_checked_whatever_becomes_of_the_file_meanwhile(
    tmp_path: Path, ledger: Ledger
) -> None:
    mine, files = left(tmp_path, ledger)
    before = files[0].read_bytes()

    copies = mine.copies("run")
    assert copies is not None
    copy = next(copies)
    change(files[0])

    assert copy.read() == before


def test_a_file_that_was_put_beside_is_not_read(tmp_path: Path, ledger: Ledger) -> None:
    mine, files = left(tmp_path, ledger)
    (files[0].parent / "part-2.parquet").write_text("forged")

    assert mine.checked("run") == list(map(str, files))


def test_a_run_that_left_nothing_and_a_run_that_never_came_so_far_are_told_apart(
    tmp_path: Path, ledger: Ledger
) -> None:
    mine = WorkDir(str(tmp_path / "work"), LocalFiles(), ledger)
    fence = begun(ledger, "run")
    mine.new_output("run", fence.owner)
    assert mine.published("run") is None
    mine.publish(fence, [])

    assert mine.published("run") == mine.checked("run") == []


def test_of_two_tries_the_one_that_was_given_up_publishes_nothing(tmp_path: Path, ledger: Ledger) -> None:
    mine, first = WorkDir(str(tmp_path / "work"), LocalFiles(), ledger), begun(ledger, "run")
    begun(ledger, "run")
    mine.new_output("run", first.owner)

    with pytest.raises(LeaseLostError):
        mine.publish(first, [])
    assert mine.published("run") is None


def test_what_was_left_where_nobody_finds_it_any_more_is_made_again(tmp_path: Path, ledger: Ledger) -> None:
    mine, _ = left(tmp_path, ledger)
    work_files.remove(str(tmp_path / "work"), "run", hadoop_shell)

    assert mine.published("run") is None
    assert mine.checked("run") is None
    assert mine.copies("run") is None


def test_the_ledger_forgets_what_was_left_when_the_run_is_settled(tmp_path: Path, ledger: Ledger) -> None:
    mine, _ = left(tmp_path, ledger)
    left(tmp_path, ledger, "another run")
    ledger.close_steps("run")

    assert mine.published("run") is None
    assert mine.published("another run")


@pytest.mark.parametrize("files", ["", "{oops", "[1]", '{"a": 1}'])
def test_what_somebody_else_wrote_into_the_ledger_is_not_believed(
    tmp_path: Path, ledger: Ledger, database: str, files: str
) -> None:
    mine, _ = left(tmp_path, ledger)
    engine = sa.create_engine(database)
    with engine.begin() as connection:
        connection.execute(sa.text("update homing_orders__work set files = :files"), {"files": files})
    engine.dispose()

    assert mine.published("run") is None


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "processed-x/../../y", "processed-x/\n", ""])
def test_what_is_published_names_nothing_outside_the_runs_own_folder(tmp_path: Path, ledger: Ledger, name: str) -> None:
    mine = WorkDir(str(tmp_path / "work"), LocalFiles(), ledger)
    mine.new_output("run", "owner")
    ledger.publish(begun(ledger, "run"), {name: "digest"})

    for read in (mine.published, mine.checked, mine.copies):
        with pytest.raises(WorkDirError, match="names files outside"):
            read("run")


def test_without_spark_a_url_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with pytest.raises(WorkDirError, match="spark-class"):
        work_files.require("hdfs://nodes:8020/work", hadoop_shell)
