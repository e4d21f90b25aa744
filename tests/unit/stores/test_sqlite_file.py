"""The file of a SQLite store, which people remove, replace and name from wherever they are."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from homing.errors import TableMissingError
from homing.stores import open_store
from homing.stores.sql import SqlStore


def contents(path: Path) -> list[object]:
    """What another process would see there."""
    with open_store(f"sqlite:///{path}?store=orders") as store:
        assert isinstance(store, SqlStore)
        return [message.content for message in store.browse()]


def test_nothing_is_accepted_into_a_file_that_was_removed(tmp_path: Path) -> None:
    path = tmp_path / "inbox.db"
    with open_store(f"sqlite:///{path}?store=orders") as store:
        store.store("before")
        for each in tmp_path.iterdir():
            each.unlink()

        with pytest.raises(TableMissingError):
            store.store("after")


def test_what_is_stored_after_a_backup_took_the_files_place_is_in_the_backup(tmp_path: Path) -> None:
    path, backup = tmp_path / "inbox.db", tmp_path / "backup.db"
    with open_store(f"sqlite:///{path}?store=orders") as store:
        store.store("before")
        with sqlite3.connect(path) as here, sqlite3.connect(backup) as there:
            here.backup(there)
        here.close()
        there.close()
        store.store("lost with the file")
        for each in tmp_path.glob("inbox.db*"):
            each.unlink()
        backup.rename(path)

        store.store("after")

    assert contents(path) == ["before", "after"]


def test_a_relative_path_is_that_of_the_folder_in_which_the_store_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    with open_store("sqlite:///inbox.db?store=orders") as store:
        monkeypatch.chdir(there)
        store.store("one")
        thread = threading.Thread(target=store.store, args=("two",))  # on a connection of its own
        thread.start()
        thread.join()

    assert contents(here / "inbox.db") == ["one", "two"]
    assert not list(there.iterdir())
