"""The replay listener: takes what failed out of the failure store, or a replay store, and replays it by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from homing.arguments import refuses_unknown
from homing.constraints import Duration
from homing.custom_store import as_store
from homing.errors import ChainError, UnreadableMessageError
from homing.failure import FAILURE_TYPE, FailureRecord, new_copy
from homing.listener import ListenerConfig, Progress, StoreListener
from homing.listener.config import name_of
from homing.message import Message
from homing.pipeline.outcome import ExecutionError
from homing.retry import RetryPolicy
from homing.store import Store

if TYPE_CHECKING:
    from homing.pipeline.chain import HandlerChain


@refuses_unknown
@dataclass(frozen=True)
class ReplayConfig:
    """How a chain replays by itself what failed; the values mean what they mean for a listener.

    It listens to `replay_store` if there is one, for replay on demand, else to the chain's failure store. What fails 1
    + `max_retries` replays, and what is not a failure record of the chain, goes to `dead_letter_store`; without one, or
    while it is down, it stays where it is.
    """

    dead_letter_store: Store | None = None
    replay_store: Store | None = None
    polling_interval: Duration = 1.0
    max_retries: int = 3
    retry_interval: Duration = 1.0
    retry: RetryPolicy | None = None
    concurrency: int = 1
    lease: Duration = 30.0
    max_handling_time: Duration = 900.0

    def __post_init__(self) -> None:
        if self.replay_store is not None:
            object.__setattr__(self, "replay_store", as_store(self.replay_store, "replay_store"))
        self.listener_config()

    def listener_config(self) -> ListenerConfig:
        """The same in the words of a listener; raises ConfigurationError for a value that cannot be."""
        policy = ListenerConfig(
            max_retries=self.max_retries, retry_interval=self.retry_interval, retry=self.retry
        ).policy
        # What is not a failure record never becomes one.
        return ListenerConfig(
            polling_interval=self.polling_interval,
            dead_letter_store=self.dead_letter_store,
            retry=replace(policy, never=(*policy.never, UnreadableMessageError)),
            concurrency=self.concurrency,
            lease=self.lease,
            max_handling_time=self.max_handling_time,
        )


class ReplayService:
    """The service of the replay listener."""

    #: It listens to failure records, written by a chain or by a person who wants them replayed.
    takes_records = True

    def __init__(self, chain: HandlerChain) -> None:
        self._chain = chain
        self.records_of = "" if chain.failure_store is None else name_of(chain.failure_store)

    def on_message(self, message: Message) -> None:
        """Replays one entry. Raises UnreadableMessageError for anything but a record, Progress if it failed again."""
        before = FailureRecord.of(message)
        try:
            self._chain.replay(message)
        except ExecutionError as error:
            progress = partial_progress(error, before.done)
            if progress.durable:
                # Stored anew beside the entry it comes from, under a name of its own. What is not stored anew keeps its
                # name: given up twice, as after a crash, it is still one dead letter.
                progress.id = new_copy(progress.content, before.ref.table_id).id
            raise progress from error


def partial_progress(error: ExecutionError, before: Mapping[str, Any]) -> Progress:
    """What is left to do after a failure, worth storing at once if more destinations are done than before."""
    record = error.message.content
    return Progress(record, durable=set(record["done"]) > set(before), content_type=FAILURE_TYPE)


def make_replay_listener(chain: HandlerChain, config: ReplayConfig) -> StoreListener:
    """The listener, not started. Raises ChainError without a store to listen to."""
    store = chain.failure_store if config.replay_store is None else config.replay_store
    if store is None:
        raise ChainError(f"chain {chain.name!r} has replay= but no failure store and no replay store to listen to")
    listener = StoreListener(store, config.listener_config())
    listener.attach(ReplayService(chain))
    return listener
