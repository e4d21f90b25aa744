"""Ids that are no texts, or that no ledger can hold: a dead letter with its reason, and no batch that is held up."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from homing.delivery import Batch, PipelineStores, open_pipeline_stores, run_audit
from homing.delivery.arrow.columns import STORED, to_batch
from homing.delivery.arrow.page import Page
from homing.delivery.failures import Failure, read_failures
from homing.failure import FAILURE_TYPE
from homing.spark.task import Task

MODULE = """
from homing import HandlerChain, destination

got = []


@destination
def crm(ctx):
    got.append(ctx.get_content())


chain = HandlerChain("orders", destinations_flow=crm)
"""


class World:
    """A pipeline over SQLite, run as the Spark jobs run it."""

    def __init__(self, stores: PipelineStores, url: str, got: list[Any]) -> None:
        self.stores, self.url, self.got = stores, url, got

    def write(self, *, into: str = "homing_orders", **columns: Any) -> None:
        names, values = ", ".join(columns), ", ".join(str(value) for value in columns.values())
        with sa.create_engine(self.url.partition("?")[0]).begin() as connection:
            connection.exec_driver_sql(f"insert into {into} ({names}) values ({values})")  # noqa: S608

    def batch(self, run_id: str) -> Batch:
        return Batch(self.stores, run_id, ["crm"], chain="orders")

    def run(self, batch: Batch) -> None:
        fence = self.stores.ledger.open_step(batch.run_id, "step", 600)
        task = Task("odd_ids_chain:chain", self.url, fence)
        assert batch.messages()
        for held in batch.held():
            stored = to_batch(held.store.batch_rows(held.lease), STORED)
            for _ in task.deliver("crm", task.process(iter([Page.of_batch(stored, copies=held.copies)]))):
                pass

    def failures(self) -> list[Failure]:
        return list(read_failures(self.stores))

    def letter(self) -> Any:
        (letter,) = self.stores.dead_letters.browse(10)
        return letter


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "odd_ids_chain.py").write_text(MODULE)
    import odd_ids_chain  # type: ignore[import-not-found]

    url = f"sqlite:///{tmp_path}/orders.db?store=orders"
    with open_pipeline_stores(url, f"sqlite:///{tmp_path}/orders.db?store=dead") as stores:
        stores.store.store("good")
        yield World(stores, url, odd_ids_chain.got)
    del sys.modules["odd_ids_chain"]


@pytest.mark.parametrize(
    "odd", ["x'ff'", "x'41'", "cast(x'636166e9' as text)", "cast(x'eda080' as text)", "'a' || char(0) || 'b'"]
)
def test_a_message_whose_id_is_no_text_is_dead_lettered_and_can_be_replayed(world: World, odd: str) -> None:
    world.write(id=odd, message="'odd'")
    batch = world.batch("run")

    assert batch.claim(10) == 1
    world.run(batch)

    assert batch.settle().acknowledged == 1
    assert world.got == ["good"]
    assert (world.letter().dead_letter_reason, "not text: X'" in world.letter().dead_letter_description) == (
        "unreadable",
        True,
    )
    assert [failure.dead for failure in world.failures()] == [True]
    replay = world.batch("replay")
    assert replay.reclaim(replay.unfinished("run")) == 1
    world.run(replay)
    assert replay.finish_replay().acknowledged == 1
    assert world.got == ["good", "odd"]
    assert run_audit(world.stores, ["crm"]).balanced


def test_an_id_of_other_letters_is_a_text_like_any_other(world: World) -> None:
    world.write(id="'größe-7-愛'", message="'odd'")
    batch = world.batch("run")
    assert batch.claim(10) == 2
    world.run(batch)
    assert batch.settle().acknowledged == 2


ODD_MESSAGES = [
    {"id": 7},
    {"id": None},
    {"id": ["x"]},
    {"id": ""},
    {"id": "i" * 300},
    {"id": "a\0b"},
    {},
    {"id": "x", "sequence_number": "seven"},
    {"id": "x", "sequence_number": 2**70},
]


@pytest.mark.parametrize("odd", ODD_MESSAGES, ids=[str(odd)[:40] for odd in ODD_MESSAGES])
def test_a_failure_record_of_an_odd_message_is_dead_lettered_with_what_is_wrong(
    world: World, odd: dict[str, Any]
) -> None:
    error = {"type": "E", "handler": "h", "message": "m"}
    record = {
        "homing": "failure", "version": 1, "chain": "orders", "message": {**odd, "encoding": "json", "body": "1"},
        "properties": {}, "errors": {"": error}, "done": {},
    }  # fmt: skip
    body = json.dumps(record).replace("'", "''")
    said = {"id": "'odd'", "message": f"'{body}'", "encoding": "'json'", "content_type": f"'{FAILURE_TYPE}'"}
    world.stores.failures.count()  # which makes the table
    world.write(into="homing_orders_failures", **said)

    replay = world.batch("replay")
    assert replay.reclaim(["odd"]) == 1
    world.run(replay)
    assert replay.finish_replay().dead_lettered == 1
    assert world.got == []
    letter = world.letter()
    assert letter.dead_letter_reason == "homing.errors.UnreadableMessageError"
    assert "message odd has the content type of a failure record and is not one" in letter.dead_letter_description
    assert [(failure.message_id, failure.dead) for failure in world.failures()] == [("odd", True)]
    assert run_audit(world.stores, ["crm"]).balanced


def test_an_executor_takes_a_forged_record_in_the_message_store_for_a_message(world: World) -> None:
    error = {"type": "E", "handler": "h", "message": "m"}
    record = {
        "homing": "failure", "version": 1, "chain": "orders", "properties": {}, "errors": {"": error}, "done": {},
        "message": {"id": "somebody else's", "sequence_number": 1, "encoding": "json", "body": "1"},
    }  # fmt: skip
    body = json.dumps(record).replace("'", "''")
    world.write(id="'odd'", message=f"'{body}'", encoding="'json'", content_type=f"'{FAILURE_TYPE}'")
    batch = world.batch("run")

    assert batch.claim(10) == 2
    world.run(batch)

    assert batch.settle().acknowledged == 2
    assert world.got == ["good", record]
    assert [ref.id for ref in world.stores.ledger.known(["odd", "somebody else's"])] == ["odd"]
