"""The failure callback of a replay: the fast path to the dead-letter store. Airflow may run it never, once or twice."""

from __future__ import annotations

import logging
from typing import Any

from homing.airflow.operators.settle import finish_replay

log = logging.getLogger(__name__)


def dead_letter_callback(context: Any) -> None:
    """Writes what the replay could not deliver to the dead-letter store. Idempotent; `settle` does the same.

    Where it is not sure that this was the last try, it leaves that to `settle`.
    """
    pipeline = context["task"].pipeline
    run_id = pipeline.run_key(context)
    if not _has_failed(context, run_id):
        log.info("this try was superseded, by a clear for example: nothing is dead-lettered")
        return
    settlement = finish_replay(pipeline, run_id)
    log.warning("the replay's retries are used up: %s", settlement)


def _has_failed(context: Any, run_id: str) -> bool:
    """Whether the task is at its end. One that was cleared while it ran, or that a killed scheduler left behind,
    is ended like one that failed."""
    state = _live_state(context)
    if state != "running":
        return state == "failed"
    # In the task's own process, Airflow says so until the process has ended. The DAG processor calls late, and without
    # an exception: what runs by then is a newer try.
    if "exception" not in context:
        return False
    with context["task"].pipeline.open_batch(run_id) as batch:
        return not batch.is_open("replay")


def _live_state(context: Any) -> str | None:
    """The task's state in Airflow's database now; "failed" where it cannot be asked for."""
    ti = context["ti"]
    ask = getattr(ti, "get_task_states", None)
    if ask is None:
        return "failed"
    states = ask(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[ti.task_id])
    return states.get(ti.run_id, {}).get(ti.task_id)
