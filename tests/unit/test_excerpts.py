from __future__ import annotations

from typing import Any

import msgspec
import pytest

from homing.excerpts import excerpt
from homing.portions import portions


@pytest.mark.parametrize("value", [None, 1, "short", "x" * 150, {"a": [1, 2]}, ["\0" * 5]])
def test_what_is_short_stays_as_it_is(value: Any) -> None:
    assert excerpt(value, 200) == value


@pytest.mark.parametrize(
    "value",
    ["x" * 10_000, "\x01" * 10_000, '"' * 10_000, "ä" * 10_000, list(range(10_000)), {str(n): n for n in range(5_000)},
     {"k" * 5_000: 1}, {"a": "x" * 5_000, "b": {"c": ["y" * 5_000]}}],
)  # fmt: skip
def test_what_is_long_is_cut_to_size_and_says_so(value: Any) -> None:
    cut = excerpt(value, 1000)

    assert len(msgspec.json.encode(cut)) <= 1000
    assert "(cut: " in msgspec.json.encode(cut).decode()


def test_an_object_of_few_keys_keeps_them_and_what_is_short_in_it() -> None:
    cut = excerpt({"type": "ValueError", "handler": "crm", "attempt": 1, "stack": "x" * 10_000}, 1000)

    assert (cut["type"], cut["handler"], cut["attempt"]) == ("ValueError", "crm", 1)
    assert cut["stack"].startswith("xxx")
    assert cut["stack"].endswith("(cut: 10002 bytes in all)")


def test_portions_are_cut_by_number_and_by_weight_and_leave_nothing_out() -> None:
    assert list(portions([5, 5, 5, 30, 1, 1, 1, 1], int, most=3, most_bytes=10)) == [[5, 5], [5], [30], [1, 1, 1], [1]]
    assert list(portions([], int)) == []
