"""Arguments: a name that nothing of ours has is refused, with the one that was meant."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Any, TypeVar

from homing.errors import ConfigurationError

Callee = TypeVar("Callee", bound=Callable[..., Any])


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.7) -> str | None:
    """The one of these names that somebody who wrote `name` may have meant."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)), None)


def refuse_unknown(given: Iterable[str], known: Collection[str], *, of: str, otherwise: str = "") -> None:
    """Raises ConfigurationError for an option that `of` does not have. By a misspelt one, another store than was meant
    might be opened, and messages would wait there for ever.

    `otherwise` is said where none is near; without it, all there are.
    """
    for name in given:
        if name not in known:
            guess = nearest(name, known)
            hint = f"did you mean {guess}=?" if guess else otherwise or f"it has: {', '.join(known) or 'none'}"
            raise ConfigurationError(f"{of} has no option {name!r:.60}; {hint}")


def refuses_unknown(callee: Callee) -> Callee:
    """Has a function, or a class when it is made, refuse an argument that it does not have by `refuse_unknown`. Python
    itself would not say which was meant."""
    if isinstance(callee, type):
        callee.__init__ = _checked(callee.__init__, callee.__name__)  # type: ignore[misc]
        return callee
    checked: Any = _checked(callee, f"{getattr(callee, '__name__', callee)}()")
    return checked  # type: ignore[no-any-return]


def _checked(function: Callable[..., Any], of: str) -> Callable[..., Any]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = [name for name, each in inspect.signature(function).parameters.items() if each.kind in kinds]

    @wraps(function)
    def call(*args: Any, **arguments: Any) -> Any:
        if not arguments.keys() <= set(known):
            refuse_unknown(arguments, [name for name in known if name != "self"], of=of)
        return function(*args, **arguments)

    return call
