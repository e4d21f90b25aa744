"""listener_dag: a plain function on a store, as a DAG, without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from airflow.sdk import DAG, BaseOperator

from homing.airflow import metrics
from homing.airflow.dags.delivery_dag import START
from homing.airflow.dags.neighbours import refuse_second
from homing.airflow.dags.options import has_options_of, split_options
from homing.airflow.hooks.handler_connections import connections_in_task, find_connections
from homing.airflow.hooks.store import find_url
from homing.airflow.retry_policy import OUTAGE
from homing.airflow.task_notes import note
from homing.airflow.trial_run import end_trial_run
from homing.airflow.triggers.store import StoreTrigger
from homing.errors import ConfigurationError, HomingError
from homing.listener import ListenerConfig, StoreListener
from homing.pipeline import HandlerChain
from homing.store import COUNT
from homing.store_ref import URL, StoreRef
from homing.stores import open_store

#: Seconds after which a run that never comes to rest ends, so that a newer DAG file takes effect.
LONGEST_RUN = 600.0


@dataclass(frozen=True)
class Listening:
    """What a task listens to, with the settings of a ListenerConfig; stores by URL, `env:NAME` or connection id."""

    store: str = field(repr=False)
    dead_letter_store: str | None = field(repr=False)
    config: ListenerConfig


class ListenOperator(BaseOperator):
    """Waits in the triggerer until something is due, then handles messages with a StoreListener until none is left.

    What fails is retried, dead-lettered, released or dropped as the config says; the numbers are the task's result.
    """

    def __init__(self, *, listening: Listening, on_message: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.listening = listening
        self.on_message = on_message

    def execute(self, context: Any, event: Any = None) -> dict[str, int]:
        with open_store(find_url(self.listening.store)) as store:
            if COUNT in store.features:
                metrics.oldest_age(store)
            due = store.has_due(**self.listening.config.share)
            if due or (due is None and event):
                with connections_in_task(self._connections()):
                    counted = self._listen(store)
                sums = ", ".join(f"{number} {name.replace('_', '-')}" for name, number in counted.items())
                note(self, context, f"Store {store.name}: {sums}.")
                return counted
        end_trial_run(store.name)
        self.log.info("nothing is due in store %s: listening", store.name)
        config = self.listening.config
        trigger = StoreTrigger(self.listening.store, config.polling_seconds, partitions=config.partitions)
        return self.defer(trigger=trigger, method_name="execute")  # type: ignore[func-returns-value]

    def _connections(self) -> dict[str, str]:
        """What the handlers of a chain log in with. Secrets."""
        chain = self.on_message
        return find_connections(chain.connections()) if isinstance(chain, HandlerChain) else {}

    def _listen(self, store: Any) -> dict[str, int]:
        if self.listening.dead_letter_store is None:
            return self._run(store, self.listening.config)
        with open_store(find_url(self.listening.dead_letter_store)) as dead_letters:
            return self._run(store, replace(self.listening.config, dead_letter_store=dead_letters))

    def _run(self, store: Any, config: ListenerConfig) -> dict[str, int]:
        listener = StoreListener(store, config)
        listener.attach(self.on_message)
        listener.start()
        try:
            _wait_until_idle(listener, store, config)
        finally:
            listener.graceful_stop()
        found = listener.metrics()
        counted = {name: getattr(found, name) for name in ("processed", "dead_lettered", "dropped", "released")}
        for name, number in counted.items():
            metrics.count_messages("delivered" if name == "processed" else name, number, store=store.name)
        return counted


def _wait_until_idle(listener: StoreListener, store: Any, config: ListenerConfig) -> None:
    """Returns when nothing is due and nothing in flight, twice in a row; or after a long while."""
    ends, quiet = time.monotonic() + LONGEST_RUN, 0
    while quiet < 2 and time.monotonic() < ends:  # noqa: PLR2004
        time.sleep(min(config.polling_seconds, 1.0) / 2)
        try:
            busy = listener.metrics().in_flight > 0 or store.has_due(**config.share)
        except HomingError:
            return  # the store is away: the next run waits for it
        quiet = 0 if busy else quiet + 1


@has_options_of(ListenerConfig)
def listener_dag(
    name: str, *, store: str, on_message: Callable[..., Any] | Any, dead_letter_store: str | None = None, **options: Any
) -> DAG:
    """Makes the DAG `<name>`: `on_message`, a function or an object with that method, gets every message of `store`.

    Its options are the fields of ListenerConfig, where each is explained; all others are arguments of DAG. Stores are
    URLs, `env:NAME` or ids of Airflow connections. Opens no store.
    """
    if taken := {"dag_id", "schedule", "max_active_runs"} & options.keys():
        raise ConfigurationError(f"listener_dag({name!r}) sets {', '.join(sorted(taken))} itself")
    for reference in map(StoreRef, filter(None, (store, dead_letter_store))):
        if reference.kind == URL:
            open_store(reference).close()  # connects to nothing, and finds fault with names and options
    refuse_second(name)
    settings, dag_arguments = split_options(ListenerConfig, options, DAG, f"listener_dag({name!r})")
    listening = Listening(store, dead_letter_store, ListenerConfig(**settings))
    common = {"catchup": False, "start_date": START, "tags": ["homing"], **dag_arguments}
    with DAG(name, schedule="@continuous", max_active_runs=1, **common) as dag:
        # What is wrong with a message is between it and its retries; the task is only ever retried for a store's sake.
        ListenOperator(task_id="listen", listening=listening, on_message=on_message, **OUTAGE.task_arguments())
    return dag
