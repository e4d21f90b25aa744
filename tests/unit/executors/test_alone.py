"""Small batches, worked on by one process without Spark: the same outcomes, and whoever comes next can go on."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from homing.delivery import Batch, PipelineStores, open_pipeline_stores, run_audit
from homing.delivery.arrow import parquet, steps
from homing.delivery.local_engine import LocalEngine
from homing.delivery.work_files import LocalFiles, WorkDir
from homing.failure import WORKER_CRASH, read_record
from homing.message import Message
from homing.spark import jobs, sessions
from homing.spark.jobs import DEAD_LETTER_STORE, STORE

MODULE = """
import os
import time
from homing import HandlerChain, destination, message_filter, transformer

mended = False
made = []


@message_filter
def wanted(order: dict) -> bool:
    return order["n"] != 0 or mended


@transformer
def doubled(order: dict) -> dict:
    if order["n"] == 1 and not mended:
        raise ValueError("one is no number")
    if order.get("kill"):
        os._exit(1)
    if order.get("wait"):
        open(order["wait"], "w").close()
        time.sleep(600)
    return {**order, "n": order["n"] * 2}


@destination
def lake(order: dict):
    made.append(("lake", order["n"]))


@destination
def crm(order: dict):
    if order["n"] == 4 and not mended:
        raise ConnectionError("down")
    made.append(("crm", order["n"]))


