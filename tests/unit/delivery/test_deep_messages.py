"""Lists within lists: what a store takes in can be kept when it fails, and what others wrote deeper holds up nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa

from homing.errors import UnstorableContentError
from homing.json_values import DEEPEST, DEEPEST_PART
from homing.ledger import FAILED, Entry
from homing.stores.sql.database import with_driver
from tests.unit.delivery.conftest import Pipeline, waiting

Answer = TypeVar("Answer")


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def deep_in_calls(work: Callable[[], Answer], calls: int = 200) -> Answer:
    """Does the work as somebody who is in so many calls already, such as a task of Airflow."""
    return work() if not calls else deep_in_calls(work, calls - 1)


def test_the_deepest_message_that_is_taken_in_can_be_kept_when_it_fails(pipeline: Pipeline) -> None:
    headers = {"trace": nested(DEEPEST_PART - 1)}
    pipeline.stores.store.store(nested(DEEPEST), id="deep", headers=headers)
    pipeline.stores.store.store("neighbour", id="neighbour")
    batch = pipeline.batch("run")
    assert batch.claim(2) == 2
    error = {"type": "ValueError", "message": "no good", "handler": "crm", "stack": "", "attempt": 1}
    snapshot = {"content": nested(DEEPEST - 1), "headers": headers}
    for message_id in ("deep", "neighbour"):
        entry = Entry(pipeline.ref(message_id), "crm", FAILED, error=error, snapshot=snapshot, batch_id="run")
        pipeline.record("run", entry)

    settlement = deep_in_calls(batch.settle)

    assert settlement.failed == 2
    assert waiting(pipeline.stores) == {"deep", "neighbour"}


@pytest.mark.parametrize("levels", [DEEPEST + 1, 490])
def test_what_is_nested_deeper_is_not_taken_in(pipeline: Pipeline, levels: int) -> None:
    with pytest.raises(UnstorableContentError, match=f"nested too deeply, in more than {DEEPEST} levels"):
        pipeline.stores.store.store(nested(levels))
    with pytest.raises(UnstorableContentError, match=f"headers is nested too deeply, in more than {DEEPEST_PART}"):
        pipeline.stores.store.store(1, headers={"trace": nested(levels)})


@pytest.mark.parametrize("levels", [DEEPEST + 1, 400, 900])
def test_what_plain_sql_wrote_deeper_fails_alone(pipeline: Pipeline, database: str, levels: int) -> None:
    pipeline.stores.store.store(["deep"], id="deep")
    pipeline.stores.store.store("neighbour", id="neighbour")
    engine = sa.create_engine(with_driver(sa.make_url(database)))
    with engine.begin() as connection:
        body = "[" * levels + "]" * levels
        connection.execute(sa.text("update homing_orders set message = :body where id = 'deep'"), {"body": body})
    engine.dispose()
    batch = pipeline.batch("run")
    assert batch.claim(2) == 2
    pipeline.failed("run", "deep", "crm")
    pipeline.failed("run", "neighbour", "crm")

    settlement = deep_in_calls(batch.settle)

    assert settlement.failed == 2
    assert waiting(pipeline.stores) == {"deep", "neighbour"}
