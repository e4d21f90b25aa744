"""A dead-letter store whose database is only to be read from, as during a fail-over, holds up only its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from homing.delivery import PipelineStores, Settlement, open_pipeline_stores
from homing.errors import StoreUnavailableError
from tests.servers import PostgreSQL
from tests.unit.delivery.conftest import FLOWS, Pipeline, waiting

pytestmark = pytest.mark.services


class FailOver:
    """The database of the dead letters, which can be made read-only for a while."""

    def __init__(self, server: PostgreSQL) -> None:
        self.url = server.empty_database()
        self._name = sa.make_url(self.url).database
        self._engine = sa.create_engine(server.url, isolation_level="AUTOCOMMIT")

    @contextmanager
    def only_reading(self) -> Iterator[None]:
        self._set("on")
        yield
        self._set("off")

    def _set(self, how: str) -> None:
        with self._engine.connect() as connection:
            connection.exec_driver_sql(f"alter database {self._name} set default_transaction_read_only = {how}")
            # As a fail-over does: the connections there were are gone.
            connection.exec_driver_sql(
                f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{self._name}'"  # noqa: S608
            )
        self._engine.dispose()


@pytest.fixture
def fail_over(postgresql: PostgreSQL) -> FailOver:
    return FailOver(postgresql)


@pytest.fixture
def stores(postgresql: PostgreSQL, fail_over: FailOver) -> Iterator[PipelineStores]:
    store = postgresql.empty_database()
    with open_pipeline_stores(f"{store}?store=orders", f"{fail_over.url}?store=orders_dead") as stores:
        yield stores


def test_process_and_deliver_go_on_without_it(pipeline: Pipeline, fail_over: FailOver) -> None:
    with fail_over.only_reading():
        batch, (good, bad) = pipeline.claimed("run", 1, 2)
        assert batch.reclaim() == 2
        assert len(batch.held()) == 1
        pipeline.delivered("run", good, *FLOWS)
        pipeline.failed("run", bad, "crm")
        assert batch.acknowledge_complete() == 1
        assert batch.settle() == Settlement(failed=1)
        assert len(pipeline.stores.failures.view.present([pipeline.ref(bad).name])) == 1


def test_a_run_in_whose_middle_it_becomes_read_only_settles_everything_else(
    pipeline: Pipeline, fail_over: FailOver
) -> None:
    """The run holds a message in each of the stores when it happens."""
    _, (dead, failed) = pipeline.claimed("run", 1, 2)
    for one in (dead, failed):
        pipeline.failed("run", one, "crm")
    pipeline.batch("run").settle()
    pipeline.batch("rejecting").reject([dead])
    replay = pipeline.batch("replay")
    assert replay.reclaim([dead, failed]) == 2
    for one in (dead, failed):
        pipeline.delivered("replay", one, *FLOWS, batch_id="run")
    with fail_over.only_reading():
        assert [held.store.name for held in replay.held()] == ["orders_failures", "orders_dead"]
        assert replay.acknowledge_complete() == 0
        assert replay.settle() == Settlement()
        assert pipeline.stores.failures.view.present([pipeline.ref(failed).name]) == set()
        assert pipeline.stores.dead_letters.count()["leased"] == 1
    # And when it may be written again, the rest.
    assert replay.settle() == Settlement(acknowledged=1)
    assert sum(pipeline.stores.dead_letters.count().values()) == 0


def test_what_is_to_be_dead_lettered_waits_where_it_is(pipeline: Pipeline, fail_over: FailOver) -> None:
    _, (message_id,) = pipeline.claimed("run", 1)
    pipeline.failed("run", message_id, "crm")
    pipeline.batch("run").settle()
    replay = pipeline.batch("replay")
    replay.reclaim([message_id])
    pipeline.failed("replay", message_id, "crm", batch_id="run")
    with fail_over.only_reading():
        with pytest.raises(StoreUnavailableError, match="read-only"):
            replay.finish_replay()
        assert len(pipeline.stores.failures.view.present([pipeline.ref(message_id).name])) == 1
    assert replay.finish_replay() == Settlement(dead_lettered=1)
    assert pipeline.stores.dead_letters.count()["available"] == 1


def test_a_replay_that_died_once_is_counted_once_however_often_its_end_is_tried(
    pipeline: Pipeline, fail_over: FailOver
) -> None:
    _, (bad, innocent) = pipeline.claimed("run", "bad", "good")
    for one in (bad, innocent):
        pipeline.failed("run", one, "crm")
    pipeline.batch("run").settle()
    replay = pipeline.batch("replay")
    replay.reclaim([bad, innocent])
    pipeline.failed("replay", bad, "crm", batch_id="run")
    pipeline.stores.ledger.open_step("replay", "replay", 60)  # and is never heard of again
    with fail_over.only_reading():
        for _ in range(pipeline.stores.failures.properties.max_deliveries):
            with pytest.raises(StoreUnavailableError, match="read-only"):
                replay.finish_replay()

    assert replay.finish_replay() == Settlement(dead_lettered=1, released=1)
    (letter,) = pipeline.stores.dead_letters.browse(10)
    assert letter.content["message"]["id"] == bad
    assert waiting(pipeline.stores) == {innocent}
