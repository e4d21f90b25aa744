"""Ids for messages that come without one."""

from __future__ import annotations

import os
import random
import uuid

import pytest

from homing.ids import new_id
from homing.invocation.fork_safety import start_over_after_fork
from tests.forked import fork, went_well


def test_id_is_a_random_uuid() -> None:
    made = uuid.UUID(new_id())
    assert (made.version, made.variant) == (4, uuid.RFC_4122)


def test_ids_are_unique() -> None:
    assert len({new_id() for _ in range(10_000)}) == 10_000


def test_ids_do_not_depend_on_the_seed_of_the_author() -> None:
    random.seed(7)
    first = new_id()
    random.seed(7)
    assert new_id() != first


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_makes_other_ids_than_its_parent() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, new_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 36).decode() != new_id()
    os.close(reader)
    os.close(writer)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_what_starts_over_in_two_forked_processes_makes_different_ids_there() -> None:
    class Owner:
        def start_over(self) -> None:
            self.name = new_id()

    owner = Owner()
    start_over_after_fork(owner)
    reader, writer = os.pipe()
    assert went_well(*(fork(lambda: os.write(writer, owner.name.encode()) == 36) for _ in range(2)))
    both = os.read(reader, 72).decode()
    assert both[:36] != both[36:]
    os.close(reader)
    os.close(writer)
