"""Staging: a job writes its files to a folder of its own, and then moves them one by one to where they are read.

Spark itself appends through one folder `_temporary` for all writers. The first job that ends removes that folder, with
what other jobs have in it. Here every job has a folder of its own below `_staging`, which readers do not look into.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from py4j.protocol import Py4JError

from homing.delivery.work_files import Files
from homing.errors import LakeError
from homing.ids import random_hex

log = logging.getLogger(__name__)

_STAGING = "_staging"
# No job takes so long. One that is paused for as long finds its rows gone, and fails: it delivers them again.
_ABANDONED_AFTER = 7 * 86_400


def _new_name() -> str:
    # By the clock of the job: some file systems do not keep when a folder was made.
    return f"{int(time.time())}-{random_hex(32)}"


@dataclass(frozen=True)
class Staging:
    """One job's own place below a lake, from which its files are moved to where they are read."""

    lake: str
    files: Files
    name: str = field(default_factory=_new_name)

    @property
    def place(self) -> str:
        """Where the job writes, in the folders that the lake is to have."""
        return f"{self.lake}/{_STAGING}/{self.name}"

    def put_in_place(self) -> list[str]:
        """Moves the files that were written to where they are read. Returns their names there.

        Nothing is overwritten: Spark gives every file a name that no other has. If the process dies in between, some of
        the files are in place, and the next process adds the rest.
        """
        put = []
        for name in self.files.below(self.place):
            target = f"{self.lake}/{name}"
            self.files.move(f"{self.place}/{name}", target)
            put.append(target)
        return put

    def remove(self) -> None:
        """Removes what is left here, and what others left who died long ago."""
        try:
            self.files.remove(self.place)
            for name in self.files.folders(f"{self.lake}/{_STAGING}"):
                made = name.partition("-")[0]
                if made.isdecimal() and int(made) + _ABANDONED_AFTER < time.time():
                    self.files.remove(f"{self.lake}/{_STAGING}/{name}")
        except (LakeError, OSError, Py4JError) as error:  # harmless: readers do not see it
            log.warning("what was staged for the lake %s stays there for now: %s", self.lake, error)
