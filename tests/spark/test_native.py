"""Handlers that take whole DataFrames, mixed with others: exact about every message all the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession

from homing import Message
from homing.delivery import Batch, Settlement, crash_tracking, run_audit
from homing.failure import WORKER_CRASH
from homing.ledger import DELIVERED, DROPPED, FAILED, FILTERED, SOURCE_FLOW
from homing.pipeline import load_chain
from homing.spark import dataframe_flow
from homing.spark.bisection import Bisection
from tests.spark.conftest import Numbers, delivered, opened


def in_lake(numbers: Numbers, output: Path) -> list[int]:
    rows = numbers.spark.read.parquet(str(output / "lake")).select("message").collect()
    return sorted(json.loads(row["message"])["n"] for row in rows)


def in_archive(output: Path) -> list[int]:
    lines = [line for path in output.glob("archive/*.json") for line in path.read_text().splitlines()]
    return sorted(json.loads(json.loads(line)["message"])["n"] for line in lines)


def test_handlers_of_both_kinds_run_in_one_chain_and_every_message_is_accounted_for(
    natively: Numbers, output: Path
) -> None:
    kept = [{"n": n, "amount": f"{n}.5"} for n in (1, 2, 3, 4, 102, 103)]
    batch = natively.claim("run", *kept, {"n": 5, "amount": "1", "drop": True})

    natively.run_all(batch)

    assert in_lake(natively, output) == [1, 2, 3, 4, 102, 103]
    assert delivered(output, "crm") == [(2, 4, "doubled"), (4, 8, "doubled")]
    assert in_archive(output) == [2, 4]
    lake = natively.spark.read.parquet(str(output / "lake")).where("message like '%\"n\":2,%'").first()
    assert lake is not None
    assert json.loads(lake["message"]) == {"n": 2, "amount": "2.5", "cents": 250, "doubled": 4}
    ids = [message_id for message_id, _, _ in natively.stores.store.view.states()]
    entries = natively.stores.ledger.entries(ids).values()
    states = Counter((flow, entry.state) for found in entries for flow, entry in found.items())
    assert states == {
        (SOURCE_FLOW, DROPPED): 1,
        ("lake", DELIVERED): 6,
        ("crm", DELIVERED): 2,
        ("crm", FILTERED): 4,
        ("archive", DELIVERED): 2,
        ("archive", FILTERED): 4,
    }
    assert batch.settle() == Settlement(acknowledged=7, dropped=1)
    assert run_audit(natively.stores, natively.flows).balanced


def test_where_nothing_is_left_out_the_names_of_the_messages_are_not_asked_for(
    natively: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = natively.claim("run", *[{"n": n, "amount": "1"} for n in range(4)])
    monkeypatch.setattr(Batch, "messages", lambda _: pytest.fail("they take long to come by"))

    assert natively.engine(batch, "process").process(natively.work) == 4


@pytest.mark.parametrize("kept", [0, 1])
def test_messages_left_out_before_a_shuffle_are_dropped_be_they_all_of_them(spreading: Numbers, kept: int) -> None:
    dropped = [{"n": n, "drop": True} for n in range(4)]
    batch = spreading.claim("run", *dropped, *[{"n": 9}] * kept)

    spreading.run_all(batch)

    assert batch.settle() == Settlement(acknowledged=4 + kept, dropped=4)
    assert run_audit(spreading.stores, spreading.flows).balanced


@pytest.mark.parametrize(
    ("chain", "ended"), [("lost", Settlement(failed=3)), ("closed", Settlement(acknowledged=3, dropped=3))]
)
def test_nothing_is_left_by_a_transformer_that_fails_or_by_a_filter_that_drops(
    spark: SparkSession, tmp_path: Path, clean_output: Path, chain: str, ended: Settlement
) -> None:
    with opened(spark, tmp_path, f"native_chain:{chain}", "lake") as numbers:
        batch = numbers.claim("run", *[{"n": n} for n in range(3)])

        numbers.run_all(batch)

        assert batch.settle() == ended
        known = numbers.stores.ledger.known([ref.id for ref in batch.unfinished("run")])
        errors = [found[SOURCE_FLOW].error for found in known.values()]
        assert len(errors) == ended.failed
        assert all(error is not None and "'losing' was given 1 messages" in error["message"] for error in errors)


@pytest.mark.parametrize(
    "chain", ["renamed_by_a_filter", "renamed_by_a_transformer", "renamed_for_one", "renamed_for_all"]
)
def test_a_message_that_a_handler_returns_under_another_name_fails_with_that_reason_and_no_other_does(
    spark: SparkSession, tmp_path: Path, clean_output: Path, chain: str
) -> None:
    flow = "archive" if chain == "renamed_for_all" else "crm"
    kind = "transformer" if chain == "renamed_by_a_transformer" else "filter"
    blamed = f"{kind} 'changing_{kind}'"
    changed = ["id", "sequence", "table_id", "batch_id"]
    with opened(spark, tmp_path, f"native_chain:{chain}", flow) as numbers:
        batch = numbers.claim(
            "run", {"n": 0}, *[{"n": n, "change": name} for n, name in enumerate(changed, 1)], {"n": 6}
        )

        numbers.run_all(batch)

        failed = numbers.stores.ledger.known([ref.id for ref in batch.unfinished("run")])
        assert batch.settle() == Settlement(acknowledged=2, failed=len(changed))
        errors = [entry.error for found in failed.values() for entry in found.values() if entry.error is not None]
        assert len(errors) == len(changed)
        assert all(f"{blamed} returned a row that is none of the messages" in error["message"] for error in errors)
        assert numbers.states("", flow)[flow] >= {DELIVERED}
        reached = in_archive(clean_output) if flow == "archive" else [n for n, _, _ in delivered(clean_output, "crm")]
        assert reached == [0, 6]


def test_a_message_nobody_can_read_is_left_out_by_a_rule_that_does_not_look_into_it(spreading: Numbers) -> None:
    batch = spreading.claim("run", {"n": 1}, {"n": 2}, Message("odd", {"n": 1}, subject="x"))
    store = spreading.stores.store
    odd = store._table.update().where(store._table.c.id == "odd").values(priority=sa.literal_column("'no number'"))
    store._database.write(lambda connection: connection.execute(odd))

    spreading.run_all(batch)

    assert batch.settle() == Settlement(acknowledged=3, dropped=1)
    assert run_audit(spreading.stores, spreading.flows).balanced


def test_what_comes_to_the_batch_while_it_is_processed_is_left_out_by_no_rule(
    natively: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    natively.claim("before", {"n": 1, "amount": "a lot"})
    first = natively.batch("before")
    natively.engine(first, "process").process(natively.work)
    assert first.settle().failed == 1
    ((_, _, late),) = first.unfinished("before")
    batch = natively.claim("run", {"n": 2, "amount": "1"}, {"n": 3, "amount": "1", "drop": True})
    ids = dataframe_flow._ids

    def meanwhile(frame: DataFrame) -> Counter[str]:
        monkeypatch.setattr(dataframe_flow, "_ids", ids)
        natively.batch("run").reclaim([late])
        return ids(frame)

    monkeypatch.setattr(dataframe_flow, "_ids", meanwhile)
    assert natively.engine(batch, "process").process(natively.work) == 1

    entries = natively.stores.ledger.entries([late])
    assert entries[late][SOURCE_FLOW].state == FAILED
    assert batch.settle().dropped == 1


@pytest.mark.parametrize(
    ("setting", "befall"),
    [
        ("spark.sql.files.ignoreMissingFiles", Path.unlink),
        ("spark.sql.files.ignoreCorruptFiles", lambda file: file.write_bytes(b"not Parquet")),
    ],
    ids=["gone", "damaged"],
)
def test_messages_that_cannot_be_read_are_left_out_by_no_rule_though_spark_may_skip_files(
    natively: Numbers, monkeypatch: pytest.MonkeyPatch, setting: str, befall: Callable[[Path], object]
) -> None:
    batch = natively.claim("run", {"n": 2, "amount": "1"}, {"n": 4, "amount": "1"})
    natively.engine(batch, "process").process(natively.work)
    waiting = dataframe_flow.DataFrameFlow._waiting

    def meanwhile(self: dataframe_flow.DataFrameFlow, flow: str, processed: DataFrame) -> object:
        found = waiting(self, flow, processed)
        for file in Path(natively.work).rglob("*.parquet"):
            befall(file)
        return found

    monkeypatch.setattr(dataframe_flow.DataFrameFlow, "_waiting", meanwhile)
    natively.spark.conf.set(setting, "true")
    try:
        natively.engine(batch, "deliver.archive").deliver("archive", natively.work)
    finally:
        natively.spark.conf.unset(setting)

    assert natively.states("archive") == {"archive": {FAILED}}


def test_who_comes_after_a_crash_looks_at_small_parts_of_what_was_in_hand_as_a_whole(
    natively: Numbers, sizes: list[int]
) -> None:
    batch = natively.claim("run", *[{"n": n, "amount": "1"} for n in range(4)])
    first = natively.stores.ledger.open_step("run", "process", 600)
    natively.stores.ledger.suspect(first, crash_tracking.name_span(crash_tracking.Span()))

    fence = natively.stores.ledger.open_step("run", "process", 600)
    assert natively.at(batch, fence).process(natively.work) == 4

    assert sizes[:4] == [1, 1, 1, 1]


def test_a_message_that_was_held_before_is_looked_at_with_what_is_known_of_it(natively: Numbers) -> None:
    natively.claim("run", {"n": 1, "amount": "1"}).settle()
    batch = natively.batch("next run")
    assert batch.claim(1) == 1
    (part,) = batch.held()

    assert not batch.is_new(part)


def test_what_makes_a_dataframe_handler_fail_is_found_and_the_rest_goes_on(natively: Numbers, output: Path) -> None:
    good = [{"n": n, "amount": "1"} for n in range(8)]
    bad = [
        {"n": 20, "amount": "a lot"},
        {"n": 22, "amount": "1", "fail": "lost"},
        {"n": 24, "amount": "1", "fail": "doubled"},
        {"n": 26, "amount": "1", "fail": "archive"},
    ]
    batch = natively.claim("run", *good[:4], *bad, *good[4:])

    natively.run_all(batch)

    assert in_lake(natively, output) == [*range(8), 26]
    assert [n for n, _, _ in delivered(output, "crm")] == [0, 2, 4, 6, 26]
    assert in_archive(output) == [0, 2, 4, 6]
    settlement = batch.settle()
    assert (settlement.acknowledged, settlement.failed) == (8, 4)
    errors = {}
    for entries in natively.stores.ledger.known([ref.id for ref in batch.unfinished("run")]).values():
        for flow, entry in entries.items():
            if entry.state == FAILED:
                assert entry.error is not None
                errors[flow, entry.error["handler"]] = entry.error["message"]
    assert "a lot" in errors.pop((SOURCE_FLOW, "wanted or priced"))
    assert "one row for each" in errors.pop((SOURCE_FLOW, "priced"))
    assert errors.pop((SOURCE_FLOW, "doubled")) == "no"
    assert "takes none of these" in errors.pop(("archive", "even or archive"))
    assert not errors

    (output / "mended").touch()
    replay = natively.batch("replay")
    replay.reclaim(replay.unfinished("run"))
    natively.engine(replay, "replay").replay()

    assert replay.acknowledge_complete() == 3
    assert in_lake(natively, output) == [*range(8), 26]
    assert in_archive(output) == [0, 2, 4, 6, 26]


def test_the_error_of_a_destinations_own_processor_names_the_destination(natively: Numbers) -> None:
    batch = natively.claim("run", {"n": 2, "amount": "1", "fail": "small"})
    natively.run_all(batch)
    ((_, _, message_id),) = natively.stores.ledger.unfinished("run")
    entries = natively.stores.ledger.entries([message_id])[message_id]
    named = {flow: entry.error["handler"] for flow, entry in entries.items() if entry.error is not None}
    assert named == {"crm": "small of crm", "archive": "small of archive"}


def test_handlers_for_messages_run_once_the_culprits_are_found_and_what_kills_in_them_is_found_too(
    natively: Numbers, sizes: list[int]
) -> None:
    fails = {1: {"amount": "a lot"}, 3: {"fail": "exit"}}
    batch = natively.claim("run", *[{"n": n, "amount": "1", **fails.get(n, {})} for n in range(6)])

    assert natively.engine(batch, "process").process(natively.work) == 4

    known = natively.stores.ledger.known([head.message_id for head in batch.messages()])
    errors = [found[SOURCE_FLOW].error for found in known.values() if found[SOURCE_FLOW].state == FAILED]
    assert [error["type"] == WORKER_CRASH for error in errors if error].count(True) == 1
    assert len(errors) == 2
    assert sizes[0] == 6
    assert 5 in sizes, "all that passed the DataFrame handlers at once"


def test_what_a_driver_died_of_in_this_run_is_not_read_again_with_its_neighbours(natively: Numbers) -> None:
    batch = natively.claim("run", *[{"n": n, "amount": "1"} for n in range(3)])
    _, deadly, _ = sorted(batch.messages(), key=lambda head: head.message_id)
    first = natively.stores.ledger.open_step("run", "process", 600)
    natively.stores.ledger.suspect(first, crash_tracking.name_message(deadly.entry(SOURCE_FLOW, FAILED)))
    fence = natively.stores.ledger.open_step("run", "process", 600)
    assert crash_tracking.record_crash(natively.stores.ledger, fence) == deadly.message_id

    assert natively.at(batch, fence).process(natively.work) == 2


def test_what_could_not_be_tried_alone_is_released_and_fails_nobody(
    natively: Numbers, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataframe_flow, "Bisection", partial(Bisection, most_failures=5))
    poison = {1, 4, 7, 10}
    batch = natively.claim("run", *[{"n": n, "amount": "a lot" if n in poison else "1"} for n in range(12)])

    natively.run_all(batch)

    delivered_first = in_lake(natively, output)
    settlement = batch.settle()
    assert settlement.acknowledged == len(delivered_first)
    assert settlement.failed > 0
    assert settlement.released == 12 - settlement.acknowledged - settlement.failed > 0
    failed = natively.stores.ledger.known([ref.id for ref in batch.unfinished("run")])
    assert len(failed) == settlement.failed
    assert all("a lot" in (found[SOURCE_FLOW].error or {})["message"] for found in failed.values())

    monkeypatch.undo()
    again = natively.batch("next")
    assert again.claim(100) == settlement.released
    natively.run_all(again)

    assert again.settle().released == 0
    assert in_lake(natively, output) == sorted(set(range(12)) - poison)


def test_a_lake_adds_nothing_twice(natively: Numbers, output: Path) -> None:
    batch = natively.claim("001", *[{"n": n, "amount": "1"} for n in range(5)])
    natively.engine(batch, "process").process(natively.work)
    lake = load_chain(natively.pipeline.chain).flows[0].destination  # type: ignore[union-attr]
    parts = [str(path) for path in Path(natively.work).glob("*/processed-*/*")]
    processed = natively.spark.read.parquet(*parts)

    lake(processed.limit(2))  # and the job dies before it can say so
    natively.engine(batch, "deliver.lake").deliver("lake", natively.work)
    lake(processed)

    assert in_lake(natively, output) == [0, 1, 2, 3, 4]
    assert (output / "lake" / "batch_id=001").is_dir()
