"""What the serialized DAG says of a task's pipeline: its author's words, which no user of Airflow can change.

The API server and the scheduler believe these, and never an XCom or a parameter. A template field, because Airflow
serializes no other fields of an operator. Imported by every Airflow process: keep it light.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from homing.errors import ConfigurationError
from homing.store_ref import StoreRef

#: The field of our operators that holds what `describe_pipeline` returns.
FIELD = "homing_pipeline"


class _Pipeline(Protocol):
    @property
    def flows(self) -> Any: ...
    @property
    def store(self) -> str | StoreRef: ...
    @property
    def dead_letter_store(self) -> str | StoreRef: ...
    @property
    def group(self) -> str: ...


@dataclass(frozen=True)
class PipelineReference:
    """A task's pipeline, as far as others are told. A store is None where its name might hold a secret."""

    flows: tuple[str, ...]
    store: str | None
    dead_letter_store: str | None
    group: str = ""


def describe_pipeline(pipeline: _Pipeline | None) -> dict[str, Any] | None:
    """What the serialized DAG is to say of this pipeline. No secret is in it."""
    if pipeline is None:
        return None
    return {
        "flows": list(pipeline.flows),
        "store": _public_name(pipeline.store),
        "dead_letter_store": _public_name(pipeline.dead_letter_store),
        "group": pipeline.group,
    }


def is_ours(task: Any) -> bool:
    """Whether a task of a serialized DAG is one of our operators'."""
    return FIELD in (getattr(task, "template_fields", None) or ())


def pipeline_of(task: Any) -> PipelineReference | None:
    """The pipeline of a task of a serialized DAG; None for a task that has none, or whose DAG says it in no way of
    ours."""
    said = getattr(task, FIELD, None) if is_ours(task) else None
    if not isinstance(said, dict):
        return None
    flows, group = said.get("flows"), said.get("group")
    if not isinstance(flows, list) or not all(isinstance(flow, str) for flow in flows) or not isinstance(group, str):
        return None
    store, dead_letter_store = (_public_name(said.get(name)) for name in ("store", "dead_letter_store"))
    return PipelineReference(tuple(flows), store, dead_letter_store, group)


def _public_name(store: object) -> str | None:
    """The store's name, where it may be shown to everybody."""
    try:
        reference = StoreRef(store)
    except ConfigurationError:
        return None
    return reference.text if reference.is_public else None
