"""A store that an author wrote: an object with the three verbs is one, and need know nothing of ours.

    store(content)                   keeps a content; may take `id` and `headers`, and return the message's id
    retrieve()                       the next message, as a homing.Message, or None
    acknowledge(id, success=True)    finishes it, or gives it back

`close`, `name`, `features` and everything else that a Store has are optional: what the object has of them is used.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol
from weakref import WeakValueDictionary

from homing.errors import ConfigurationError, StoreError
from homing.invocation.error_info import text_of
from homing.invocation.invalid_return import find_return_fault
from homing.message import Headers, Message
from homing.store import FULL_MESSAGE, SCHEDULE, TRANSACTIONS, Store

VERBS = ("store", "retrieve", "acknowledge")

# What a Store does by itself with the object, whatever that has of the same name.
_OWN = {*VERBS, "close", "max_message_bytes", "identity", "wakes"}
_lock = threading.Lock()


class ThreeVerbs(Protocol):
    """What an object needs to be a store."""

    @property
    def store(self) -> Callable[..., Any]: ...
    @property
    def retrieve(self) -> Callable[[], Any]: ...
    @property
    def acknowledge(self) -> Callable[..., Any]: ...


def as_store(given: Any, role: str = "a store") -> Store:
    """Returns `given` if it is a Store. For an object with the three verbs, returns a Store that calls it.

    For one object, every call returns one and the same Store. Raises ConfigurationError, which says what is missing,
    for anything else. `role` says in the error what `given` was to be, such as "the source".
    """
    fault = _find_fault(given)
    if fault is not None:
        raise ConfigurationError(
            f"{role} must be a store, got {given!r:.100}, which {fault}. A store has {', '.join(VERBS)}"
        )
    if isinstance(given, Store):
        return given
    with _lock:
        known = _known.get(id(given))
        if known is None:
            known = _known[id(given)] = CustomStore(given)
        return known


def _find_fault(given: Any) -> str | None:
    """Why this is not a store; None when it is one."""
    if isinstance(given, type):
        return "is a class: give an object of it"
    if missing := [verb for verb in VERBS if not callable(getattr(given, verb, None))]:
        return f"has no {', '.join(missing)}"
    if late := [verb for verb in VERBS if _runs_later(getattr(given, verb))]:
        return f"does nothing yet when {' or '.join(late)} is called: make them plain functions, without async or yield"
    return None


def _runs_later(verb: Any) -> bool:
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_one(verb) for is_one in kinds)


class CustomStore(Store):
    """An author's object as a Store. It is called with what its methods take, and its abilities are its `features`."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self.name = str(getattr(given, "name", "") or type(given).__qualname__)
        self.features = frozenset(getattr(given, "features", ()))
        self._takes = _keywords(given.store)
        for name in dir(Store):
            if not name.startswith("_") and name not in _OWN and callable(getattr(given, name, None)):
                setattr(self, name, getattr(given, name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also while this is being made, or copied
            raise AttributeError(name)
        return getattr(self._given, name)

    @property
    def max_message_bytes(self) -> int | None:
        return getattr(self._given, "max_message_bytes", None)

    @property
    def identity(self) -> str:
        return str(getattr(self._given, "identity", ""))

    @property
    def wakes(self) -> bool:
        return bool(getattr(self._given, "wakes", False))

    def store(
        self,
        content: Any,
        *,
        id: str | None = None,
        headers: Headers | None = None,
        scheduled_at: datetime | None = None,
        transaction: Any = None,
    ) -> str:
        """As in the contract. An `id` or `headers` that the object's own `store` does not take are not kept."""
        beside = {"scheduled_at": scheduled_at, "transaction": transaction}
        for ability, wanted in zip((SCHEDULE, TRANSACTIONS), beside.values(), strict=True):
            if wanted is not None and ability not in self.features:
                raise self._lacks(ability)
        if isinstance(content, Message) and FULL_MESSAGE not in self.features:
            return self.store(content.content, id=id or content.id, headers=headers or content.headers, **beside)
        given = {name: value for name, value in {"id": id, "headers": headers, **beside}.items() if value is not None}
        stored = self._given.store(content, **{name: value for name, value in given.items() if self._takes(name)})
        self._require_done("store", stored)
        return stored if isinstance(stored, str) else id or ""

    def retrieve(self) -> Message | None:
        message = self._given.retrieve()
        if message is None or isinstance(message, Message):
            return message
        raise StoreError(
            f"retrieve() of store {self.name!r} must return a homing.Message or None, got a {type(message).__name__}"
        )

    def acknowledge(self, message: str | Message, success: bool = True, *, transaction: Any = None) -> None:
        """As in the contract. The object is told the id; or the whole message, where that has a `lock_token` of it."""
        if transaction is not None and TRANSACTIONS not in self.features:
            raise self._lacks(TRANSACTIONS)
        known_by = message.id if isinstance(message, Message) and message.lock_token is None else message
        within = {} if transaction is None else {"transaction": transaction}
        self._require_done("acknowledge", self._given.acknowledge(known_by, success, **within))

    def _require_done(self, verb: str, returned: Any) -> None:
        """Raises StoreError for what shows that the object did not do what it was asked, such as a coroutine."""
        fault = find_return_fault(returned)
        if fault is not None:
            raise StoreError(f"{verb}() of store {self.name!r} did not do it: {text_of(fault)}") from fault

    def close(self) -> None:
        close = getattr(self._given, "close", None)
        if close is not None:
            close()


_known: WeakValueDictionary[int, CustomStore] = WeakValueDictionary()


def _keywords(function: Callable[..., Any]) -> Callable[[str], bool]:
    """Tells whether this function takes an argument of that name."""
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C: it is taken to be like ours
        return lambda _: True
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return lambda _: True
    return parameters.__contains__