chain = HandlerChain("orders", source_flow=[wanted, doubled], destinations_flow=[lake, crm])
"""
FLOWS = ["lake", "crm"]


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    (tmp_path / "orders_alone.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("HOMING_STORE", f"sqlite:///{tmp_path}/orders.db?store=orders")
    monkeypatch.setenv("HOMING_DEAD_LETTER_STORE", f"sqlite:///{tmp_path}/orders.db?store=dead")
    monkeypatch.setattr(sessions, "open_session", lambda _: pytest.fail("Spark was started"))
    yield ["--chain", "orders_alone:chain", "--run-id", "run", "--without-spark"]
    sys.modules.pop("orders_alone", None)


@pytest.fixture
def stores(arguments: list[str]) -> Iterator[PipelineStores]:
    with open_pipeline_stores(STORE, DEAD_LETTER_STORE) as opened:
        yield opened


def claim(stores: PipelineStores, *contents: dict[str, object], run_id: str = "run") -> Batch:
    stores.store.store_many(contents)
    batch = Batch(stores, run_id, FLOWS, chain="orders")
    assert batch.claim(100) == len(contents)
    return batch


def made() -> Counter[tuple[str, int]]:
    import orders_alone  # type: ignore[import-not-found]

    return Counter(orders_alone.made)


def test_every_message_of_a_small_batch_comes_to_the_end_it_would_on_spark(
    arguments: list[str], stores: PipelineStores, tmp_path: Path
) -> None:
    batch = claim(stores, *({"n": n} for n in range(4)))
    work_dir = ["--work-dir", str(tmp_path / "work")]

    assert jobs.process_main([*arguments, *work_dir]) == 0
    for flow in FLOWS:
        assert jobs.deliver_main([*arguments, *work_dir, "--flow", flow]) == 0

    assert made() == {("lake", 4): 1, ("lake", 6): 1, ("crm", 6): 1}
    settled = batch.settle()
    assert (settled.acknowledged, settled.dropped, settled.failed) == (2, 1, 2)
    assert run_audit(stores, FLOWS).balanced


def test_headers_a_processor_changed_reach_the_destinations_and_an_own_processors_error_names_its_destination(
    arguments: list[str], stores: PipelineStores, tmp_path: Path
) -> None:
    module = MODULE.replace("order: dict) -> dict:", "order: dict, ctx: MessageContext) -> dict:")
    module = module.replace("import HandlerChain,", "import HandlerChain, MessageContext, message_filter as own,")
    module = module.replace("    return {**order,", '    ctx.set_header("stamp", order["n"])\n    return {**order,')
    module = module.replace("def lake(order: dict):", "def lake(order: dict, ctx: MessageContext):")
    module = module.replace('("lake", order["n"])', '("lake", tuple(sorted(ctx.get_headers().items())))')
    module = module.replace("[lake, crm]", "[lake, ([own(lambda order: 1 / 0, name='ratio')], crm)]")
    (tmp_path / "orders_alone.py").write_text(module)
    stores.store.store_many([Message("m", {"n": 3}, headers={"trace": "t"})])
    batch = Batch(stores, "run", FLOWS, chain="orders")
    assert batch.claim(10) == 1

    work_dir = ["--work-dir", str(tmp_path / "work")]
    assert jobs.process_main([*arguments, *work_dir]) == 0
    for flow in FLOWS:
        assert jobs.deliver_main([*arguments, *work_dir, "--flow", flow]) == 0

    assert list(made()) == [("lake", (("stamp", 3), ("trace", "t")))]
    assert batch.settle().failed == 1
    (copy,) = stores.failures.browse(10)
    record = read_record(copy.content)
    assert record.errors["crm"]["handler"] == "ratio of crm"
    assert record.message.headers == {"trace": "t"}


def test_a_delivery_whose_work_directory_is_gone_runs_the_source_flow_itself(
    arguments: list[str], stores: PipelineStores, tmp_path: Path
) -> None:
    claim(stores, {"n": 3})
    assert jobs.deliver_main([*arguments, "--work-dir", str(tmp_path / "work"), "--flow", "lake"]) == 0
    assert made() == {("lake", 6): 1}


def test_a_replay_skips_what_was_delivered_and_ends_with_one_while_a_message_fails(
    arguments: list[str], stores: PipelineStores
) -> None:
    claim(stores, {"n": 2}, {"n": 3})

    assert jobs.replay_main(arguments) == 1
    import orders_alone

    orders_alone.mended = True
    assert jobs.replay_main(arguments) == 0

    assert made() == {("lake", 4): 1, ("lake", 6): 1, ("crm", 4): 1, ("crm", 6): 1}
    assert stores.store.count()["acknowledged"] == 2


def test_what_a_message_that_kills_was_part_of_goes_on_without_it(
    arguments: list[str], stores: PipelineStores, tmp_path: Path
) -> None:
    batch = claim(stores, {"n": 2}, {"n": 3, "kill": True}, {"n": 5})
    main = "import sys; from homing.spark.jobs import process_main; sys.exit(process_main())"
    command = [sys.executable, "-c", main, *arguments, "--work-dir", str(tmp_path / "work")]

    assert subprocess.run(command, check=False).returncode == 1
    assert batch.is_open("process")
    assert WorkDir(str(tmp_path / "work"), LocalFiles(), stores.ledger).published("run") is None
    assert subprocess.run(command, check=False).returncode == 1  # one at a time by now, and it is known which
    assert subprocess.run(command, check=False).returncode == 0

    assert not batch.is_open("process")
    known = stores.ledger.known([head.message_id for head in batch.messages()])
    errors = [entry.error["type"] for entries in known.values() for entry in entries.values() if entry.error]
    assert errors == [WORKER_CRASH]
    assert jobs.deliver_main([*arguments, "--work-dir", str(tmp_path / "work"), "--flow", "lake"]) == 0
    assert made() == {("lake", 4): 1, ("lake", 10): 1}


def test_a_work_directory_that_is_away_for_many_runs_is_no_death_of_any_message(
    arguments: list[str], stores: PipelineStores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkDir, "new_output", lambda *_: "/dev/full")
    claim(stores, {"n": 2}, {"n": 3})
    for attempt in range(7):
        batch = Batch(stores, f"run {attempt}" if attempt else "run", FLOWS, chain="orders")
        assert batch.claim(10) == 2
        arguments[arguments.index("--run-id") + 1] = batch.run_id
        assert jobs.process_main([*arguments, "--work-dir", str(tmp_path / "work")]) == 1
        assert not batch.is_open("process")
        assert batch.settle().released == 2

    assert stores.failures.count()["available"] == 0
    counted = [row[2] for page in stores.store.scans().pages(["sequence", "id", "crashes"], 0, 10**9) for row in page]
    assert counted == [0, 0]


def test_an_error_that_nobody_expected_is_told_by_its_stack_and_without_its_text(
    arguments: list[str],
    stores: PipelineStores,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = f"what a message {'says'}"  # the stack shows the line that raises

    def quote(*_: object) -> int:
        raise RuntimeError(said)

    monkeypatch.setattr(LocalEngine, "process", quote)
    claim(stores, {"n": 2})

    assert jobs.process_main([*arguments, "--work-dir", str(tmp_path / "work")]) == 1

    told = capsys.readouterr().err
    assert said not in told
    assert "ERROR homing: process of batch run failed:" in told
    assert f'File "{__file__}"' in told
    assert told.rstrip().endswith("RuntimeError")


def test_a_job_that_is_told_to_end_dies_of_no_message(
    arguments: list[str], stores: PipelineStores, tmp_path: Path
) -> None:
    batch = claim(stores, {"n": 2, "wait": str(tmp_path / "begun")})
    main = "import sys; from homing.spark.jobs import process_main; sys.exit(process_main())"
    command = [sys.executable, "-c", main, *arguments, "--work-dir", str(tmp_path / "work")]
    job = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 200
        while not (tmp_path / "begun").exists():
            assert job.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 128 + signal.SIGTERM
    finally:
        job.kill()

    assert not batch.is_open("process")
    settlement = batch.settle()
    assert (settlement.released, settlement.failed) == (1, 0)


def test_what_a_process_left_whose_step_was_taken_over_is_not_read_by_the_next(
    arguments: list[str], stores: PipelineStores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(stores, {"n": 2})

    class Overtaken(pq.ParquetWriter):  # type: ignore[misc]
        def close(self) -> None:
            super().close()
            stores.ledger.open_step("run", "process", 600)

    monkeypatch.setattr(parquet.pq, "ParquetWriter", Overtaken)

    assert jobs.process_main([*arguments, "--work-dir", str(tmp_path / "work")]) == 1

    assert WorkDir(str(tmp_path / "work"), LocalFiles(), stores.ledger).published("run") is None


@pytest.mark.parametrize("forged", ["changed", "of another batch", "missing"])
def test_of_a_forged_work_file_nothing_is_delivered_and_nothing_is_lost(
    arguments: list[str],
    stores: PipelineStores,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    forged: str,
) -> None:
    claim(stores, {"n": 7}, run_id="other")
    batch = claim(stores, {"n": 2}, {"n": 3})
    work_dir = ["--work-dir", str(tmp_path / "work")]
    for run_id in ("other", "run"):
        arguments[arguments.index("--run-id") + 1] = run_id
        assert jobs.process_main([*arguments, *work_dir]) == 0
    work = WorkDir(str(tmp_path / "work"), LocalFiles(), stores.ledger)
    (theirs,), (mine,) = work.published("other") or (), work.published("run") or ()
    if forged == "changed":
        rows = pq.read_table(mine)
        texts = pa.array([text.replace("4", "5") for text in rows["message"].to_pylist()], pa.string())
        pq.write_table(rows.set_column(rows.column_names.index("message"), "message", texts), mine)
    elif forged == "missing":
        Path(mine).unlink()
    else:
        shutil.copy(theirs, mine)

    assert jobs.deliver_main([*arguments, *work_dir, "--flow", "lake"]) == 1

    assert made() == {}
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ERROR homing")]
    assert "clear the task `process`" in said
    assert jobs.process_main([*arguments, *work_dir]) == 0  # as clearing it does
    assert jobs.deliver_main([*arguments, *work_dir, "--flow", "lake"]) == 0
    assert made() == {("lake", 4): 1, ("lake", 6): 1}
    assert batch.settle().released == 2  # which had no crm yet


def test_what_an_earlier_process_left_is_delivered_only_as_far_as_the_run_holds_it(
    arguments: list[str], stores: PipelineStores, tmp_path: Path
) -> None:
    batch = claim(stores, {"n": 2}, {"n": 3})
    work_dir = ["--work-dir", str(tmp_path / "work")]
    assert jobs.process_main([*arguments, *work_dir]) == 0
    (held,) = batch.held()
    held.store.settle_batch(held.lease, [batch.messages()[0].row_id], success=False)  # it is somebody else's by now

    assert jobs.deliver_main([*arguments, *work_dir, "--flow", "lake"]) == 0

    assert made() == {("lake", 6): 1}


@pytest.mark.parametrize(("number", "delivered"), [(0, 0), (1, 1)], ids=["dropped", "failed"])
def test_what_was_dropped_stays_dropped_and_what_failed_is_not_unfinished_when_it_goes_well(
    arguments: list[str], stores: PipelineStores, tmp_path: Path, number: int, delivered: int
) -> None:
    claim(stores, {"n": number})
    work_dir = ["--work-dir", str(tmp_path / "work")]
    assert jobs.process_main([*arguments, *work_dir]) == 0
    import orders_alone

    orders_alone.mended = True
    assert jobs.process_main([*arguments, *work_dir]) == 0
    for flow in FLOWS:
        assert jobs.deliver_main([*arguments, *work_dir, "--flow", flow]) == 0

    assert made()["lake", 2 * number] == delivered
    assert stores.ledger.unfinished("run") == []


def test_what_a_transformer_makes_much_larger_is_written_in_portions(
    arguments: list[str], stores: PipelineStores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "MOST_BYTES", 1000)
    claim(stores, *({"n": n, "text": "x" * 400} for n in range(2, 12)))

    assert jobs.process_main([*arguments, "--work-dir", f"{tmp_path}/work"]) == 0

    (left,) = WorkDir(f"{tmp_path}/work", LocalFiles(), stores.ledger).published("run") or []
    file = pq.ParquetFile(left)
    groups = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
    assert sum(groups) == 10
    assert max(groups) == 3
