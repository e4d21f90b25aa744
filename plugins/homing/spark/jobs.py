"""The main functions of the Spark applications: their arguments, and their exit codes.

The URLs of the stores are secret, and so are the connections of handlers. They come through the environment, in
HOMING_STORE, HOMING_DEAD_LETTER_STORE and AIRFLOW_CONN_<ID>; or, on YARN in cluster mode, through a file that YARN puts
into the working directory. Everything else is an argument.

The exit code is 0 when the job is done. It is 1 when something failed: what was delivered is recorded, and the job can
be run again. It is 2 when the job was set up wrongly, and running it again will not help.
"""

from __future__ import annotations

import argparse
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from homing.delivery import Batch, PipelineStores, crash_tracking, open_pipeline_stores
from homing.delivery.lease_keeper import LeaseKeeper
from homing.delivery.local_engine import LocalEngine
from homing.delivery.settlement import DEFAULT_LEASE
from homing.delivery.step import flows_of
from homing.delivery.work_files import Files, LocalFiles, WorkDir
from homing.errors import ConfigurationError, HandlerError, HomingError, LeaseLostError
from homing.extras import needs
from homing.invocation.error_info import frames_of, sign_of
from homing.ledger import Fence, Ledger
from homing.pipeline import HandlerChain, load_chain
from homing.spark.error_kinds import is_crash, is_death, is_outage
from homing.spark.installation import refuse_mixed_versions
from homing.spark.submit import secrets
from homing.spark.submit.job import SET_UP_WRONGLY
from homing.spark.submit.master import refuse_unreachable

if TYPE_CHECKING:
    from homing.spark.engine import Engine

log = logging.getLogger("homing")

STORE = f"env:{secrets.STORE}"
DEAD_LETTER_STORE = f"env:{secrets.DEAD_LETTER_STORE}"

#: How many deaths of a worker one job survives. Each message that kills costs two: one to notice, one to find it.
MOST_CRASHES = 20


def process_main(argv: Sequence[str] | None = None) -> int:
    parser = _parser("process", "Run a chain's source flow over a claimed batch.", work_dir=True)
    arguments = parser.parse_args(argv)
    return _run("process", arguments, lambda engine: engine.process(arguments.work_dir))


def deliver_main(argv: Sequence[str] | None = None) -> int:
    parser = _parser("deliver", "Deliver a processed batch to one destination.", work_dir=True)
    parser.add_argument("--flow", required=True, help="the destination, or the destination router")
    arguments = parser.parse_args(argv)
    step = f"deliver.{arguments.flow}"

    def is_needed(batch: Batch) -> bool:
        left = WorkDir(arguments.work_dir, _files(without_spark=arguments.without_spark), batch.ledger).published(
            batch.run_id
        )
        return left != [] and batch.outstanding([arguments.flow])

    return _run(step, arguments, lambda engine: engine.deliver(arguments.flow, arguments.work_dir), is_needed)


def replay_main(argv: Sequence[str] | None = None) -> int:
    """Runs what a replay claimed through the whole chain; fails while any message still fails."""
    parser = _parser("replay", "Run failed messages through their chain again.")
    parser.add_argument("--rate", type=float, default=None, help="maximum messages per second to each destination")
    arguments = parser.parse_args(argv)

    def is_needed(batch: Batch) -> bool:
        return batch.outstanding([flow.name for flow in load_chain(arguments.chain).flows])

    return _run("replay", arguments, lambda engine: engine.replay(arguments.rate), is_needed, _acknowledge)


def _acknowledge(batch: Batch) -> None:
    left = batch.acknowledge_complete()
    if left:
        raise StillFailingError(f"{left} messages still fail: they stay in the failure store or the dead-letter store")
    log.info("batch %s: everything was delivered", batch.run_id)


class StillFailingError(HomingError):
    """Messages failed in this replay too; not a fault of the job."""


def _parser(step: str, description: str, *, work_dir: bool = False) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"{step}.py", description=description)
    parser.add_argument("--chain", required=True, help='the chain as "module:attribute"')
    parser.add_argument("--run-id", required=True, help="the id the batch was claimed under")
    parser.add_argument("--lease", type=float, default=DEFAULT_LEASE, help="seconds without a sign of life")
    parser.add_argument(
        "--without-spark", action="store_true", help="in this process, without Spark: for a small batch"
    )
    if work_dir:
        parser.add_argument("--work-dir", required=True, help="where one step leaves messages for the next")
    return parser


