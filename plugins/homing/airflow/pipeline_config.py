"""PipelineConfig: all that can be said of a pipeline, for its DAGs, task group, tasks and reconciler alike.

A parameter is added here, and used where a task needs it: `delivery_dag` and `DeliveryTaskGroup` take whatever this
declares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

from msgspec import Meta

from homing.airflow.dags_folder import find_modules_beside_dags
from homing.airflow.hooks.spark import DEFAULT_CONNECTION
from homing.airflow.hooks.store import find_url
from homing.airflow.retry_policy import TaskRetryPolicy
from homing.arguments import refuses_unknown
from homing.constraints import AtLeastOne, Count, Positive, check_fields, partition_numbers
from homing.delivery import Batch, open_pipeline_stores
from homing.delivery.private_folder import state_folder
from homing.delivery.settlement import DEFAULT_LEASE
from homing.errors import ChainImportError, ConfigurationError
from homing.pipeline import load_chain
from homing.pipeline_store import is_pipeline_store
from homing.retry import RetryPolicy, one_policy
from homing.store_ref import URL, StoreRef
from homing.stores import check_scheme, open_store

_MAX_ID = 255
_RETRY = RetryPolicy(max_retries=3, interval=1.0)


@dataclass(frozen=True)
class PipelineAddress:
    """A pipeline's name, chain and stores: what the reconciler knows of it. Neither is the chain imported nor a store
    opened before a task needs them.

    chain               the chain, as "module:attribute"
    store               where the messages are: a URL, `env:NAME` or the id of an Airflow connection
    dead_letter_store   where those go that failed for good
    """

    name: str
    _: KW_ONLY
    chain: str
    # No part of the repr: a URL may hold a password.
    store: str | StoreRef = field(repr=False)
    dead_letter_store: str | StoreRef = field(repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if ":" not in self.chain:
            raise ChainImportError(f"chain must be module:attribute, got {self.chain!r:.80}")
        for reference in (self.store, self.dead_letter_store):
            StoreRef(reference)

    @property
    def replay_dag_id(self) -> str:
        return f"{self.name}_replay"

    def urls(self) -> tuple[str, str]:
        """The store's and the dead-letter store's URL. Secrets: never log them."""
        return find_url(self.store), find_url(self.dead_letter_store)


@refuses_unknown
@dataclass(frozen=True)
class PipelineConfig(PipelineAddress):
    """A pipeline as its author described it. Durations are in seconds. Opens no store and no Spark session.

    chain               the chain, as "module:attribute"
    store               where the messages are: a URL, `env:NAME` or the id of an Airflow connection
    dead_letter_store   where those go that failed for good
    source              a store of another kind, such as a RabbitMQ or Service Bus queue, whose messages `listen` takes
                        into the store
    polling_interval    seconds between two looks at a store in which nothing is due
    max_retries         a message that failed is replayed 1 + `max_retries` times, then dead-lettered
    retry_interval      seconds between these replays
    retry               a whole policy in place of max_retries and retry_interval
    batch_size          how many messages a run claims at most
    lease               seconds a run holds them without a sign of life, at least 60: Spark must start in it
    partitions          which partitions of the store this pipeline claims from; None for all
    approve_replays_above
                        another person must approve a replay of more messages than these; None for no rule
    approval_window     what was replayed by hand in so many seconds counts together
    spark_conn_id       the Airflow connection of Spark; without one of the default id, Spark runs on this machine
    work_dir            where a run's processed messages lie until they are delivered; by default, a folder of its own
                        in this user's state folder
    spark_above         with a local master, up to so many messages are worked on by one plain process, which is done
                        before Spark would have started; 0 for always Spark
    spark_conf          settings of the Spark jobs
    group               tells apart the pipelines of one DAG; a task group sets it

    Raises ChainImportError when the chain cannot be imported, UnknownStoreError for a URL that no store answers to, and
    ConfigurationError for what would only go wrong once messages are at stake.
    """

    _: KW_ONLY
    source: str | StoreRef | None = field(default=None, repr=False)
    polling_interval: Positive = 1.0
    max_retries: Count = 3
    retry_interval: Positive = 1.0
    retry: RetryPolicy | None = None
    batch_size: AtLeastOne = 1000
    lease: Annotated[float, Meta(ge=60)] = DEFAULT_LEASE
    partitions: Collection[int] | None = None
    approve_replays_above: Count | None = None
    approval_window: Positive = 86_400.0
    spark_conn_id: str = DEFAULT_CONNECTION
    work_dir: str | None = None
    spark_above: Count = 200
    spark_conf: Mapping[str, str] | None = None
    group: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        find_modules_beside_dags()
        self.policy  # noqa: B018 - raises for one that cannot be
        object.__setattr__(self, "partitions", partition_numbers(self.partitions))
        self._check_stores()
        self.flows, self.task_arguments()

    @cached_property
    def flows(self) -> Sequence[str]:
        """The names of the chain's destinations."""
        return [flow.name for flow in load_chain(self.chain).flows]

    @cached_property
    def chain_name(self) -> str:
        """The name the chain gave itself, which is what failure records say."""
        return load_chain(self.chain).name

    @property
    def policy(self) -> RetryPolicy:
        return one_policy(self.retry, self.max_retries, self.retry_interval, usual=_RETRY, of=self.name)

    @property
    def work_folder(self) -> str:
        """`work_dir`, or the pipeline's own in this user's state folder."""
        return self.work_dir or str(state_folder() / "work" / self.name)

    @property
    def hold(self) -> float:
        """How many seconds a replay holds its batch without a sign of life.

        It includes the wait for the task's next try, in which no task renews the lease. Airflow may make a growing
        delay up to twice as long.
        """
        policy = self.policy
        if not policy.max_retries:
            return self.lease
        wait = replace(policy, jitter=0.0).delay(policy.max_retries)
        return self.lease + (2 * wait if policy.multiplier > 1 else wait)

    def task_arguments(self) -> dict[str, Any]:
        """`retries` of a replay, and their delay: they are the messages' retries, counted from the last clear."""
        arguments = self.policy.task_arguments()
        if self.policy.multiplier > 1:
            arguments["retry_policy"] = TaskRetryPolicy(self.policy)
        return arguments

    @contextmanager
    def open_batch(self, run_id: str) -> Iterator[Batch]:
        """The batch of this run, with its stores open for the length of the block."""
        with open_pipeline_stores(*self.urls()) as stores:
            yield Batch(stores, run_id, self.flows, chain=self.chain_name)

    def run_key(self, context: Any) -> str:
        """The id a run claims its batch under: the same for every try of every task of the run."""
        return run_key(context, self.group)

    def _check_stores(self) -> None:
        """Opening connects to nothing, and finds fault with names, options and partitions that are known already."""
        references = [StoreRef(each) for each in (self.store, self.dead_letter_store, self.source) if each is not None]
        for each in references:
            if each.kind == URL:
                check_scheme(each.text)
        store, dead_letters, *source = references
        if store.kind == dead_letters.kind == URL:
            with open_pipeline_stores(store.text, dead_letters.text) as opened:
                if self.partitions is not None:
                    opened.store.require_partitions(self.partitions)
        if source and source[0].kind == URL:
            with open_store(source[0]) as source_store:
                if is_pipeline_store(source_store):
                    raise ConfigurationError(
                        f"the source {source_store.name!r} is a SQL store already: give it as the pipeline's store"
                    )


def run_key(context: Any, group: str = "") -> str:
    """Returns the batch id under which this run holds messages in a store."""
    return batch_id(context["dag"].dag_id, context["run_id"], group)


def batch_id(dag_id: str, run_id: str, group: str = "") -> str:
    key = "/".join(filter(None, [dag_id, run_id, group]))
    if len(key) <= _MAX_ID:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return f"{key[: _MAX_ID - 17]}-{digest}"
