"""PipelineSpec: what every task of a pipeline knows, and how it gets at the run's batch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from homing.airflow.hook import find_url
from homing.delivery import Batch, open_pipeline_stores
from homing.delivery.batch import DEFAULT_LEASE
from homing.errors import ConfigurationError

_MAX_ID = 255
_SHORTEST_LEASE = 60.0


@dataclass(frozen=True)
class PipelineSpec:
    """A pipeline as its author described it. Stores are URLs, `env:NAME` or connection ids: found when a task runs."""

    name: str
    chain: str
    flows: Sequence[str]
    store: str
    dead_letter_store: str
    work_dir: str
    batch_size: int = 1000
    polling_interval: float = 1.0
    lease: float = DEFAULT_LEASE

    def __post_init__(self) -> None:
        if self.polling_interval <= 0:
            raise ConfigurationError(f"polling_interval is a positive number of seconds, not {self.polling_interval!r}")
        if self.batch_size < 1:
            raise ConfigurationError(f"batch_size is at least 1, not {self.batch_size!r}")
        if self.lease < _SHORTEST_LEASE:
            raise ConfigurationError(
                f"lease is at least {_SHORTEST_LEASE} seconds, Spark must start in it: {self.lease!r}"
            )

    @contextmanager
    def open_batch(self, run_id: str) -> Iterator[Batch]:
        """The batch of this run, with its stores open for the length of the block."""
        with open_pipeline_stores(*self.urls()) as stores:
            yield Batch(stores, run_id, self.flows, chain=self.name)

    def urls(self) -> tuple[str, str]:
        """The store's and the dead-letter store's URL. Secrets: never log them."""
        return find_url(self.store), find_url(self.dead_letter_store)


def run_key(context: Any) -> str:
    """The id a run claims its batch under: the same for every try of every task of the run."""
    key = f"{context['dag'].dag_id}/{context['run_id']}"
    if len(key) <= _MAX_ID:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return f"{key[: _MAX_ID - 17]}-{digest}"
