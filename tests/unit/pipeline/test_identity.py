"""Ids for messages that come without one."""

from __future__ import annotations

import os
import random
import uuid

import pytest

from homing.ids import new_id


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
