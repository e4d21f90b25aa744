"""A SQLite store's file: made for this user alone, and not taken from another who put it where everybody can."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from homing.errors import ConfigurationError

_ROOT = 0
# What SQLite reads beside a database, and believes.
_BESIDE = ("", "-wal", "-shm", "-journal")


def make_private_file(database: str) -> None:
    """Makes the file where there is none: SQLite's own could be read by everybody. What SQLite puts beside it gets the
    same mode.

    Raises ConfigurationError for a file that another user put into a folder that everybody can write to, such as /tmp.
    """
    # Where a link leads to: SQLite would follow it, and make a file that is not there.
    file = os.path.realpath(database)
    with suppress(OSError):  # it is there, or SQLite will say why it cannot be made
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    for path in dict.fromkeys((os.path.abspath(database), file)):  # noqa: PTH100 - which resolves no links
        _refuse_planted(path)


def _refuse_planted(file: str) -> None:
    try:
        folder = os.stat(os.path.dirname(file))  # noqa: PTH116, PTH120
    except OSError:
        return  # SQLite will say what is wrong with it
    if not folder.st_mode & stat.S_IWOTH:
        return
    for path in (f"{file}{suffix}" for suffix in _BESIDE):
        with suppress(OSError):
            owner = os.lstat(path).st_uid
            if owner not in (_ROOT, os.geteuid(), folder.st_uid):
                raise ConfigurationError(
                    f"the file {path} belongs to user {owner}, in a folder that everybody can write to: it may have "
                    "been put there to read this store, or to change it. Choose a folder that others cannot write to"
                )
