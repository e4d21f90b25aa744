"""Folders whose files are believed: made for this user alone, and refused where somebody else has a say."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from homing import open_store
from homing.delivery.private_folder import make_private_folder
from homing.delivery.work_files import LocalFiles, WorkDir
from homing.errors import WorkDirError
from homing.ledger import Ledger
from homing.spark.submit.class_archive import class_archive
from homing.spark.submit.py_files import build_py_files

NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def as_nobody(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, user=NOBODY, group=NOBODY, check=False, capture_output=True, text=True)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder like /tmp, which is no other user's: everybody writes to it, and only owners replace what is theirs."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o1777)
        yield Path(name)


def test_the_folder_and_those_above_it_are_made_for_this_user_alone(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a" / "b" / "c")
    make_private_folder(tmp_path / "a" / "b" / "c")

    assert [mode(tmp_path / name) for name in ("a", "a/b", "a/b/c")] == [0o700, 0o700, 0o700]


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)

    with pytest.raises(WorkDirError, match="open to other users"):
        make_private_folder(tmp_path / "open")


@pytest.mark.parametrize(("bits", "refused"), [(0o777, True), (0o1777, False)])
def test_a_level_that_everybody_can_write_to_is_refused_unless_only_owners_replace_there(
    tmp_path: Path, bits: int, refused: bool
) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(bits)

    if refused:
        with pytest.raises(WorkDirError, match="everybody"):
            make_private_folder(above / "mine")
    else:
        make_private_folder(above / "mine")

    assert (above / "mine").exists() is not refused


@pytest.mark.parametrize(("others", "members"), [([], []), ([4242], []), ([], ["another"])])
def test_a_level_that_ones_own_group_can_write_to_is_refused_when_other_users_are_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[int], members: list[str]
) -> None:
    """Many systems give each user a group, and some give all users the same one."""
    group = tmp_path.stat().st_gid or 1  # root's group is nobody's
    (tmp_path / "above").mkdir()
    (tmp_path / "above").chmod(0o775)
    os.chown(tmp_path / "above", -1, group)
    users = [SimpleNamespace(pw_uid=uid, pw_gid=group) for uid in (os.geteuid(), *others)]
    monkeypatch.setattr("os.getegid", lambda: group)
    monkeypatch.setattr("pwd.getpwall", lambda: users)
    monkeypatch.setattr("pwd.getpwnam", lambda _: SimpleNamespace(pw_uid=4242))
    monkeypatch.setattr("grp.getgrgid", lambda _: SimpleNamespace(gr_mem=members))

    if others or members:
        with pytest.raises(WorkDirError, match=f"by group {group}"):
            make_private_folder(tmp_path / "above" / "mine")
    else:
        make_private_folder(tmp_path / "above" / "mine")


def test_a_link_of_ones_own_is_followed_and_where_it_leads_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "loop").symlink_to("loop")

    make_private_folder(tmp_path / "link" / "mine")

    assert mode(tmp_path / "real" / "mine") == 0o700
    with pytest.raises(WorkDirError, match="cannot be made or opened"):
        make_private_folder(tmp_path / "loop")


@as_root
def test_a_folder_that_another_user_made_first_is_refused(shared: Path, ledger: Ledger) -> None:
    made = as_nobody("mkdir", "--parents", str(shared / "homing" / "orders"))
    assert made.returncode == 0, made.stderr

    for place in (shared / "homing", shared / "homing" / "orders"):
        with pytest.raises(WorkDirError, match=f"belongs to user {NOBODY}"):
            make_private_folder(place)
        with pytest.raises(WorkDirError):
            WorkDir(str(place), LocalFiles(), ledger).new_output("run", "owner")
        with pytest.raises(WorkDirError), class_archive(place):
            pass
        with pytest.raises(WorkDirError):
            build_py_files(place)


@as_root
def test_a_link_that_another_user_laid_is_not_followed(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    laid = as_nobody("ln", "-s", str(tmp_path / "mine"), str(shared / "homing"))
    assert laid.returncode == 0, laid.stderr

    with pytest.raises(WorkDirError, match=f"belongs to user {NOBODY}"):
        make_private_folder(shared / "homing" / "orders")


@as_root
def test_what_a_run_leaves_in_a_shared_folder_another_user_cannot_read_or_replace(shared: Path, ledger: Ledger) -> None:
    output = WorkDir(str(shared / "work"), LocalFiles(), ledger).new_output("run", "owner")
    Path(output).write_text("what a message says")

    read = as_nobody("cat", output)
    replace = as_nobody("mv", str(shared / "work"), str(shared / "old"))

    assert (read.stdout, "Permission denied" in read.stderr) == ("", True)
    assert replace.returncode != 0
    assert Path(output).read_text() == "what a message says"


@as_root
def test_the_code_that_is_sent_to_executors_another_user_cannot_read_or_replace(shared: Path) -> None:
    code = build_py_files(shared / "code")

    read, replace = as_nobody("cat", str(code)), as_nobody("cp", "/dev/null", str(code))

    assert (read.stdout, "Permission denied" in read.stderr, replace.returncode != 0) == ("", True, True)
    assert build_py_files(shared / "code") == code
    assert code.stat().st_size > 0


@as_root
def test_a_sqlite_file_that_a_store_makes_in_a_shared_folder_another_user_cannot_read_or_replace(shared: Path) -> None:
    with open_store(f"sqlite:///{shared}/inbox.db?store=orders") as store:
        store.store("what a message says")
        files = sorted(shared.iterdir())

        read = [as_nobody("cat", str(file)) for file in files]
        replace = [as_nobody("mv", str(file), f"{file}.old") for file in files]

        assert [file.name for file in files] == ["inbox.db", "inbox.db-shm", "inbox.db-wal"]
        assert {each.stdout for each in read} == {""}
        assert all("Permission denied" in each.stderr for each in read)
        assert all(each.returncode for each in replace)
        assert store.count()["available"] == 1
