"""Folders that no other user of this machine can read, or replace, or can have created before us.

That matters because Homing trusts and runs what lies in them: messages, code for Spark's executors, archives of
classes.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

from homing.errors import WorkDirError

_ROOT = 0
_MOST_LINKS = 40
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def state_folder() -> Path:
    """Where the user's own state lies, and stays."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "homing"


def cache_folder() -> Path:
    """Where lies what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "homing"


def make_private_folder(path: str | Path) -> None:
    """Makes the folder and those above it, for this user alone; one that is there must be this user's alone.

    Every level is looked at without following links: a user who can write to one could put another folder in its place.
    Raises WorkDirError, which says whose it is or who can write to it.
    """
    absolute = os.path.abspath(path)  # noqa: PTH100 - which resolves no links
    try:
        descriptor = _descend(absolute)
    except OSError as error:
        raise WorkDirError(f"the folder {absolute} cannot be made or opened: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise WorkDirError(f"the folder {absolute} belongs to user {found.st_uid}, not to this one: choose another")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise WorkDirError(
                f"the folder {absolute} is open to other users (mode {stat.S_IMODE(found.st_mode):o}): "
                f"choose another, or chmod 700 it once no other user's files are in it"
            )
    finally:
        os.close(descriptor)


def _descend(path: str) -> int:
    """Opens the folder, level by level from the root, making what is missing. A descriptor; the caller closes it."""
    names = [name for name in path.split("/") if name]
    descriptor, links, place = os.open("/", _FOLDER), 0, ""
    try:
        while names:
            name = names.pop(0)
            target = _link(name, descriptor)
            if target is None:
                descriptor, place = _replaced(descriptor, _open_level(name, descriptor)), f"{place}/{name}"
                if names:
                    _refuse_shared(os.fstat(descriptor), place)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))  # noqa: TRY301
            _refuse_shared(os.lstat(name, dir_fd=descriptor), f"{place}/{name}")
            if target.startswith("/"):
                descriptor, place = _replaced(descriptor, os.open("/", _FOLDER)), ""
            names[:0] = [part for part in target.split("/") if part not in ("", ".")]
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _link(name: str, above: int) -> str | None:
    """Where a link leads; None for what is none."""
    try:
        return os.readlink(name, dir_fd=above)
    except OSError:
        return None


def _open_level(name: str, above: int) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        with suppress(FileExistsError):  # another process was faster; the owner is checked below
            os.mkdir(name, 0o700, dir_fd=above)
        return os.open(name, _FOLDER, dir_fd=above)


def _replaced(old: int, new: int) -> int:
    os.close(old)
    return new


def _refuse_shared(found: os.stat_result, place: str) -> None:
    """Raises WorkDirError for a level that another user could put something else in the place of."""
    if found.st_uid not in (_ROOT, os.geteuid()):
        raise WorkDirError(f"the folder {place} belongs to user {found.st_uid}, who could replace what is below it")
    if stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX:
        return  # in a sticky folder, such as /tmp, only owners replace what is theirs
    others = found.st_mode & stat.S_IWOTH
    groups = found.st_mode & stat.S_IWGRP and _has_others(found.st_gid)
    if others or groups:
        who = "everybody" if others else f"group {found.st_gid}"
        raise WorkDirError(f"the folder {place} can be written to by {who}, who could replace what is below it")


def _has_others(group: int) -> bool:
    """Whether users other than this one may be in the group, root's apart. Of this user's own group, which many systems
    give to each user alone, and others to all, that is looked up."""
    if group == _ROOT:
        return False
    if group != os.getegid():
        return True
    users = {user.pw_uid for user in pwd.getpwall() if user.pw_gid == group}
    with suppress(KeyError):  # a group or a user without an entry, as in a container
        users |= {pwd.getpwnam(name).pw_uid for name in grp.getgrgid(group).gr_mem}
    return bool(users - {_ROOT, os.geteuid()})
