"""HandlerChain: processors in a row, then destinations in parallel, and nothing lost on the way.

content ─▶ source flow ─▶ destination flow ─▶ …        every flow works on its own copy
                      ├─▶ destination flow ─▶ …        all are awaited, none stops another
                      └─▶ …
what fails ─▶ failure store, as a failure record ─▶ replay: all processors, only the destinations not done
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import Any

from homing.arguments import refuses_unknown
from homing.connection import variable_of
from homing.custom_store import ThreeVerbs, as_store
from homing.errors import ChainError, HandlerError, UnreadableMessageError
from homing.failure import FailureRecord, new_copy, progress_in, read_record
from homing.ids import new_id
from homing.invocation.content_copy import accept
from homing.invocation.error_info import frames_of, sign_of, text_of
from homing.json_values import DEEPEST_PART, copy_json
from homing.ledger import SOURCE_FLOW
from homing.message import Headers, Message
from homing.pipeline.context import MessageContext
from homing.pipeline.execution import Execution
from homing.pipeline.flows import Flow, RouterFlow, SourceFlow, as_flows, as_source_flow, handlers_of
from homing.pipeline.handlers import Handler
from homing.pipeline.outcome import Counters, ExecutionError, ExecutionResult
from homing.pipeline.replay import ReplayConfig, make_replay_listener, partial_progress
from homing.pipeline.runner import run_chain
from homing.pipeline.workers import PATIENCE, Workers
from homing.retry import Retry
from homing.store import FULL_MESSAGE, SCHEDULE, Store

log = logging.getLogger(__name__)

_by_reference: ContextVar[bool] = ContextVar("homing_chain_by_reference", default=False)


@contextmanager
def building_by_reference() -> Iterator[None]:
    """Chains built inside know that a job imports them by name, and start nothing in the background."""
    token = _by_reference.set(True)
    try:
        yield
    finally:
        _by_reference.reset(token)


@refuses_unknown
class HandlerChain:
    """A pipeline: `source_flow` in order, then every flow of `destinations_flow` in parallel.

    Raises ChainError when it is built with a handler name that occurs twice, a function without a decorator,
    a handler in a place it cannot have, or no destination. Thread-safe; opens nothing before the first
    message.
    """

    def __init__(
        self,
        name: str,
        *,
        source_flow: Any = (),
        destinations_flow: Any = (),
        failure_store: Store | ThreeVerbs | None = None,
        replay: ReplayConfig | None = None,
    ) -> None:
        """`failure_store` gets a failure record of every message `execute` could not carry all the way.

        With `replay`, a listener that replays them starts with the chain and ends with `close`; unless the chain is
        built by `load_chain`, for a job.
        """
        self.name = _checked_name(name)
        self.source: SourceFlow = as_source_flow(source_flow)
        self.flows: tuple[Flow, ...] = as_flows(destinations_flow)
        self.failure_store = None if failure_store is None else as_store(failure_store, "failure_store")
        #: The "module:attribute" this chain was loaded by; with it, it can be pickled.
        self.reference: str | None = None
        #: Whether it was built while `load_chain` imported its module. Such a chain starts no listener.
        self.by_reference = _by_reference.get()
        _check_handlers(name, self.source, self.flows)
        handlers = handlers_of(self.source, self.flows)
        self._takes_dataframes = next((handler for handler in handlers if handler.dataframe), None)
        self._asks = any(handler.connections.ids for handler in handlers_of(self.source, self.flows))
        self._counters = Counters()
        self._workers = Workers(name, len(self.flows))
        self.replay_listener = None if replay is None else make_replay_listener(self, replay)
        if self.replay_listener is not None and not self.by_reference:
            self.replay_listener.start()

    def execute(self, content: Any, *, id: str | None = None, headers: Headers | None = None) -> ExecutionResult:
        """Carries one content through the chain and returns when every destination is done; blocking.

        Raises ExecutionError, after all destinations have ended, if any handler failed; its `message` holds
        the failure record, and so does the failure store, if there is one. Raises UnstorableContentError for
        a content or headers that no store could keep; then no handler has run.
        """
        own_headers = copy_json(dict(headers), levels=DEEPEST_PART) if headers else {}
        return self._execute(Message(new_id() if id is None else id, accept(content), headers=own_headers))

    def on_message(self, message: Message) -> None:
        """Makes the chain a service: `listener.attach(chain)`. Executes the message, with its id and headers.

        What fails is handled, as far as the listener is concerned, once the failure store has it. Otherwise it raises,
        and what the listener tries again is a replay: it skips the destinations that are done.
        """
        before = progress_in(message.content, self.name)
        try:
            if before is None:
                self._execute(replace(message, content=accept(message.content)))
            else:
                self._replay(before, message.id)
        except ExecutionError as error:
            if error.kept:
                name = getattr(self.failure_store, "name", "?")
                log.warning("message %s failed in %s, and failure store %s has it: %s", message.id, self.name, name,
                            sign_of(error))  # fmt: skip
            elif before is None and not error.message.content["done"]:
                raise
            else:
                raise partial_progress(error, {} if before is None else before.done) from error

    def _execute(self, message: Message) -> ExecutionResult:
        execution = Execution(message)
        ctx = self._carry(execution)
        if not execution.errors:
            return execution.result(ctx)
        record = execution.record(self.name, None)
        entry, trouble = self._keep(message.id, record, _asked_delay(execution.errors.values()))
        kept = self.failure_store is not None and not trouble
        text, failed = execution.complaint(self.name) + trouble, tuple(execution.errors.values())
        raise ExecutionError(text, Message(entry, record), kept, errors=failed)

    def replay(self, failed: Message | Mapping[str, Any]) -> ExecutionResult:
        """Carries a failed message through the chain again: all processors, the destinations not yet done.

        `failed` is a message of a failure store or a dead-letter store, written there by anything, a failure record, or
        an ExecutionError's `message`. Raises
        ExecutionError if it fails again: its `message` knows what is done by now. The failure store is not
        written, since the caller still has the entry and must not acknowledge it then. Raises
        UnreadableMessageError for what is not a failure record of this chain.
        """
        if isinstance(failed, Message):
            return self._replay(FailureRecord.of(failed), failed.id)
        record = read_record(failed)
        return self._replay(record, record.message.id)

    def _replay(self, record: FailureRecord, entry: str) -> ExecutionResult:
        """Replays this record, which a message of the id `entry` holds."""
        if record.chain not in ("", self.name):
            raise UnreadableMessageError(
                f"message {record.message.id} failed in chain {record.chain!r}, which is not {self.name!r}"
            )
        execution = Execution(record.message, record.properties, dict(record.done))
        ctx = self._carry(execution)
        if not execution.errors:
            return execution.result(ctx)
        known = record.ref if record.ref.table_id else None
        again = Message(entry, execution.record(self.name, record.batch_id, known))
        raise ExecutionError(execution.complaint(self.name), again, errors=tuple(execution.errors.values()))

    def counts(self) -> dict[str, int]:
        """Numbers so far: executed and failed messages; delivered, filtered and dropped deliveries.

        A message that the source flow dropped counts as one dropped delivery.
        """
        return self._counters.read()

    def close(self) -> None:
        """Ends the replay listener and the chain's threads after what they do now, and closes its clients.

        Idempotent; it closes no store. What waits for its next replay stays in its store. A handler that hangs is left
        behind after half a minute, and its message comes back.
        """
        if self.replay_listener is not None:
            self.replay_listener.graceful_stop(PATIENCE, retries=False)
        self._workers.close()
        routed = [handler for flow in self.flows if isinstance(flow, RouterFlow) for handler in flow.picked]
        for handler in (*handlers_of(self.source, self.flows), *routed):
            handler.close()

    @property
    def takes_dataframes(self) -> bool:
        """Whether one of its handlers takes a whole DataFrame: then only Spark can run it."""
        return self._takes_dataframes is not None

    def refuse_dataframes(self) -> None:
        """Raises ChainError, naming the handler, when only Spark can run this chain."""
        if self._takes_dataframes is not None:
            self._takes_dataframes.refuse()

    def connections(self, *flows: str) -> dict[str, str]:
        """The connections that handlers of these flows, SOURCE_FLOW among them, declare, and who does; of all flows
        where none is named."""
        asked: dict[str, str] = {}
        for handler in self._handlers(flows):
            for conn_id in handler.connections.ids:
                others = f"{asked[conn_id]} and " if conn_id in asked else ""
                asked[conn_id] = f"{others}{handler.connections.who}"
        return asked

    def require_connections(self, *flows: str) -> None:
        """Raises MissingConnectionError where a connection is not there that handlers of these flows, or of all,
        declare."""
        if self._asks:
            for handler in self._handlers(flows):
                handler.connections.require()

    def _handlers(self, flows: Collection[str]) -> Iterator[Handler]:
        source = self.source if not flows or SOURCE_FLOW in flows else SourceFlow()
        return handlers_of(source, [flow for flow in self.flows if not flows or flow.name in flows])

    def __enter__(self) -> HandlerChain:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"HandlerChain({self.name!r}, destinations={[flow.name for flow in self.flows]})"

    def _carry(self, execution: Execution) -> MessageContext:
        self.refuse_dataframes()  # before anything ran: the message has not failed
        self.require_connections()
        ctx = MessageContext(execution.message, execution.properties)
        for flow, outcome in run_chain(self.source, self.flows, ctx, self._workers, execution.done):
            execution.add(flow, outcome)
        self._counters.add(*execution.outcomes())
        return ctx

    def _keep(self, message_id: str, record: dict[str, Any], delay: float) -> tuple[str, str]:
        """Stores a failure record; returns the id it got, and what to complain about if that failed.

        Where it is replayed from there by itself, that is after `delay` seconds, if the store can wait.
        """
        if self.failure_store is None:
            return message_id, ""
        replays = self.replay_listener is not None and self.replay_listener.store is self.failure_store
        later: dict[str, Any] = {}
        if delay and replays and SCHEDULE in self.failure_store.features:
            later = {"scheduled_at": datetime.now(timezone.utc) + timedelta(seconds=delay)}
        try:
            # Under an id of its own: a store takes each id once, and a message may fail many times.
            copy = new_copy(record, self.failure_store.identity)
            if FULL_MESSAGE not in self.failure_store.features:
                return self.failure_store.store(copy.content, **later), ""
            return self.failure_store.store(copy, **later), ""
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller still has the message
            name = getattr(self.failure_store, "name", type(self.failure_store).__name__)
            log.error(  # noqa: TRY400 - its text may be what the message says
                "message %s failed, and failure store %s did not take it: %s", message_id, name, frames_of(error)
            )
            return message_id, (
                f"; and the failure store {name!r} did not take it: {type(error).__qualname__}: "
                f"{text_of(error)}. "
                "The failure record is in this error's `message`: do not acknowledge the source message"
            )


def _asked_delay(errors: Iterable[HandlerError]) -> float:
    """The longest `Retry(after=...)` among what the handlers raised; 0 where there is none."""
    causes = [error.__cause__ for error in errors]
    return max((cause.after or 0.0 for cause in causes if isinstance(cause, Retry)), default=0.0)


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ChainError(f"a chain needs a name that is a str and not empty, got {name!r}")
    return name


def _check_handlers(chain: str, source: SourceFlow, flows: tuple[Flow, ...]) -> None:
    known: dict[str, Handler] = {}
    for handler in handlers_of(source, flows):
        handler.prepare()
        twin = known.setdefault(handler.name, handler)
        if twin is not handler:
            raise ChainError(
                f"chain {chain!r} has two handlers named {handler.name!r}, a {twin.kind} and a "
                f"{handler.kind}; give one another name with name="
            )
    ids = dict.fromkeys(one for handler in handlers_of(source, flows) for one in handler.connections.ids)
    spelled: dict[str, str] = {}
    for one in ids:
        if (twin_id := spelled.setdefault(variable_of(one), one)) != one:
            raise ChainError(
                f"chain {chain!r} asks for the connections {twin_id!r} and {one!r}, which are one and the same in the "
                f"environment, {variable_of(one)}"
            )
    targets = [flow.name for flow in flows]
    for target in targets:
        if targets.count(target) > 1:
            raise ChainError(f"chain {chain!r} delivers to {target!r} twice; every destination has one flow")
