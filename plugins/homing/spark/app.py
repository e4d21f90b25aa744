"""The mains of the Spark applications: what they are given, and how they end.

What is secret, the stores, comes through the environment: HOMING_STORE and HOMING_DEAD_LETTER_STORE. Everything else is
an argument. Exit code 0: done. 1: something failed; what was delivered is recorded, run it again. 2: it was set up
wrongly; running it again will not help.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql import SparkSession

from homing.delivery import Batch, open_pipeline_stores
from homing.delivery.batch import DEFAULT_LEASE
from homing.errors import ConfigurationError, HomingError
from homing.pipeline import load_chain
from homing.spark.engine import Engine, Pipeline
from homing.spark.keeper import LeaseKeeper

log = logging.getLogger("homing")

STORE = "env:HOMING_STORE"
DEAD_LETTER_STORE = "env:HOMING_DEAD_LETTER_STORE"


def process_main(argv: Sequence[str] | None = None) -> int:
    """Runs the source flow over a claimed batch."""
    parser = _parser("process", "Run a chain's source flow over a claimed batch.", work_dir=True)
    arguments = parser.parse_args(argv)
    return _run("process", arguments, lambda engine: engine.process(arguments.work_dir))


def deliver_main(argv: Sequence[str] | None = None) -> int:
    """Delivers a processed batch to one destination."""
    parser = _parser("deliver", "Deliver a processed batch to one destination.", work_dir=True)
    parser.add_argument("--flow", required=True, help="the destination, or the destination router")
    arguments = parser.parse_args(argv)
    step = f"deliver.{arguments.flow}"
    return _run(step, arguments, lambda engine: engine.deliver(arguments.flow, arguments.work_dir))


def replay_main(argv: Sequence[str] | None = None) -> int:
    """Runs what a replay claimed through the whole chain; fails while any message still fails."""
    arguments = _parser("replay", "Run failed messages through their chain again.").parse_args(argv)
    return _run("replay", arguments, _replay)


def _replay(engine: Engine) -> None:
    engine.replay()
    left = engine.batch.acknowledge_complete()
    if left:
        raise StillFailing(f"{left} messages still fail: they are in the failure store or the dead-letter store")
    log.info("batch %s: everything was delivered", engine.batch.run_id)


class StillFailing(HomingError):
    """Messages failed in this replay too; not a fault of the job."""


def _parser(step: str, description: str, *, work_dir: bool = False) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"{step}.py", description=description)
    parser.add_argument("--chain", required=True, help='the chain as "module:attribute"')
    parser.add_argument("--run-id", required=True, help="the id the batch was claimed under")
    parser.add_argument("--lease", type=float, default=DEFAULT_LEASE, help="seconds without a sign of life")
    if work_dir:
        parser.add_argument("--work-dir", required=True, help="where one step leaves messages for the next")
    return parser


def _run(step: str, arguments: argparse.Namespace, work: Callable[[Engine], object]) -> int:
    _show_our_log_lines()
    try:
        pipeline = Pipeline(arguments.chain, STORE, DEAD_LETTER_STORE)
        with _engine(step, pipeline, arguments.run_id, arguments.lease) as engine:
            if engine is None:
                log.info("batch %s holds no messages: nothing to %s", arguments.run_id, step)
            else:
                work(engine)
    except ConfigurationError as error:
        return _end(2, f"{step}: {error}")
    except HomingError as error:
        return _end(1, f"{step} of batch {arguments.run_id}: {error}")
    return 0


def _end(code: int, reason: str) -> int:
    """Says why the job ends, in one line: it is what the task's log and its failure will show last."""
    log.error(reason)
    return code


def _show_our_log_lines() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    ours = logging.getLogger("homing")
    ours.handlers, ours.propagate = [handler], False
    ours.setLevel(logging.INFO)


@contextmanager
def _engine(step: str, pipeline: Pipeline, run_id: str, lease: float) -> Iterator[Engine | None]:
    """An engine that holds the batch, or None, and no Spark session, when there is nothing to do."""
    chain = load_chain(pipeline.chain)
    with open_pipeline_stores(pipeline.store, pipeline.dead_letter_store) as stores:
        batch = Batch(stores, run_id, [flow.name for flow in chain.flows], chain=chain.name)
        if not batch.held():
            yield None
            return
        fence = stores.ledger.open_step(run_id, step, lease)
        batch.renew(lease)
        spark = SparkSession.builder.appName(f"homing {step} {run_id}").getOrCreate()
        try:
            with LeaseKeeper(batch, stores.ledger, fence, lease, spark.sparkContext.cancelAllJobs):
                yield Engine(spark, pipeline, chain, stores, batch, fence)
        finally:
            spark.stop()
