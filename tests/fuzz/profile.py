"""How the fuzz tests run: the same examples every time, and as many as a suite can afford."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


#: Any text Python can hold: NULs and lone surrogates too.
TEXTS = st.text(st.characters(exclude_categories=()), max_size=30)
#: Text a database can hold.
SQL_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
ANYTHING: st.SearchStrategy[Any] = st.one_of(
    JSON_VALUES,
    st.binary(max_size=30),
    st.datetimes(),
    st.complex_numbers(),
    st.sets(st.integers(), max_size=3),
    st.tuples(st.integers(), TEXTS),
    st.dictionaries(st.integers() | st.none() | TEXTS, JSON_VALUES, max_size=3),
    st.builds(object),
    st.sampled_from([int, Exception(), b"x" * 70_000, "x" * 70_000, 2**64, 2**200, -(2**63) - 1]),
)
