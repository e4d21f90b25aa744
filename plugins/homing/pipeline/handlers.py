"""Decorators that make a plain function a handler of a chain.

    @message_filter            -> bool: False drops the message
    @transformer               -> the new content
    @processor                 -> nothing
    @processor_router          -> the processor that takes its place, or None to go on
    @destination               -> any result
    @destination_router        -> a destination, ([processors], destination), or None to deliver nowhere

All work bare and with `name=`. The function takes `ctx`, a typed content, or both; it may be async. A destination with
`batch=` takes a list of either, one with `setup=` the client it made as its last parameter. With `dataframe=True`, a
filter, transformer or destination takes a whole Spark DataFrame of messages; its chain then runs on Spark only.
`connections=` names the Airflow connections that a handler gets by `ctx.connection(id)`; those of a router are also for
whatever it picks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from homing.arguments import refuses_unknown
from homing.constraints import AtLeastOne, check
from homing.declared_connections import DeclaredConnections
from homing.errors import ChainError, ConfigurationError
from homing.invocation.batch_result import PartialFailure
from homing.invocation.circuit_breaker import Circuit, CircuitBreaker
from homing.invocation.coroutines import run
from homing.invocation.guard import Guard
from homing.invocation.rate_limit import RateLimiter
from homing.invocation.signature import Convention, compile_call, compile_item
from homing.json_values import is_unicode
from homing.pipeline.clients import Client
from homing.pipeline.context import MessageContext
from homing.pipeline.signals import Drop
from homing.retry import RetryPolicy, one_policy

FILTER = "filter"
TRANSFORMER = "transformer"
PROCESSOR = "processor"
PROCESSOR_ROUTER = "processor router"
DESTINATION = "destination"
DESTINATION_ROUTER = "destination router"
PROCESSORS = frozenset({FILTER, TRANSFORMER, PROCESSOR, PROCESSOR_ROUTER})

Function = Callable[..., Any]

_CONVENTION = Convention(
    envelope=MessageContext,
    content_of=MessageContext.get_content,
    names=frozenset({"ctx", "context"}),
    alone=True,
    rule="a handler takes a MessageContext, the content, or both: def handler(order: Order, ctx: MessageContext)",
    error=ChainError,
)


@dataclass(frozen=True, eq=False)
class Handler:
    """A function and the part it plays in a chain. Calling it calls the function, so it can be tested as one.

    Pickled by reference, as functions are: by module and qualified name. Equal only to itself.
    """

    function: Function
    kind: str
    name: str
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    #: How many messages a destination takes at once; None for one that takes them one by one.
    batch: int | None = None
    client: Client | None = field(default=None, repr=False)
    #: Whether the function takes a Spark DataFrame of messages instead of one message.
    dataframe: bool = False
    #: How many messages a Spark task delivers at the same time.
    threads: int = 1
    guard: Guard | None = field(default=None, repr=False)
    #: What it logs in with elsewhere.
    connections: DeclaredConnections = field(default_factory=DeclaredConnections, repr=False)
    _call: Function | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for attribute in ("__module__", "__qualname__", "__name__", "__doc__"):
            object.__setattr__(self, attribute, getattr(self.function, attribute, None))
        object.__setattr__(self, "__wrapped__", self.function)
        try:
            self._compile()
        except NameError:
            # A type defined further down in the module: a chain that uses this handler compiles it again.
            return

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function itself: no binding, no copies, no retries."""
        for given in args:
            for each in given if isinstance(given, list) else [given]:
                if isinstance(each, MessageContext):
                    each.lend(self.connections)
        return self.function(*args, **kwargs)

    def prepare(self) -> None:
        """Makes the handler ready to be invoked; raises ChainError where an annotation cannot be resolved."""
        try:
            self._compile()
        except NameError as error:
            raise ChainError(
                f"handler {self.name!r} has an annotation that cannot be resolved: {error}; "
                "a type that binds content must be known in the handler's module at run time"
            ) from error

    def invoke(self, ctx: MessageContext) -> Any:
        """Calls the function with what its signature asks for; waits for it if it is async."""
        return self._invoke(ctx) if self.guard is None else self.guard.call(self._invoke, ctx)

    def _invoke(self, ctx: MessageContext) -> Any:
        if self._call is None:
            self.prepare()
        call: Function = self._call  # type: ignore[assignment]
        ctx.lend(self.connections)
        result = call(ctx) if self.client is None else call(ctx, self.client.get())
        return run(result) if hasattr(type(result), "__await__") else result

    def item(self, ctx: MessageContext) -> Any:
        """Of a destination that takes batches: what stands for this message in the list. Raises BindingError."""
        if self._call is None:
            self.prepare()
        ctx.lend(self.connections)
        return self._call(ctx)  # type: ignore[misc]

    def invoke_batch(self, items: Sequence[Any]) -> Any:
        """Calls the function of a destination that takes batches; waits for it if it is async."""
        return self._invoke_batch(items) if self.guard is None else self.guard.call(self._invoke_batch, items)

    def _invoke_batch(self, items: Sequence[Any]) -> Any:
        result = self.function(list(items), *(() if self.client is None else (self.client.get(),)))
        return run(result) if hasattr(type(result), "__await__") else result

    def close(self) -> None:
        """Closes the client, if there is one and it is open. Idempotent; the next message opens it anew."""
        if self.client is not None:
            self.client.close()

    def __reduce__(self) -> str:
        return str(getattr(self, "__qualname__", self.name))

    def _compile(self) -> None:
        if self._call is None and self.dataframe:
            object.__setattr__(self, "_call", self.refuse)
        elif self._call is None:
            how = compile_call if self.batch is None else compile_item
            compiled = how(self.function, self.name, _CONVENTION, client=self.client is not None)
            object.__setattr__(self, "_call", compiled)

    def refuse(self, *_: Any) -> Any:
        """Raises the ChainError of a handler that takes DataFrames where there is only one message."""
        raise ChainError(
            f"the {self.kind} {self.name!r} takes a whole DataFrame and runs on Spark only, "
            "and no router can pick it: run the chain with delivery_dag, or write the handler for one message"
        )


