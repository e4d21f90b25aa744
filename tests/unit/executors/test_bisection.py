"""Halving a batch until what makes it fail is alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from homing.spark.bisection import FailedForAllError, bisect


class Calls:
    """A call that fails for some numbers, and what became of each number."""

    def __init__(self, poison: set[int]) -> None:
        self.poison = poison
        self.made = 0
        self.done: list[int] = []
        self.given_up: dict[int, str] = {}

    def call(self, part: Sequence[int]) -> None:
        self.made += 1
        if self.poison & set(part):
            raise ValueError(f"{len(part)} at once")
        self.done += part

    def give_up(self, part: Sequence[int], error: Exception) -> None:
        self.given_up.update(dict.fromkeys(part, str(error)))


@pytest.mark.parametrize("poison", [set(), {0}, {999}, {3, 500}, {1, 2, 3}])
def test_only_poison_is_given_up_and_it_fails_alone(poison: set[int]) -> None:
    calls = Calls(poison)
    bisect([range(1000)], calls.call, calls.give_up)
    assert sorted(calls.done) == [n for n in range(1000) if n not in poison]
    assert calls.given_up == dict.fromkeys(poison, "1 at once")


def test_when_everything_fails_the_calls_are_bounded_and_nothing_is_forgotten() -> None:
    calls = Calls(set(range(1000)))
    bisect([range(1000)], calls.call, calls.give_up, most_calls=10)
    assert calls.made == 10
    assert calls.given_up.keys() == set(range(1000))


def test_no_items_need_no_call() -> None:
    calls = Calls(set())
    bisect([[]], calls.call, calls.give_up)
    assert calls.made == 0


def test_a_failure_for_all_is_not_halved() -> None:
    calls = Calls(set())

    def call(part: Sequence[int]) -> None:
        calls.made += 1
        raise FailedForAllError from ValueError("no such column")

    bisect([range(8)], call, calls.give_up)
    assert calls.made == 1
    assert calls.given_up == dict.fromkeys(range(8), "no such column")


def test_what_is_nobodys_fault_passes_through() -> None:
    calls = Calls({1})
    with pytest.raises(ValueError, match="8 at once"):
        bisect([range(8)], calls.call, calls.give_up, is_fault=lambda error: False)
    assert calls.given_up == {}
