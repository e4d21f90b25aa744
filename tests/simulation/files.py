"""The work directory in a simulation: real files, with a turn for everybody before each, and sometimes none at all."""

from __future__ import annotations

import pytest

from homing.delivery.work_files import LocalFiles
from tests.simulation.virtual import Here

NO_FILES = "NO FILES"


def install(patch: pytest.MonkeyPatch, here: Here) -> None:
    for name in ("make_folder", "has_folder", "digest"):
        patch.setattr(LocalFiles, name, _after_a_turn(here, name))


def _after_a_turn(here: Here, name: str) -> object:
    real = getattr(LocalFiles, name)

    def call(self: LocalFiles, path: str, *args: str) -> object:
        if here.pause(f"file: {name}") == NO_FILES:
            raise OSError(28, "No space left on device")
        return real(self, path, *args)

    return call