@overload
def message_filter(function: Function, /) -> Handler: ...
@overload
def message_filter(
    *, name: str | None = None, dataframe: bool = False, connections: Collection[str] = ()
) -> Callable[[Function], Handler]: ...
@refuses_unknown
def message_filter(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    dataframe: bool = False,
    connections: Collection[str] = (),
) -> Any:
    """Makes a filter: returns True to go on, False to drop the message; of a DataFrame, the rows that go on."""
    return _decorate(FILTER, function, name, connections, dataframe=dataframe)


@overload
def transformer(function: Function, /) -> Handler: ...
@overload
def transformer(
    *, name: str | None = None, dataframe: bool = False, connections: Collection[str] = ()
) -> Callable[[Function], Handler]: ...
@refuses_unknown
def transformer(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    dataframe: bool = False,
    connections: Collection[str] = (),
) -> Any:
    """Makes a transformer: what it returns is the content from there on; of a DataFrame, in its column `message`."""
    return _decorate(TRANSFORMER, function, name, connections, dataframe=dataframe)


@overload
def processor(function: Function, /) -> Handler: ...
@overload
def processor(*, name: str | None = None, connections: Collection[str] = ()) -> Callable[[Function], Handler]: ...
@refuses_unknown
def processor(
    function: Function | None = None, /, *, name: str | None = None, connections: Collection[str] = ()
) -> Any:
    """Makes a generic processor: does anything to the context and returns nothing."""
    return _decorate(PROCESSOR, function, name, connections)


@overload
def processor_router(function: Function, /) -> Handler: ...
@overload
def processor_router(
    *, name: str | None = None, connections: Collection[str] = ()
) -> Callable[[Function], Handler]: ...
@refuses_unknown
def processor_router(
    function: Function | None = None, /, *, name: str | None = None, connections: Collection[str] = ()
) -> Any:
    """Makes a processor router: the processor it returns runs in its place, then the flow goes on."""
    return _decorate(PROCESSOR_ROUTER, function, name, connections)


