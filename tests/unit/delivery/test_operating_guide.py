"""The SQL of the operating guide works on the tables as they are."""

from __future__ import annotations

import re
from pathlib import Path

import sqlalchemy as sa

from tests.unit.delivery.conftest import Pipeline

GUIDE = Path(__file__).parents[3] / "docs" / "operating.md"


def test_every_statement_of_the_guide_runs_and_finds_what_it_says(pipeline: Pipeline) -> None:
    batch, (message_id,) = pipeline.claimed("run", {"n": 1})
    pipeline.failed("run", message_id, "crm")
    batch.settle()
    replay = pipeline.batch("replay")
    replay.reclaim([message_id])
    pipeline.failed("replay", message_id, "crm", batch_id="run")
    replay.finish_replay()
    (block,) = re.findall(r"```sql\n(select.*?)```", GUIDE.read_text(), re.DOTALL)
    dead, ledger, update = [line.partition(";")[0] for line in block.splitlines()]

    engine = sa.create_engine(pipeline.stores.store._url)
    with engine.begin() as connection:
        assert list(connection.execute(sa.text(dead))) == [
            (f"orders/{pipeline.ref(message_id).name}", "ValueError", "crm: no good")
        ]
        assert list(connection.execute(sa.text(ledger))) == [("crm", "failed", 1)]
        assert connection.execute(sa.text(update)).rowcount == 0
    engine.dispose()


def test_a_message_rescheduled_by_sql_is_delivered_at_once(pipeline: Pipeline) -> None:
    store = pipeline.stores.store
    store.store("x", id="x")
    engine = sa.create_engine(store._url)
    with engine.begin() as connection:
        connection.execute(sa.text("update homing_orders set time_next = 9000000000000000000 where id = 'x'"))
    assert store.retrieve() is None
    (block,) = re.findall(r"```sql\n(select.*?)```", GUIDE.read_text(), re.DOTALL)
    with engine.begin() as connection:
        connection.execute(sa.text(block.splitlines()[2].partition(";")[0]))
    engine.dispose()

    assert store.retrieve() is not None
