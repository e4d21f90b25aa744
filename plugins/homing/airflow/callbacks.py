"""The failure callback of a replay: the fast path to the dead-letter store. Airflow may run it never, once or twice."""

from __future__ import annotations

import logging
from typing import Any

from homing.airflow.settling import finish_replay

log = logging.getLogger(__name__)

# A task that somebody cleared while it ran is ended like one that failed; these states tell the two apart.
_SUPERSEDED = {None, "restarting", "queued", "scheduled"}


def dead_letter_callback(context: Any) -> None:
    """Writes what the replay could not deliver to the dead-letter store. Idempotent; `settle` does the same."""
    state = _live_state(context)
    # The DAG processor calls late, and without an exception: a task that runs by then is a newer try.
    if state in _SUPERSEDED or (state == "running" and "exception" not in context):
        log.info("this try was superseded, by a clear for example: nothing is dead-lettered")
        return
    pipeline = context["task"].pipeline
    settlement = finish_replay(pipeline, pipeline.run_key(context))
    log.warning("the replay's retries are used up: %s", settlement)


def _live_state(context: Any) -> str | None:
    """The task's state in Airflow's database now; "failed" where it cannot be asked for."""
    ti = context["ti"]
    ask = getattr(ti, "get_task_states", None)
    if ask is None:
        return "failed"
    states = ask(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[ti.task_id])
    return states.get(ti.run_id, {}).get(ti.task_id)
