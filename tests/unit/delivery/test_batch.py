"""A batch is settled so that every message is acknowledged, waits for its replay, is dead-lettered, or is released."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from homing.delivery import Batch, Settlement, open_pipeline_stores, run_audit
from homing.errors import ConfigurationError, LeaseLostError, StoreUnavailableError
from homing.failure import read_record
from homing.ledger import DELIVERED, DROPPED, FILTERED, PART, PROCESSED, SOURCE_FLOW, Entry
from tests.unit.delivery.conftest import FLOWS, Crash, Pipeline


def test_a_message_delivered_everywhere_is_acknowledged(pipeline: Pipeline) -> None:
    batch, (message_id,) = pipeline.claimed("run", {"n": 1})
    pipeline.delivered("run", message_id, *FLOWS)

    assert batch.settle() == Settlement(acknowledged=1)
    assert pipeline.stores.store.count()["acknowledged"] == 1


@pytest.mark.parametrize(
    ("outcome", "dropped"),
    [
        ([(SOURCE_FLOW, DROPPED)], 1),
        ([("lake", FILTERED), ("crm", DELIVERED)], 0),
        ([("lake", DROPPED), ("crm", FILTERED)], 1),
    ],
)
def test_a_message_its_authors_rules_are_done_with_is_acknowledged(
    pipeline: Pipeline, outcome: list[tuple[str, str]], dropped: int
) -> None:
    batch, (message_id,) = pipeline.claimed("run", {"n": 1})
    pipeline.record("run", *[Entry(pipeline.ref(message_id), flow, state, batch_id="run") for flow, state in outcome])

    assert batch.settle() == Settlement(acknowledged=1, dropped=dropped)


def test_a_message_that_failed_waits_in_the_failure_store_with_what_replay_needs(pipeline: Pipeline) -> None:
    batch, (message_id,) = pipeline.claimed("run", {"n": 1})
    pipeline.delivered("run", message_id, "lake")
    pipeline.failed("run", message_id, "crm")

    assert batch.settle() == Settlement(failed=1)
    assert batch.awaiting_replay() == 1
    assert pipeline.stores.store.count()["acknowledged"] == 1
    entry = pipeline.stores.failures.retrieve()
    assert entry is not None
    record = read_record(entry.content)
    assert (record.message.id, record.message.content) == (message_id, {"n": 1})
    assert record.done == {"lake": "ok"}
    assert record.errors["crm"]["message"] == "no good"
    assert record.batch_id == "run"


def test_a_message_nobody_got_to_is_released_and_claimed_again(pipeline: Pipeline) -> None:
    batch, _ = pipeline.claimed("run", {"n": 1})

    assert batch.settle() == Settlement(released=1)
    assert pipeline.batch("next run").claim(10) == 1


def test_a_message_with_one_destination_left_is_not_acknowledged(pipeline: Pipeline) -> None:
    batch, (message_id,) = pipeline.claimed("run", {"n": 1})
    pipeline.delivered("run", message_id, "lake")

    assert batch.settle() == Settlement(released=1)


def test_settling_twice_changes_nothing_more(pipeline: Pipeline) -> None:
    batch, (good, bad) = pipeline.claimed("run", 1, 2)
    pipeline.delivered("run", good, *FLOWS)
    pipeline.failed("run", bad, "crm")
    batch.settle()

    assert batch.settle() == Settlement()
    assert batch.awaiting_replay() == 1


def test_settling_takes_the_right_to_record_from_whatever_still_runs(pipeline: Pipeline) -> None:
    batch, (message_id,) = pipeline.claimed("run", 1)
    fence = pipeline.stores.ledger.open_step("run", "deliver.crm", 60)
    batch.settle()

    with pytest.raises(Exception, match="taken over"):
        pipeline.stores.ledger.record(fence, [Entry(pipeline.ref(message_id), "crm", DELIVERED, batch_id="run")])


def test_settling_ends_the_turn_of_every_task_that_still_runs(pipeline: Pipeline) -> None:
    batch, _ = pipeline.claimed("run", 1)
    turn = pipeline.stores.ledger.open_step("run", f"{PART}owner/1/0", 60)
    batch.settle()

    with pytest.raises(LeaseLostError):
        pipeline.stores.ledger.record(turn, [])


def test_a_replay_claims_what_failed_in_its_batch_and_acknowledges_what_it_delivers(
    pipeline: Pipeline,
) -> None:
    first, (message_id, other) = pipeline.claimed("run", 1, 2)
    pipeline.failed("run", message_id, "crm")
    pipeline.delivered("run", other, *FLOWS)
    first.settle()
    replay = pipeline.batch("replay")

    assert replay.reclaim(replay.unfinished("run")) == 1
    pipeline.delivered("replay", message_id, *FLOWS, batch_id="run")

    assert replay.acknowledge_complete() == 0
    assert sum(pipeline.stores.failures.count().values()) == 0
    assert replay.unfinished("run") == []


def test_a_replay_keeps_what_still_fails_for_its_next_try(pipeline: Pipeline) -> None:
    first, (message_id,) = pipeline.claimed("run", 1)
    pipeline.failed("run", message_id, "crm")
    first.settle()
    replay = pipeline.batch("replay")
    replay.reclaim([message_id])
    pipeline.failed("replay", message_id, "crm", batch_id="run")

    assert replay.acknowledge_complete() == 1
    assert pipeline.batch("another").reclaim([message_id]) == 0
    assert pipeline.batch("replay").reclaim([message_id]) == 1


def test_a_replay_that_is_used_up_dead_letters_with_the_reason(pipeline: Pipeline) -> None:
    first, (message_id,) = pipeline.claimed("run", {"n": 1})
    pipeline.failed("run", message_id, "crm")
    first.settle()
    replay = pipeline.batch("replay")
    replay.reclaim([message_id])
    pipeline.failed("replay", message_id, "crm", batch_id="run")

    assert replay.finish_replay() == Settlement(dead_lettered=1)
    assert replay.finish_replay() == Settlement()
    letter = pipeline.stores.dead_letters.retrieve()
    assert letter is not None
    assert (letter.id, letter.dead_letter_reason) == (f"orders/{pipeline.ref(message_id).name}", "ValueError")
    assert letter.dead_letter_description == "crm: no good"
    assert read_record(letter.content).message.content == {"n": 1}


def test_an_outage_is_not_a_poison_message(pipeline: Pipeline) -> None:
    first, (message_id,) = pipeline.claimed("run", {"n": 1})
    pipeline.failed("run", message_id, "crm")
    first.settle()
    replay = pipeline.batch("replay")
    replay.reclaim([message_id])
    # Spark never ran: nothing was recorded for the replay.

    assert replay.finish_replay() == Settlement(released=1)
    assert sum(pipeline.stores.dead_letters.count().values()) == 0
    assert pipeline.batch("another replay").reclaim([message_id]) == 1


def dead_lettered(pipeline: Pipeline) -> str:
    first, (message_id,) = pipeline.claimed("run", {"n": 1})
    pipeline.failed("run", message_id, "crm")
    first.settle()
    replay = pipeline.batch("replay")
    replay.reclaim([message_id])
    pipeline.failed("replay", message_id, "crm", batch_id="run")
    replay.finish_replay()
    return message_id


def test_a_dead_letter_is_replayed_where_it_lies_and_acknowledged_once_delivered(pipeline: Pipeline) -> None:
    message_id = dead_lettered(pipeline)
    replay = pipeline.batch("replay")

    assert replay.reclaim(replay.unfinished("run")) == 1
    pipeline.delivered("replay", message_id, *FLOWS, batch_id="run")
    assert replay.acknowledge_complete() == 0
    assert replay.finish_replay() == Settlement()

    assert sum(pipeline.stores.dead_letters.count().values()) == 0
    assert run_audit(pipeline.stores, FLOWS).total.delivered == 1


def test_a_dead_letter_whose_replay_fails_again_stays_a_dead_letter(pipeline: Pipeline) -> None:
    message_id = dead_lettered(pipeline)
    replay = pipeline.batch("replay")
    replay.reclaim(replay.unfinished("run"))
    pipeline.failed("replay", message_id, "crm", batch_id="run")

    assert replay.finish_replay() == Settlement(released=1)
    letter = f"orders/{pipeline.ref(message_id).name}"
    assert pipeline.stores.dead_letters.view.present([letter]) == {letter}
    assert replay.reclaim(replay.unfinished("run")) == 1


def test_a_cleared_first_pass_finds_its_own_failures_and_dead_letters_and_no_new_messages(
    pipeline: Pipeline,
) -> None:
    message_id = dead_lettered(pipeline)
    pipeline.stores.store.store("new")
    again = pipeline.batch("run")

    assert again.is_known()
    assert again.claim(100) == 1
    assert [held.store.name for held in again.held()] == ["orders_dead"]
    pipeline.delivered("run", message_id, *FLOWS)
    assert again.settle() == Settlement(acknowledged=1)


def test_a_source_flow_that_succeeds_at_last_leaves_nothing_unfinished(pipeline: Pipeline) -> None:
    first, (message_id,) = pipeline.claimed("run", 1)
    pipeline.failed("run", message_id, SOURCE_FLOW)
    first.settle()
    replay = pipeline.batch("replay")
    replay.reclaim([message_id])
    pipeline.record("replay", Entry(pipeline.ref(message_id), SOURCE_FLOW, PROCESSED, batch_id="run"))
    pipeline.delivered("replay", message_id, *FLOWS, batch_id="run")

    assert replay.acknowledge_complete() == 0
    assert replay.unfinished("run") == []


def test_an_unreadable_message_reaches_the_dead_letter_store_to_the_letter(pipeline: Pipeline) -> None:
    store = pipeline.stores.store
    batch, _ = pipeline.claimed("warm-up", "x")
    with sa.create_engine(store._url).begin() as connection:
        connection.execute(sa.text("insert into homing_orders (id, message, encoding) values ('u', '{oops', 'json')"))
    batch = pipeline.batch("run")
    batch.claim(10)
    pipeline.failed("run", "u", SOURCE_FLOW)
    batch.settle()
    replay = pipeline.batch("replay")
    replay.reclaim(["u"])
    pipeline.failed("replay", "u", SOURCE_FLOW, batch_id="run")
    replay.finish_replay()

    letter = pipeline.stores.dead_letters.retrieve()

    assert letter is not None
    assert letter.content["message"]["body"] == "{oops"
    assert letter.content["message"]["encoding"] == "json"


def test_what_crashed_every_consumer_is_brought_to_the_dead_letter_store(pipeline: Pipeline) -> None:
    store = pipeline.stores.store
    pipeline.claimed("warm-up", "x")
    with sa.create_engine(store._url).begin() as connection:
        connection.execute(
            sa.text("update homing_orders set time_next = 1, crashes = 4, batch_id = 'old' where message = 'x'")
        )

    assert pipeline.batch("run").claim(10) == 0

    letter = pipeline.stores.dead_letters.retrieve()
    assert letter is not None
    assert letter.dead_letter_reason == "crashed"
    assert run_audit(pipeline.stores, FLOWS).balanced


# -- crashes: what is durable right before and right after each acknowledgement ---------------------------------


def settle_with_failure(pipeline: Pipeline) -> str:
    _, (message_id,) = pipeline.claimed("run", {"n": 1})
    pipeline.failed("run", message_id, "crm")
    return message_id


@pytest.mark.parametrize(
    ("store", "method"),
    [("failures", "store_many"), ("store", "settle_batch")],
    ids=["before the copy", "between the copy and the acknowledgement"],
)
def test_a_settlement_that_dies_half_way_is_completed_by_the_next(
    pipeline: Pipeline, crash: Callable[[object, str], None], store: str, method: str
) -> None:
    message_id = settle_with_failure(pipeline)
    target = getattr(pipeline.stores, store)
    if method == "settle_batch":
        crash_on_second_call(target, method)
    else:
        crash(target, method)
    with pytest.raises(Crash):
        pipeline.batch("run").settle()
    assert run_audit(pipeline.stores, FLOWS).total.waiting == 1

    pipeline.batch("run").settle()

    assert pipeline.batch("run").awaiting_replay() == 1
    assert pipeline.stores.failures.count()["available"] == 1
    assert pipeline.stores.store.view.present([message_id]) == set()


def crash_on_second_call(store: object, method: str) -> None:
    """The first acknowledgement is of what is complete, the second of what was copied."""
    original, calls = getattr(store, method), []

    def die_later(*args: object, **kwargs: object) -> None:
        calls.append(args)
        if len(calls) == 2:
            setattr(store, method, original)
            raise Crash
        original(*args, **kwargs)

    setattr(store, method, die_later)


def test_a_dead_lettering_that_dies_before_its_acknowledgement_is_completed_and_counted_once(
    pipeline: Pipeline,
) -> None:
    message_id = settle_with_failure(pipeline)
    pipeline.batch("run").settle()
    replay = pipeline.batch("replay")
    replay.reclaim([message_id])
    pipeline.failed("replay", message_id, "crm", batch_id="run")
    crash_on_second_call(pipeline.stores.failures, "forget_batch")
    with pytest.raises(Crash):
        replay.finish_replay()
    books = run_audit(pipeline.stores, FLOWS)
    assert (books.total.dead_lettered, books.balanced) == (1, True)

    replay.finish_replay()

    assert pipeline.stores.dead_letters.count()["available"] == 1
    assert sum(pipeline.stores.failures.count().values()) == 0


def test_a_dead_letter_store_that_is_down_keeps_the_message_where_it_is(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    message_id = settle_with_failure(pipeline)
    pipeline.batch("run").settle()
    replay = pipeline.batch("replay")
    replay.reclaim([message_id])
    pipeline.failed("replay", message_id, "crm", batch_id="run")

    def down(*args: object, **kwargs: object) -> None:
        raise ConnectionError("down")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline.stores.dead_letters, "store_many", down)
        with pytest.raises(ConnectionError):
            replay.finish_replay()

    assert pipeline.stores.failures.count()["leased"] == 1


def test_a_run_cleared_after_a_settlement_that_died_holds_each_message_once(pipeline: Pipeline) -> None:
    settle_with_failure(pipeline)
    crash_on_second_call(pipeline.stores.store, "settle_batch")
    with pytest.raises(Crash):
        pipeline.batch("run").settle()

    again = pipeline.batch("run")

    assert again.claim(100) == 1
    assert [held.store.name for held in again.held()] == ["orders_failures"]


def test_a_message_whose_replay_never_came_is_found_as_stranded(pipeline: Pipeline) -> None:
    message_id = settle_with_failure(pipeline)
    pipeline.batch("run").settle()
    assert pipeline.batch("next").stranded() == []
    with pipeline.stores.failures._database._engine.begin() as connection:
        connection.execute(sa.text("update homing_orders_failures set time_next = 1"))

    assert pipeline.batch("next").stranded() == [pipeline.ref(message_id).name]


def test_however_many_are_stranded_all_are_found(pipeline: Pipeline) -> None:
    failures = pipeline.stores.failures
    failures.store_many(range(1100))
    with failures._database._engine.begin() as connection:
        connection.execute(sa.text("update homing_orders_failures set time_next = 1"))

    assert len(pipeline.batch("next").stranded()) == 1100


def test_what_was_put_off_is_not_stranded_and_can_still_be_replayed(pipeline: Pipeline) -> None:
    message_id = settle_with_failure(pipeline)
    pipeline.batch("run").settle()
    pipeline.batch("asking").put_off([message_id], seconds=60)

    assert pipeline.stores.failures.view.overdue(-10) == []
    assert pipeline.batch("replay").reclaim([message_id]) == 1


def test_a_failure_that_is_not_to_be_replayed_becomes_a_dead_letter_with_its_own_reason(pipeline: Pipeline) -> None:
    message_id = settle_with_failure(pipeline)
    pipeline.batch("run").settle()
    pipeline.batch("asking").put_off([message_id], seconds=60)

    assert pipeline.batch("asking").reject([message_id]) == Settlement(dead_lettered=1)

    assert [letter.dead_letter_reason for letter in pipeline.stores.dead_letters.browse()] == ["ValueError"]
    assert run_audit(pipeline.stores, FLOWS).balanced
    assert pipeline.batch("by hand").reclaim([message_id]) == 1


# -- ids that come again, and stores that are shared ------------------------------------------------------------


def test_what_was_delivered_in_an_earlier_life_of_an_id_does_not_count_for_its_next(pipeline: Pipeline) -> None:
    store = pipeline.stores.store
    store.store("first", id="m")
    batch, first = pipeline.batch("run"), pipeline.ref("m")
    batch.claim(1)
    fence = pipeline.stores.ledger.open_step("run", "step", 60)
    pipeline.stores.ledger.record(fence, [Entry(first, flow, DELIVERED, batch_id="run") for flow in FLOWS])
    assert batch.settle() == Settlement(acknowledged=1)
    assert store.purge(0) == 1
    store.store("second", id="m")
    again = pipeline.batch("next run")
    again.claim(1)

    assert again.settle() == Settlement(released=1)


def test_two_pipelines_may_share_a_dead_letter_store_and_their_messages_ids(pipeline: Pipeline) -> None:
    orders = pipeline.stores
    invoices = replace(
        orders, store=orders.store.sibling("invoices"), failures=orders.store.sibling("invoices_failures")
    )
    invoices = replace(invoices, ledger=invoices.store.ledger())
    for stores in (orders, invoices):
        stores.store.store(stores.store.name, id="1")
        here = Pipeline(stores)
        here.batch("run").claim(1)
        here.failed("run", "1", "crm")
        here.batch("run").settle()
        here.batch("replay").reclaim(["1"])
        here.failed("replay", "1", "crm", batch_id="run")
        assert here.batch("replay").finish_replay() == Settlement(dead_lettered=1)

    letters = {f"{stores.store.name}/{Pipeline(stores).ref('1').name}" for stores in (orders, invoices)}
    assert {row[0] for row in orders.dead_letters.view.states()} == letters
    again = Pipeline(invoices).batch("replay")
    assert again.reclaim(["1"]) == 1
    assert [head.message_id for head in again.messages()] == ["1"]
    assert run_audit(orders, FLOWS).total.dead_lettered == 1


def test_a_dead_letter_store_that_is_away_does_not_hold_up_good_messages(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: object, **kwargs: object) -> None:
        raise StoreUnavailableError("away")

    for method in ("lease_batch", "held_batch", "knows_batch"):
        monkeypatch.setattr(pipeline.stores.dead_letters, method, away)
    monkeypatch.setattr(pipeline.stores.dead_letters.view, "present", away)
    batch, (message_id,) = pipeline.claimed("run", 1)
    assert batch.reclaim() == 1
    pipeline.delivered("run", message_id, *FLOWS)

    assert batch.settle() == Settlement(acknowledged=1)


def test_a_claim_does_not_depend_on_where_the_dead_are_moved_to(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = pipeline.stores.store
    store.store("poison")
    store.dead_letter(store.claim(1)[0], reason="crashed")

    def away(*args: object, **kwargs: object) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(pipeline.stores.dead_letters, "store_many", away)

    pipeline.claimed("run", 1)
    assert store.count()["dead"] == 1


@pytest.mark.parametrize("flows", [(), (SOURCE_FLOW,)])
def test_a_source_flow_that_succeeded_completes_no_message(pipeline: Pipeline, flows: tuple[str, ...]) -> None:
    _, (message_id,) = pipeline.claimed("run", 1)
    pipeline.record("run", Entry(pipeline.ref(message_id), SOURCE_FLOW, PROCESSED, batch_id="run"))

    assert Batch(pipeline.stores, "run", flows).settle() == Settlement(released=1)


def test_a_run_that_comes_late_to_its_own_batch_is_no_crash_of_its_messages(pipeline: Pipeline) -> None:
    batch, _ = pipeline.claimed("run", 1, 2)
    for _ in range(7):
        with pipeline.stores.store._database._engine.begin() as connection:
            connection.execute(sa.text("update homing_orders set time_next = 1"))
        assert batch.reclaim() == 2

    assert batch.settle() == Settlement(released=2)


def test_a_replay_that_died_too_often_is_dead_lettered(pipeline: Pipeline) -> None:
    settle_with_failure(pipeline)
    pipeline.batch("run").settle()
    with pipeline.stores.failures._database._engine.begin() as connection:
        connection.execute(
            sa.text("update homing_orders_failures set time_next = 1, crashes = 4, lock_token = 't', batch_id = 'old'")
        )
    replay = pipeline.batch("replay")
    assert replay.reclaim(replay.unfinished("run")) == 0

    replay.finish_replay()

    assert pipeline.stores.dead_letters.count()["available"] == 1
    assert run_audit(pipeline.stores, FLOWS).total.dead_lettered == 1


def test_a_store_cannot_be_its_own_dead_letter_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    for name in ("orders", "orders_failures"):
        with pytest.raises(ConfigurationError, match="name of its own"):
            open_pipeline_stores(f"{url}?store=orders", f"{url}?store={name}").__enter__()


def test_a_rule_that_drops_a_message_in_its_replay_ends_it(pipeline: Pipeline) -> None:
    first, (message_id,) = pipeline.claimed("run", 1)
    pipeline.failed("run", message_id, SOURCE_FLOW)
    first.settle()
    replay = pipeline.batch("replay")
    replay.reclaim([message_id])
    pipeline.record("replay", Entry(pipeline.ref(message_id), SOURCE_FLOW, PROCESSED, batch_id="run"))
    pipeline.delivered("replay", message_id, "lake", batch_id="run")
    pipeline.failed("replay", message_id, "crm", batch_id="run")
    assert replay.acknowledge_complete() == 1
    pipeline.record("replay", Entry(pipeline.ref(message_id), SOURCE_FLOW, DROPPED, batch_id="run"))

    assert replay.acknowledge_complete() == 0
    books = run_audit(pipeline.stores, FLOWS)
    assert (books.balanced, books.total.delivered, books.destinations["crm"].dropped) == (True, 1, 1)
