"""The guards that `make mutants` takes out are in the code, each once, and the tests that know them are there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mutants.guard import Guard
from mutants.guards import GUARDS
from mutants.run import missing

ROOT = Path(__file__).parents[2]


def test_there_are_guards_enough_and_none_twice() -> None:
    assert len(GUARDS) >= 100
    assert [
        edit for edit, times in Counter((guard.path, guard.old, guard.new) for guard in GUARDS).items() if times > 1
    ] == []
    assert all(guard.tests for guard in GUARDS)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: f"{guard.path}: {guard.what}"[:80])
def test_a_guard_is_in_the_code_once_and_can_be_taken_out(guard: Guard) -> None:
    assert guard.removed_from(ROOT) != (ROOT / guard.file).read_text(encoding="utf-8")


def test_every_test_that_knows_a_guard_is_there() -> None:
    assert missing(sorted({test for guard in GUARDS for test in guard.tests}), ROOT) == set()
