"""Finding what failed, and what was left behind, on every database."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from homing.delivery import Selection
from homing.delivery.failures import group, read_failures, select
from homing.errors import ConfigurationError
from tests.unit.delivery.conftest import Pipeline

EARLY, LATE = datetime(2026, 1, 1, tzinfo=timezone.utc), datetime(2027, 1, 1, tzinfo=timezone.utc)


def test_failures_are_selected_and_grouped_wherever_they_wait(pipeline: Pipeline) -> None:
    batch, (dead, waiting, delivered) = pipeline.claimed("run", 1, 2, 3)
    pipeline.delivered("run", delivered, "lake", "crm")
    for message_id in (dead, waiting):
        pipeline.failed("run", message_id, "crm")
    batch.settle()
    replay = pipeline.batch("replay")
    replay.reclaim([dead])
    pipeline.failed("replay", dead, "crm", batch_id="run")
    replay.finish_replay()
    stores, now = pipeline.stores, datetime.now(timezone.utc)

    assert {(each.message_id, each.dead) for each in read_failures(stores)} == {(dead, True), (waiting, False)}
    assert {each.message_id for each in select(stores, Selection(batch="run"))} == {dead, waiting}
    assert select(stores, Selection(ids=[delivered])) == []
    assert [each.message_id for each in select(stores, Selection(limit=1))] == [dead]
    assert select(stores, Selection(until=now - timedelta(hours=1))) == []
    (only,) = group(read_failures(stores))
    assert (only.name, only.failures, only.dead) == ("crm: ValueError", 2, 1)


def test_a_batch_that_was_left_behind_is_found_once_its_lease_has_ended(pipeline: Pipeline) -> None:
    store = pipeline.stores.store
    _, (message_id,) = pipeline.claimed("held", 1)
    store.store(2, id="unclaimed")
    store.lease_batch(1, batch_id="short", lease=0.001)

    assert store.view.expired_batches(3600) == []
    assert store.view.expired_batches(0) == ["short"]
    assert store.view.batches_of([message_id, "unknown"]) == {message_id: "held"}
    assert {"orders"} <= set(store.access.siblings())


@pytest.mark.parametrize("arguments", [{"limit": 0}, {"since": LATE, "until": EARLY}])
def test_a_selection_that_cannot_be_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        Selection(**arguments)  # type: ignore[arg-type]
