"""The options behind the `?` of a store's URL, read into the types that a store declares for them.

A store declares its options as frozen dataclasses whose fields are constrained types (`homing.constraints`). A field's
name is the option's; only that of the field `name` is `store`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from homing.constraints import constraints, read_text
from homing.errors import ConfigurationError

T = TypeVar("T")

_STORE = "store"
_NOT_IN_URL = "homing_not_in_url"
#: The metadata of a field that no URL sets.
NOT_IN_URL = {_NOT_IN_URL: True}


def split_query(query: str) -> dict[str, str]:
    """The options in the query of a URL, each by its name; raises ConfigurationError for one that is there twice."""
    pairs = parse_qsl(query, keep_blank_values=True)
    refuse_repeated(name for name, _ in pairs)
    return dict(pairs)


def refuse_repeated(names: Iterable[str]) -> None:
    """Raises ConfigurationError for an option that is there twice: it is not known which of them is meant."""
    for name, times in Counter(names).items():
        if times > 1:
            raise ConfigurationError(f"the option {name!r:.60} is in the store's URL more than once")


def option_names(*kinds: type) -> list[str]:
    return [_STORE if name == "name" else name for kind in kinds for name in _declared(kind)]


def read_options(kind: type[T], query: Mapping[str, Any], **more: Any) -> T:
    """The options that this type declares, and `more` that stand in no URL; what else the query has is left to others.
    What is left out has its default. Raises ConfigurationError for a value that cannot be."""
    given = {
        "name" if option == _STORE else option: read_text(f"the store option {option}", query[option], wanted)
        for option, wanted in zip(option_names(kind), _declared(kind).values(), strict=True)
        if option in query
    }
    return kind(**given, **more)


def _declared(kind: type) -> dict[str, Any]:
    """The types of those fields that a URL may set."""
    in_url = {field.name for field in fields(kind) if not field.metadata.get(_NOT_IN_URL)}
    return {name: wanted for name, wanted in constraints(kind).items() if name in in_url}
