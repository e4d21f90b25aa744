"""The other pipelines of a DAG file: what one file may not say twice, and what it hardly means."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from airflow.sdk import DAG
from airflow.sdk.definitions._internal.contextmanager import DagContext

from homing.airflow.pipeline_config import PipelineConfig
from homing.errors import ConfigurationError
from homing.store_ref import StoreRef

log = logging.getLogger(__name__)


def refuse_second(dag_id: str) -> None:
    """Raises ConfigurationError where the file that Airflow is reading has made a DAG of this id before: Airflow
    itself would drop one of the two without a word."""
    if any(dag.dag_id == dag_id for dag in _dags_of_file()):
        raise ConfigurationError(f"this file makes two DAGs with the id {dag_id!r}: give one of them another name")


def look_at_neighbours(pipeline: PipelineConfig, dag: DAG) -> None:
    """Looks at the pipelines of the file, and of this DAG, that are on the store of this one: each message goes to one
    of them only.

    Raises ConfigurationError where they have different chains, and warns where they have the same.
    """
    for other in _pipelines({*_dags_of_file(), dag}):
        if (other.name, other.group) == (pipeline.name, pipeline.group) or not _shared(other, pipeline):
            continue
        both = f"the pipelines {other.name!r} and {pipeline.name!r} are on one store"
        if other.chain != pipeline.chain:
            raise ConfigurationError(
                f"{both} with different chains ({other.chain}, {pipeline.chain}), and each message would go through "
                "one of them only: give each a store of its own, or one chain with both destinations"
            )
        log.warning("%s: each message goes to one of them only, whichever claims it first", both)


def _shared(one: PipelineConfig, other: PipelineConfig) -> bool:
    if StoreRef(one.store).text != StoreRef(other.store).text:
        return False
    return one.partitions is None or other.partitions is None or bool(set(one.partitions) & set(other.partitions))


def _pipelines(dags: set[DAG]) -> Iterator[PipelineConfig]:
    """The pipelines whose messages these DAGs claim; what a replay claims has failed in one of them."""
    for dag in dags:
        for task in dag.tasks:
            found = getattr(task, "pipeline", None)
            if isinstance(found, PipelineConfig) and task.task_id.split(".")[-1] == "listen":
                yield found


def _dags_of_file() -> list[DAG]:
    """The DAGs that the file made so far; none while no DAG file is being read."""
    if DagContext.current_autoregister_module_name is None:
        return []
    return [dag for dag, _ in DagContext.autoregistered_dags]
