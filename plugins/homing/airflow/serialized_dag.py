"""What the serialized DAG says of a task's pipeline: its author's words, which no user of Airflow can change.

The API server and the scheduler believe these, and never an XCom or a parameter. A template field, because Airflow
serializes no other fields of an operator. Imported by every Airflow process: keep it light.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

#: The field of our operators that holds what `describe` returns.
FIELD = "homing_pipeline"

# A file has no password, and the options that its URL may have are no secrets.
_FILE_SCHEMES = frozenset({"sqlite", "sqlite+pysqlite"})


class _Pipeline(Protocol):
    @property
    def flows(self) -> Any: ...
    @property
    def store(self) -> str: ...
    @property
    def dead_letter_store(self) -> str: ...
    @property
    def group(self) -> str: ...


@dataclass(frozen=True)
class PipelineReference:
    """A task's pipeline, as far as others are told. A store is None where its name might hold a secret."""

    flows: tuple[str, ...]
    store: str | None
    dead_letter_store: str | None
    group: str = ""


def describe(pipeline: _Pipeline | None) -> dict[str, Any] | None:
    """What the serialized DAG is to say of this pipeline. No secret is in it."""
    if pipeline is None:
        return None
    return {
        "flows": list(pipeline.flows),
        "store": pipeline.store if is_public(pipeline.store) else None,
        "dead_letter_store": pipeline.dead_letter_store if is_public(pipeline.dead_letter_store) else None,
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
    stores = [said.get(name) for name in ("store", "dead_letter_store")]
    store, dead_letter_store = (name if isinstance(name, str) and is_public(name) else None for name in stores)
    return PipelineReference(tuple(flows), store, dead_letter_store, group)


def is_public(store: str) -> bool:
    """Whether a store is named so that everybody may see the name: by the id of a connection, or as a file."""
    if store.startswith("env:"):
        return False  # what it stands for on another machine is another matter
    if "://" not in store:
        return True
    try:
        url = urlsplit(store)
    except ValueError:  # whose text quotes the URL
        return False
    return url.scheme in _FILE_SCHEMES and not url.netloc
