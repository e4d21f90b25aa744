"""The engine: the same chain over DataFrames, exact about every message."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from homing.delivery import Settlement, run_audit
from homing.delivery.failures import group, read_failures
from homing.errors import LeaseLostError, WorkDirError
from homing.failure import WORKER_CRASH, read_record
from homing.ledger import DELIVERED, DROPPED, FAILED, FILTERED, SOURCE_FLOW
from homing.message import Message
from homing.spark.dataframe_handlers import RowCounter
from homing.spark.engine import Engine
from homing.spark.jobs import survive_crashes
from tests.spark.conftest import FLOWS, Numbers, delivered


def run_all(numbers: Numbers, run_id: str) -> None:
    numbers.run_all(numbers.batch(run_id))


def test_a_batch_goes_through_the_chain_and_is_delivered(numbers: Numbers, output: Path) -> None:
    batch = numbers.claim("run", {"n": 1}, {"n": 2}, {"n": 3, "drop": True}, {"n": 4, "drop_late": True})

    run_all(numbers, "run")

    assert delivered(output, "lake") == [(1, 2, "numbered"), (2, 4, "numbered")]
    assert delivered(output, "crm") == [(2, 4, "numbered")]
    assert numbers.states(SOURCE_FLOW, "lake", "crm") == {
        SOURCE_FLOW: {DROPPED},
        "lake": {DELIVERED},
        "crm": {DELIVERED, FILTERED},
    }
    assert batch.settle() == Settlement(acknowledged=4, dropped=2)
    assert run_audit(numbers.stores, FLOWS).balanced


def test_what_spark_shows_of_a_job_has_no_store_url_in_it(numbers: Numbers) -> None:
    batch = numbers.claim("run", {"n": 1})

    engine = numbers.engine(batch, "process")
    plan = engine._source_flow(engine._read(batch.held(), None), RowCounter())._jdf.queryExecution().toString()

    assert "MapInArrow" in plan
    assert "sqlite" not in plan
    shown = numbers.spark.sparkContext.getConf().toDebugString()
    assert "sqlite" not in shown


def test_a_message_that_fails_fails_alone(numbers: Numbers, output: Path) -> None:
    batch = numbers.claim("run", {"n": 0}, {"n": 2, "fail": "crm"}, {"n": 4, "fail": "source"}, {"n": 6})

    run_all(numbers, "run")

    assert [n for n, _, _ in delivered(output, "lake")] == [0, 2, 6]
    assert [n for n, _, _ in delivered(output, "crm")] == [0, 6]
    settlement = batch.settle()
    assert (settlement.acknowledged, settlement.failed) == (2, 2)


def test_a_failure_says_which_handler_and_why_and_shows_the_state_at_that_point(numbers: Numbers) -> None:
    numbers.claim("run", {"n": 2, "fail": "crm"})
    run_all(numbers, "run")
    ((_, _, message_id),) = numbers.stores.ledger.unfinished("run")

    entry = numbers.stores.ledger.entries([message_id])[message_id]["crm"]

    assert entry.state == FAILED
    assert entry.error is not None
    assert (entry.error["handler"], entry.error["type"]) == ("crm", "ConnectionError")
    assert "crm is down" in entry.error["message"]
    assert "spark_chain.py" in entry.error["stack"]
    assert entry.snapshot is not None
    assert entry.snapshot["content"]["doubled"] == 4


def test_headers_a_processor_changed_reach_the_destinations_and_not_the_failure_record(numbers: Numbers) -> None:
    store = numbers.stores.store
    wanted = [
        ("stamped", {"n": 0, "stamp": "a"}),
        ("plain", {"n": 2}),
        ("failed", {"n": 4, "stamp": "b", "fail": "crm"}),
    ]
    store.store_many([Message(name, content, headers={"plain": name}) for name, content in wanted])
    batch = numbers.batch("run")
    assert batch.claim(10) == 3

    run_all(numbers, "run")

    known = numbers.stores.ledger.entries(["stamped", "plain", "failed"])
    assert {name: entries["lake"].result for name, entries in known.items()} == {
        "stamped": "lake took 0 stamp=a",
        "plain": "lake took 2 plain=plain",
        "failed": "lake took 4 stamp=b",
    }
    snapshot = known["failed"]["crm"].snapshot
    assert snapshot is not None
    assert snapshot["headers"] == {"stamp": "b"}
    assert batch.settle().failed == 1
    (copy,) = numbers.stores.failures.browse(10)
    assert read_record(copy.content).message.headers == {"plain": "failed"}


def test_the_error_of_a_destinations_own_processor_names_the_destination(numbers: Numbers) -> None:
    batch = numbers.claim("run", {"n": 2, "fail": "even"})
    run_all(numbers, "run")
    ((_, _, message_id),) = numbers.stores.ledger.unfinished("run")

    error = numbers.stores.ledger.entries([message_id])[message_id]["crm"].error

    assert error is not None
    assert error["handler"] == "even of crm"
    batch.settle()
    (group_,) = group(read_failures(numbers.stores))
    assert group_.name == "even of crm: ValueError"


def test_a_replay_delivers_only_what_is_missing(numbers: Numbers, output: Path) -> None:
    first = numbers.claim("run", {"n": 0}, {"n": 2, "fail": "crm"}, {"n": 4, "fail": "source"})
    run_all(numbers, "run")
    first.settle()
    (output / "mended").touch()
    replay = numbers.batch("replay")
    replay.reclaim(replay.unfinished("run"))

    numbers.engine(replay, "replay").replay()

    assert replay.acknowledge_complete() == 0
    assert [n for n, _, _ in delivered(output, "lake")] == [0, 2, 4]
    assert [n for n, _, _ in delivered(output, "crm")] == [0, 2, 4]
    books = run_audit(numbers.stores, FLOWS)
    assert (books.total.delivered, books.total.waiting, books.total.duplicates) == (3, 0, 0)


def seconds_between_deliveries(numbers: Numbers, flow: str) -> float:
    """From the first to the last that the ledger has for this destination."""
    span = sa.text("select max(time_recorded) - min(time_recorded) from homing_numbers__ledger where flow = :flow")
    with sa.create_engine(numbers.stores.store._url).connect() as connection:
        return int(connection.execute(span, {"flow": flow}).scalar_one()) / 1e9


def test_a_replay_keeps_to_its_rate(numbers: Numbers, output: Path) -> None:
    numbers.claim("run", *[{"n": n} for n in range(9)])
    batch = numbers.batch("run")

    numbers.engine(batch, "replay").replay(rate=4)

    assert [n for n, _, _ in delivered(output, "lake")] == list(range(9))
    assert seconds_between_deliveries(numbers, "lake") >= 2.0 - 0.05


def test_a_dataframe_destination_gets_a_replay_in_slices_that_keep_to_the_rate(natively: Numbers) -> None:
    batch = natively.claim("run", *[{"n": n, "amount": "1"} for n in range(5)])

    natively.engine(batch, "replay").replay(rate=1)

    # Four seconds from permit to permit, less what the first delivery took longer than the last; without a rate all of
    # them are delivered at once.
    assert seconds_between_deliveries(natively, "lake") >= 2.5
    assert batch.settle().acknowledged == 5


def test_an_unreadable_message_fails_alone_with_its_reason(numbers: Numbers, output: Path) -> None:
    numbers.stores.store.store({"n": 1})
    with sa.create_engine(numbers.stores.store._url).begin() as connection:
        connection.execute(sa.text("insert into homing_numbers (id, message, encoding) values ('u', '{oops', 'json')"))
    batch = numbers.batch("run")
    assert batch.claim(10) == 2

    run_all(numbers, "run")

    assert [n for n, _, _ in delivered(output, "lake")] == [1]
    error = numbers.stores.ledger.entries(["u"])["u"][SOURCE_FLOW].error
    assert error is not None
    assert error["type"] == "homing.errors.UnreadableMessageError"


def test_running_a_step_again_delivers_nothing_twice(numbers: Numbers, output: Path) -> None:
    numbers.claim("run", *[{"n": n} for n in range(20)])

    run_all(numbers, "run")
    run_all(numbers, "run")

    assert [n for n, _, _ in delivered(output, "lake")] == list(range(20))
    assert run_audit(numbers.stores, FLOWS).total.duplicates == 0


def test_a_delivery_without_what_process_left_runs_the_source_flow_itself(numbers: Numbers, output: Path) -> None:
    batch = numbers.claim("run", {"n": 1}, {"n": 2})
    assert numbers.published("run") is None

    numbers.engine(batch, "deliver.lake").deliver("lake", numbers.work)

    assert [n for n, _, _ in delivered(output, "lake")] == [1, 2]


def test_of_a_forged_work_file_and_of_one_put_beside_nothing_is_delivered(
    numbers: Numbers, output: Path, tmp_path: Path
) -> None:
    batch = numbers.claim("run", {"n": 1}, {"n": 2})
    numbers.engine(batch, "process").process(numbers.work)
    files = [Path(name) for name in numbers.published("run") or ()]
    kept = {file: file.read_bytes() for file in files}
    numbers.claim("other", {"n": 3})
    numbers.engine(numbers.batch("other"), "process").process(numbers.work)
    theirs = [Path(name) for name in numbers.published("other") or ()]

    forged = max(files, key=lambda file: file.stat().st_size)
    for file in (forged, forged.with_name("part-beside.parquet")):
        shutil.copy(max(theirs, key=lambda other: other.stat().st_size), file)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    with pytest.raises(WorkDirError, match="is not what was left there"):
        numbers.engine(batch, "deliver.lake").deliver("lake", numbers.work)
    assert delivered(output, "lake") == []

    forged.write_bytes(kept[forged])
    numbers.engine(batch, "deliver.lake").deliver("lake", numbers.work)
    assert [n for n, _, _ in delivered(output, "lake")] == [1, 2]


def test_deliveries_are_recorded_as_they_happen_not_at_the_end(numbers: Numbers, output: Path) -> None:
    batch = numbers.claim("run", *[{"n": n, "exit": "lake" if n == 450 else ""} for n in range(500)])
    numbers.engine(batch, "process").process(numbers.work)

    with pytest.raises(Exception, match=r"(?i)python worker"):
        numbers.engine(batch, "deliver.lake").deliver("lake", numbers.work)

    sent = {n for n, _, _ in delivered(output, "lake")}
    ids = [message_id for message_id, _, _ in numbers.stores.store.view.states()]
    recorded = sum("lake" in flows for flows in numbers.stores.ledger.entries(ids).values())
    assert recorded >= 300
    # Two tasks ran, and each may have died with one chunk that it had not recorded yet.
    assert len(sent) - recorded < 2 * 100

    (output / "mended").touch()
    numbers.engine(batch, "deliver.lake").deliver("lake", numbers.work)

    assert {n for n, _, _ in delivered(output, "lake")} == set(range(500))


def test_whoever_lost_its_step_stops_delivering_and_records_nothing(numbers: Numbers, output: Path) -> None:
    batch = numbers.claim("run", *[{"n": n} for n in range(300)])
    orphan = numbers.engine(batch, "deliver.lake")
    numbers.engine(batch, "deliver.lake")  # the retried task takes the step over

    with pytest.raises(Exception, match="taken over"):
        orphan.deliver("lake", numbers.work)

    assert numbers.states("lake") == {"lake": set()}
    assert len(delivered(output, "lake")) <= 2 * 100


def test_a_process_that_was_given_up_does_not_publish_what_it_wrote(numbers: Numbers) -> None:
    batch = numbers.claim("run", {"n": 1}, {"n": 2})
    orphan = numbers.engine(batch, "process")
    current = numbers.engine(batch, "process")

    with pytest.raises(Exception, match="taken over"):
        orphan.process(numbers.work)
    assert numbers.published("run") is None

    assert current.process(numbers.work) == 2


def test_a_batch_whose_lease_ran_out_while_spark_started_is_no_wrong_set_up(numbers: Numbers) -> None:
    batch = numbers.claim("run", {"n": 1})
    late = numbers.engine(batch, "process")
    batch.settle()

    with pytest.raises(LeaseLostError, match="ran out while Spark started"):  # exit code 1: the task is retried
        late.process(numbers.work)


def test_what_an_earlier_process_left_is_delivered_only_as_far_as_the_run_holds_it(
    numbers: Numbers, output: Path
) -> None:
    batch = numbers.claim("run", {"n": 1}, {"n": 2})
    numbers.engine(batch, "process").process(numbers.work)
    (held,) = batch.held()
    first = next(held.store.batch_rows(held.lease))
    held.store.settle_batch(held.lease, [first["id"]], success=False)  # somebody else may claim it now

    numbers.engine(batch, "deliver.lake").deliver("lake", numbers.work)

    assert [n for n, _, _ in delivered(output, "lake")] == [2]


def test_a_row_whose_columns_hold_nonsense_fails_alone(numbers: Numbers, output: Path) -> None:
    numbers.stores.store.store({"n": 1})
    insert = "insert into homing_numbers (id, message, priority, subject) values ('x', 'text', 'high', x'ff')"
    with sa.create_engine(numbers.stores.store._url).begin() as connection:
        connection.execute(sa.text(insert))
    numbers.batch("run").claim(10)

    run_all(numbers, "run")

    assert [n for n, _, _ in delivered(output, "lake")] == [1]
    error = numbers.stores.ledger.entries(["x"])["x"][SOURCE_FLOW].error
    assert error is not None
    assert "priority" in error["message"]


def test_a_message_that_exhausts_the_memory_of_its_worker_fails_alone(numbers: Numbers, output: Path) -> None:
    batch = numbers.claim("run", *[{"n": n, "exhaust": "lake" if n == 4 else ""} for n in range(10)])

    run_all(numbers, "run")

    assert [n for n, _, _ in delivered(output, "lake")] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    settlement = batch.settle()
    assert (settlement.acknowledged, settlement.failed) == (9, 1)
    ((_, _, message_id),) = batch.unfinished("run")
    error = numbers.stores.ledger.entries([message_id])[message_id]["lake"].error
    assert error is not None
    assert error["type"] == "MemoryError"


@pytest.mark.parametrize("place", ["source", "lake"])
def test_a_message_that_kills_its_worker_is_found_and_the_rest_goes_on(
    numbers: Numbers, output: Path, place: str
) -> None:
    batch = numbers.claim("run", *[{"n": n, "exit": place if n in (3, 7) else ""} for n in range(10)])
    ledger = numbers.stores.ledger

    def step(name: str, work: Callable[[Engine], object]) -> None:
        survive_crashes(
            ledger, lambda: ledger.open_step("run", name, 600), lambda fence: work(numbers.at(batch, fence))
        )

    step("process", lambda engine: engine.process(numbers.work))
    for flow in FLOWS:
        step(f"deliver.{flow}", lambda engine, flow=flow: engine.deliver(flow, numbers.work))

    assert sorted({n for n, _, _ in delivered(output, "lake")}) == [0, 1, 2, 4, 5, 6, 8, 9]
    settlement = batch.settle()
    assert (settlement.acknowledged, settlement.failed) == (8, 2)
    failed = ledger.known([ref.id for ref in batch.unfinished("run")]).values()
    flow = SOURCE_FLOW if place == "source" else place
    assert {entries[flow].error["type"] for entries in failed if entries[flow].error} == {WORKER_CRASH}