def _run(
    step: str,
    arguments: argparse.Namespace,
    run_step: Callable[[Engine | LocalEngine], object],
    is_needed: Callable[[Batch], bool] = lambda _: True,
    afterwards: Callable[[Batch], object] = lambda _: None,
) -> int:
    _show_our_log_lines()
    _end_when_told()
    secrets.read_secrets_file(Path.cwd())
    try:
        _work(step, arguments, run_step, is_needed, afterwards)
    except ConfigurationError as error:
        return _end(SET_UP_WRONGLY, f"{step}: {error}")
    except HandlerError as error:
        return _end(1, f"{step} of batch {arguments.run_id}: {sign_of(error)}")
    except HomingError as error:
        return _end(1, f"{step} of batch {arguments.run_id}: {error}")
    except Exception as error:  # noqa: BLE001 - of many kinds, as with all that fails within Spark
        if is_outage(error):
            return _end(1, f"{step} of batch {arguments.run_id}: {_our_line(error)}")
        # Its text would be printed by Python: it may be what a message says.
        return _end(1, f"{step} of batch {arguments.run_id} failed:\n{frames_of(error)}")
    return 0


def _work(
    step: str,
    arguments: argparse.Namespace,
    run_step: Callable[[Engine | LocalEngine], object],
    is_needed: Callable[[Batch], bool],
    afterwards: Callable[[Batch], object],
) -> None:
    chain = load_chain(arguments.chain)
    chain.require_connections(*flows_of(step))
    with open_pipeline_stores(STORE, DEAD_LETTER_STORE) as stores:
        batch = Batch(stores, arguments.run_id, [flow.name for flow in chain.flows], chain=chain.name)
        if not batch.held():
            raise LeaseLostError("it holds no messages: its lease ran out, or it was never claimed")
        if not is_needed(batch):
            log.info("%s of batch %s: nothing is left to do, and no Spark job is started", step, arguments.run_id)
            afterwards(batch)
            return
        with _engine(step, arguments, chain, stores, batch) as (engine, stop):

            def run(fence: Fence) -> None:
                with LeaseKeeper(batch, stores.ledger, fence, arguments.lease, stop):
                    run_step(engine(fence))

            def open_step() -> Fence:
                fence = stores.ledger.open_step(batch.run_id, step, arguments.lease)
                return replace(fence, crashed=True) if batch.crashed_before() else fence

            survive_crashes(stores.ledger, open_step, run)
        afterwards(batch)


@contextmanager
def _engine(
    step: str, arguments: argparse.Namespace, chain: HandlerChain, stores: PipelineStores, batch: Batch
) -> Iterator[tuple[Callable[[Fence], Engine | LocalEngine], Callable[[], object]]]:
    """What works on the batch, given the right to record, and how to stop it when that is lost."""
    if arguments.without_spark:
        chain.refuse_dataframes()
        yield partial(LocalEngine, chain, stores, batch), lambda: None  # it notices when it records
        return
    refuse_mixed_versions()
    with needs("a Spark job", "spark", "pyspark", "pyarrow"):
        from homing.spark import sessions
        from homing.spark.engine import Engine, Pipeline

    pipeline = Pipeline(arguments.chain, STORE, DEAD_LETTER_STORE)
    with sessions.open_session(f"homing {step} {arguments.run_id}") as spark:
        refuse_unreachable(sessions.master_of(spark), pipeline.store, pipeline.dead_letter_store)
        yield partial(Engine, spark, pipeline, chain, stores, batch), partial(sessions.cancel_jobs, spark)


def _files(*, without_spark: bool) -> Files:
    """What reaches a work directory: where Spark is not needed, it is on this machine."""
    if without_spark:
        return LocalFiles()
    with needs("a Spark job", "spark", "pyspark", "pyarrow"):
        from homing.spark.hadoop import HadoopFiles

    return HadoopFiles()


def survive_crashes(ledger: Ledger, open_step: Callable[[], Fence], run: Callable[[Fence], None]) -> None:
    """Runs a step to its end. When a message crashes the worker that handles it, it is found, left out and recorded as
    failed, and the rest of the batch goes on."""
    for crashes in range(MOST_CRASHES + 1):
        fence = open_step()
        if killer := crash_tracking.record_crash(ledger, fence):
            log.warning("message %s crashes the worker that handles it: it is left out", killer)
        if fence.crashed:
            log.warning("a worker crashed in this batch; continuing one message at a time")
        try:
            with crash_tracking.closing_step(ledger, fence, is_death=is_death):
                run(fence)
        except Exception as error:
            if not is_crash(error) or crashes == MOST_CRASHES:
                raise
        else:
            return


def _our_line(error: Exception) -> str:
    """What an executor, which noticed first, had to say; Spark wraps it into pages of its own."""
    lines = str(error).strip().splitlines() or [type(error).__qualname__]
    return next((line for line in reversed(lines) if "homing.errors." in line), lines[0]).strip()


def _end(code: int, reason: str) -> int:
    """Says why the job ends, in one line: it is what the task's log and its failure will show last."""
    log.error(reason)
    return code


def _end_when_told() -> None:
    """Makes SIGTERM an exception: when a job is ended, by a timeout or by a person, that is the fault of no
    message."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)


def _show_our_log_lines() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    ours = logging.getLogger("homing")
    ours.handlers, ours.propagate = [handler], False
    ours.setLevel(logging.INFO)