@overload
def destination(function: Function, /) -> Handler: ...
@overload
def destination(
    *,
    name: str | None = None,
    max_retries: int = 0,
    retry_interval: float = 1.0,
    retry: RetryPolicy | None = None,
    batch: int | None = None,
    setup: Callable[..., Any] | None = None,
    dataframe: bool = False,
    threads: int = 1,
    rate: float | None = None,
    breaker: CircuitBreaker | None = None,
    connections: Collection[str] = (),
) -> Callable[[Function], Handler]: ...
@refuses_unknown
def destination(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    max_retries: int = 0,
    retry_interval: float = 1.0,
    retry: RetryPolicy | None = None,
    batch: int | None = None,
    setup: Callable[..., Any] | None = None,
    dataframe: bool = False,
    threads: int = 1,
    rate: float | None = None,
    breaker: CircuitBreaker | None = None,
    connections: Collection[str] = (),
) -> Any:
    """Makes a destination: tried once, then up to `max_retries` times, `retry_interval` seconds apart.

    `retry` is a whole policy in place of those two. With `batch`, the function takes a list of up to that many messages
    and says which failed: it returns a list with one result or exception per message, or raises PartialFailure. `setup`
    makes the client that the function takes as its last parameter, once per process and shared by its threads; it takes
    nothing, or the `connections`, as in `connections["crm_api"]`. With `dataframe`, the function takes all messages of
    a Spark job at once and has none of these: its retry is the replay.

    For a destination that waits for others: `threads` is how many messages each Spark task delivers at the same time;
    `rate` how many calls a second are made at most, by all tasks of a job together; `breaker` stops calling one that is
    down, and its messages fail at once, to be replayed.
    """
    try:
        policy = one_policy(retry, max_retries, retry_interval, usual=RetryPolicy(), of="a destination")
        check("batch= of a destination", batch, AtLeastOne | None)
        check("threads= of a destination", threads, AtLeastOne)
    except ConfigurationError as error:
        raise ChainError(str(error)) from error
    if setup is not None and not callable(setup):
        raise ChainError(f"setup= must be a function that makes the destination's client, got {setup!r}")
    if breaker is not None and not isinstance(breaker, CircuitBreaker):
        raise ChainError(f"breaker= must be a CircuitBreaker, got {breaker!r}")
    others = (policy != RetryPolicy(), batch, setup, threads > 1, rate, breaker)
    if dataframe and any(others):
        raise ChainError(
            "a destination with dataframe=True has no retries, batch=, setup=, threads=, rate= or breaker="
        )
    options: dict[str, Any] = {
        "policy": policy,
        "batch": batch,
        "setup": setup,
        "dataframe": dataframe,
        "threads": threads,
        "guard": _guard(rate, breaker),
    }
    return _decorate(DESTINATION, function, name, connections, **options)


@overload
def destination_router(function: Function, /) -> Handler: ...
@overload
def destination_router(
    *, name: str | None = None, connections: Collection[str] = ()
) -> Callable[[Function], Handler]: ...
@refuses_unknown
def destination_router(
    function: Function | None = None, /, *, name: str | None = None, connections: Collection[str] = ()
) -> Any:
    """Makes a destination router: the message goes to the flow it returns; None delivers nowhere."""
    return _decorate(DESTINATION_ROUTER, function, name, connections)


def _guard(rate: float | None, breaker: CircuitBreaker | None) -> Guard | None:
    if rate is None and breaker is None:
        return None
    return Guard(
        None if rate is None else RateLimiter(rate),
        None if breaker is None else Circuit(breaker),
        answers=(Drop, PartialFailure),
    )


def _decorate(
    kind: str,
    function: Function | None,
    name: str | None,
    connections: Collection[str],
    setup: Function | None = None,
    **options: Any,
) -> Any:
    if connections and options.get("dataframe"):
        raise ChainError(
            f"a {kind} with dataframe=True has no connections=: it makes a plan, and Spark shows what plans are told "
            "in its UI and its logs. Log in where single messages are handled"
        )

    def decorate(function: Function) -> Handler:
        chosen = _name_of(function, kind, name)
        declared = DeclaredConnections(connections, f"{kind} {chosen!r}")
        client = None if setup is None else Client(setup, declared)
        return Handler(function, kind, chosen, client=client, connections=declared, **options)

    return decorate if function is None else decorate(function)


_LONGEST_NAME = 255  # what a ledger keeps of it


def _name_of(function: Function, kind: str, name: str | None) -> str:
    if isinstance(function, Handler):
        raise ChainError(f"handler {function.name!r} is a {function.kind} already and cannot be a {kind} as well")
    if not callable(function):
        raise ChainError(f"a {kind} must be made from a function, got {function!r}")
    chosen = getattr(function, "__name__", None) if name is None else name
    if not isinstance(chosen, str) or not chosen.strip():
        raise ChainError(f"a {kind} needs a name that is a str and not empty, got {chosen!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ChainError(f"handler {chosen!r} is a generator, which would run nothing; return instead of yield")
    if len(chosen) > _LONGEST_NAME or "\0" in chosen or not is_unicode(chosen):
        raise ChainError(
            f"the name of a {kind} must have at most {_LONGEST_NAME} characters, no NUL and no lone surrogate, got "
            f"{chosen!r}"
        )
    return str.__str__(chosen)  # whatever kind of text it was: the ledger keeps it
