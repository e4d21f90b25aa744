"""PipelineSpec: what every task of a pipeline knows, and how it gets at the run's batch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from homing.airflow.hooks.store import find_url, is_url
from homing.airflow.retry_policy import MessageRetries
from homing.delivery import Batch, open_pipeline_stores
from homing.delivery.private_folder import state_folder
from homing.delivery.settlement import DEFAULT_LEASE
from homing.errors import ConfigurationError
from homing.pipeline import load_chain
from homing.pipeline_store import is_pipeline_store
from homing.retry import RetryPolicy
from homing.stores import check_scheme, open_store

#: What one process has done before Spark has started, unless each message takes very long.
SPARK_ABOVE = 200

#: What is replayed by hand counts for so long, in seconds.
APPROVAL_WINDOW = 86_400.0

_MAX_ID = 255
_SHORTEST_LEASE = 60.0
_RETRY = RetryPolicy(max_retries=3, interval=1.0)


@dataclass(frozen=True)
class PipelineSpec:
    """A pipeline as its author described it. Stores are URLs, `env:NAME` or connection ids: found when a task runs.

    `source` is a store of another kind, such as RabbitMQ, whose messages are taken in; `group` tells apart the
    pipelines of one DAG. Make one with `PipelineSpec.of`.
    """

    name: str
    chain: str
    flows: Sequence[str]
    store: str
    dead_letter_store: str
    work_dir: str
    batch_size: int = 1000
    polling_interval: float = 1.0
    retry: RetryPolicy = _RETRY
    lease: float = DEFAULT_LEASE
    source: str | None = None
    group: str = ""
    #: Up to so many messages are worked on without Spark, where that is on this machine anyway.
    spark_above: int = SPARK_ABOVE
    #: So many may be replayed by hand within `approval_window` seconds before another person must approve it.
    approve_replays_above: int | None = None
    approval_window: float = APPROVAL_WINDOW
    #: The name the chain gave itself, which is what failure records say.
    chain_name: str = ""

    @classmethod
    def of(
        cls,
        name: str,
        *,
        chain: str,
        store: str,
        dead_letter_store: str,
        source: str | None = None,
        polling_interval: float = 1.0,
        max_retries: int = 3,
        retry_interval: float = 1.0,
        retry: RetryPolicy | None = None,
        batch_size: int = 1000,
        lease: float = DEFAULT_LEASE,
        work_dir: str | None = None,
        spark_above: int = SPARK_ABOVE,
        group: str = "",
        approve_replays_above: int | None = None,
        approval_window: float = APPROVAL_WINDOW,
    ) -> PipelineSpec:
        """The pipeline of the chain "module:attribute". Opens no store.

        Raises ChainImportError when the chain cannot be imported, and ConfigurationError for what would only go wrong
        once messages are at stake.
        """
        _check_stores(store, dead_letter_store, source)
        loaded = load_chain(chain)
        return cls(
            name=name,
            chain=chain,
            chain_name=loaded.name,
            flows=[flow.name for flow in loaded.flows],
            store=store,
            dead_letter_store=dead_letter_store,
            work_dir=work_dir or str(state_folder() / "work" / name),
            batch_size=batch_size,
            polling_interval=polling_interval,
            retry=_policy(name, retry, RetryPolicy(max_retries=max_retries, interval=retry_interval)),
            lease=lease,
            source=source,
            group=group,
            spark_above=spark_above,
            approve_replays_above=approve_replays_above,
            approval_window=approval_window,
        )

    def __post_init__(self) -> None:
        if self.polling_interval <= 0:
            raise ConfigurationError(f"polling_interval is a positive number of seconds, not {self.polling_interval!r}")
        if self.batch_size < 1:
            raise ConfigurationError(f"batch_size is at least 1, not {self.batch_size!r}")
        if self.spark_above < 0:
            raise ConfigurationError(f"spark_above is a number of messages from 0 up, not {self.spark_above!r}")
        if self.approve_replays_above is not None and self.approve_replays_above < 0:
            raise ConfigurationError(
                f"approve_replays_above is a number of messages from 0 up, not {self.approve_replays_above!r}"
            )
        if self.approval_window <= 0:
            raise ConfigurationError(f"approval_window is a positive number of seconds, not {self.approval_window!r}")
        if self.lease < _SHORTEST_LEASE:
            raise ConfigurationError(
                f"lease is at least {_SHORTEST_LEASE} seconds, Spark must start in it: {self.lease!r}"
            )
        self.task_arguments()

    @property
    def replay_dag_id(self) -> str:
        """The DAG that replays what fails."""
        return f"{self.name}_replay"

    @property
    def hold(self) -> float:
        """For how long a job holds its batch, in seconds: also through the wait for its next try, in which no task
        renews the lease. Airflow spreads growing delays up to twice their length."""
        if not self.retry.max_retries:
            return self.lease
        wait = replace(self.retry, jitter=0.0).delay(self.retry.max_retries)
        return self.lease + (2 * wait if self.retry.multiplier > 1 else wait)

    def task_arguments(self) -> dict[str, Any]:
        """`retries` and their delay: the tasks' retries are the messages' retries, counted from the last clear."""
        arguments = self.retry.task_arguments()
        if self.retry.multiplier > 1:
            arguments["retry_policy"] = MessageRetries(self.retry)
        return arguments

    @contextmanager
    def open_batch(self, run_id: str) -> Iterator[Batch]:
        """The batch of this run, with its stores open for the length of the block."""
        with open_pipeline_stores(*self.urls()) as stores:
            yield Batch(stores, run_id, self.flows, chain=self.chain_name)

    def urls(self) -> tuple[str, str]:
        """The store's and the dead-letter store's URL. Secrets: never log them."""
        return find_url(self.store), find_url(self.dead_letter_store)

    def run_key(self, context: Any) -> str:
        """The id a run claims its batch under: the same for every try of every task of the run."""
        return run_key(context, self.group)


def run_key(context: Any, group: str = "") -> str:
    """An id for what a run holds in a store."""
    return batch_id(context["dag"].dag_id, context["run_id"], group)


def batch_id(dag_id: str, run_id: str, group: str = "") -> str:
    """The same, of a run that is known by its ids."""
    key = "/".join(filter(None, [dag_id, run_id, group]))
    if len(key) <= _MAX_ID:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return f"{key[: _MAX_ID - 17]}-{digest}"


def _policy(name: str, whole: RetryPolicy | None, given: RetryPolicy) -> RetryPolicy:
    if whole is not None and given != _RETRY:
        raise ConfigurationError(f"{name} has either retry= or max_retries= and retry_interval=, not both")
    return given if whole is None else whole


def _check_stores(store: object, dead_letter_store: object, source: object) -> None:
    urls = [reference for reference in (store, dead_letter_store) if is_url(reference)]
    for url in (*urls, *([source] if source is not None and is_url(source) else [])):
        if not url.startswith("env:"):
            check_scheme(url)
    if len(urls) == 2 and not any(url.startswith("env:") for url in urls):  # noqa: PLR2004
        with open_pipeline_stores(*urls):
            pass  # opening connects to nothing, and finds fault with names and options
    if source is not None and is_url(source) and not source.startswith("env:"):
        with open_store(source) as opened:
            if is_pipeline_store(opened):
                raise ConfigurationError(
                    f"the source {opened.name!r} is a SQL store already: give it as the pipeline's store"
                )
