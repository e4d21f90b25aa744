"""An id that comes again while the first message of that id is still on its way: neither takes the other's place."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from homing import Drop, HandlerChain, Message, MessageContext, destination, transformer
from homing.delivery import Batch, PipelineStores, open_pipeline_stores
from homing.delivery.local_replay import replay_in_process
from homing.ledger import DELIVERED, DROPPED, FAILED, Entry
from homing.message import ACKNOWLEDGED, MessageRef
from homing.pipeline import Handler
from homing.stores.sql import SqlStore


@destination
def lake(_content: object) -> None:
    raise ConnectionError("away")


class World:
    """A pipeline whose store forgets ids at once, and whose destination is away."""

    def __init__(self, stores: PipelineStores) -> None:
        self.stores = stores

    def batch(self, run_id: str) -> Batch:
        return Batch(self.stores, run_id, ["lake"], chain="orders")

    def claimed(self, run_id: str, content: str) -> Batch:
        time.sleep(0.02)  # the window is over
        self.stores.store.store(Message("x", content))
        batch = self.batch(run_id)
        assert batch.claim(10) == 1
        return batch

    def run(self, batch: Batch, *processors: Handler) -> Batch:
        replay_in_process(self.stores, batch, HandlerChain("orders", source_flow=processors, destinations_flow=[lake]))
        return batch


def contents(store: SqlStore) -> list[object]:
    return [message.content["message"]["body"] for message in store.browse(9) if message.state != ACKNOWLEDGED]


@pytest.fixture
def world(database: str) -> Iterator[World]:
    url = f"{database}?store=orders&duplicate_window=0.01"
    with open_pipeline_stores(url, f"{database}?store=orders_dead") as stores:
        yield World(stores)


def test_a_second_failure_has_its_own_place_beside_the_first(world: World) -> None:
    world.run(world.claimed("run 1", "v1")).settle()

    settled = world.run(world.claimed("run 2", "v2")).settle()

    assert (settled.failed, settled.released) == (1, 0)
    assert contents(world.stores.failures) == ["v1", "v2"]
    assert world.stores.store.count()["available"] == 0


def test_a_run_that_claims_again_keeps_a_message_whose_id_waits_in_the_failure_store(world: World) -> None:
    world.run(world.claimed("run 1", "v1")).settle()
    world.claimed("run 2", "v2")

    assert world.batch("run 2").claim(10) == 1


def test_a_second_dead_letter_waits_in_the_failure_store(world: World) -> None:
    world.run(world.claimed("run 1", "v1")).settle()
    replay = world.batch("replay 1")
    replay.reclaim(["x"])
    world.run(replay).finish_replay()
    assert contents(world.stores.dead_letters) == ["v1"]
    world.run(world.claimed("run 2", "v2")).settle()
    assert contents(world.stores.failures) == ["v2"]

    world.batch("replay 2").reclaim(["x"])

    assert contents(world.stores.failures) == ["v2"]


def test_what_is_recorded_of_an_earlier_message_says_nothing_of_a_later_one(world: World) -> None:
    ledger = world.stores.ledger
    fence = ledger.open_step("run", "step", 60)
    earlier, later = MessageRef("a" * 16, 4, "x"), MessageRef("a" * 16, 5, "x")
    ledger.record(fence, [Entry(later, "lake", FAILED, at=1, batch_id="b")])

    ledger.record(fence, [Entry(earlier, "lake", DELIVERED, at=2, batch_id="b")])

    states = {ref: flows["lake"].state for ref, flows in ledger.known(["x"]).items()}
    assert states == {earlier: DELIVERED, later: FAILED}
    assert ledger.entries(["x"])["x"]["lake"].ref == later, "people see the last one"


@pytest.mark.parametrize("dead", [False, True])
def test_a_failed_message_is_replayed_although_a_later_one_of_its_id_was_delivered(world: World, dead: bool) -> None:
    world.run(world.claimed("run 1", "v1")).settle()
    if dead:
        replay = world.batch("first replay")
        replay.reclaim(["x"])
        world.run(replay).finish_replay()
    reached: list[object] = []

    @destination(name="lake")
    def back_again(ctx: MessageContext) -> None:
        reached.append(ctx.get_content())

    working = HandlerChain("orders", destinations_flow=[back_again])
    later = world.claimed("run 2", "v2")
    replay_in_process(world.stores, later, working)
    later.settle()
    assert reached == ["v2"]

    replay = world.batch("replay")
    assert replay.reclaim(replay.unfinished("run 1")) == 1
    replay_in_process(world.stores, replay, working)
    settled = replay.finish_replay()

    assert (reached, settled.delivered) == (["v2", "v1"], 1)
    assert contents(world.stores.failures) == contents(world.stores.dead_letters) == []


def test_a_replay_holds_one_message_of_an_id_at_a_time_and_the_earlier_one_waits(world: World) -> None:
    world.run(world.claimed("run 1", "v1")).settle()
    replay = world.batch("replay 1")
    replay.reclaim(["x"])
    world.run(replay).finish_replay()
    world.run(world.claimed("run 2", "v2")).settle()

    both = world.batch("replay 2")

    assert both.reclaim(["x"]) == 1
    assert [head.ref.sequence for head in both.messages()] == [2]
    world.run(both).finish_replay()
    assert (contents(world.stores.failures), contents(world.stores.dead_letters)) == ([], ["v1", "v2"])


def test_a_batch_of_which_plain_sql_has_acknowledged_a_message_goes_on(world: World, database: str) -> None:
    world.stores.store.store_many([Message("x", 1), Message("y", 2)])
    assert world.batch("run").claim(10) == 2
    engine = sa.create_engine(database)
    with engine.begin() as connection:
        connection.exec_driver_sql("update homing_orders set time_acked = 1, time_next = null where id = 'x'")
    engine.dispose()

    assert world.batch("run").claim(10) == 1
    assert world.batch("run").settle().released == 1


def test_a_reason_that_is_no_unicode_drops_like_any_other(world: World) -> None:
    @transformer
    def refuse(_content: object) -> object:
        raise Drop("odd name: " + b"M\xfcller".decode("utf-8", "surrogateescape"))

    world.run(world.claimed("run", "v1"), refuse)

    (entry,) = world.stores.ledger.entries(["x"])["x"].values()
    assert entry.state == DROPPED
