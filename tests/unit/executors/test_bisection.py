"""Trying smaller parts of a batch until what makes it fail is alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from homing.spark.bisection import MOST_IN_VAIN, Bisection, InVainError


class Calls:
    """A call that fails for some numbers, and what became of each number."""

    def __init__(self, poison: set[int]) -> None:
        self.poison = poison
        self.sizes: list[int] = []
        self.done: list[int] = []
        self.given_up: dict[int, str] = {}

    def call(self, part: Sequence[int]) -> None:
        self.sizes.append(len(part))
        if self.poison & set(part):
            raise ValueError(f"{len(part)} at once")
        self.done += part

    def give_up(self, one: int, error: Exception) -> None:
        assert one not in self.given_up
        self.given_up[one] = str(error)

    @property
    def bisection(self) -> Bisection[int]:
        return Bisection(self.call, self.give_up)


SCATTERED = {10 * n + n * n * 7 % 10 for n in range(100)}


@pytest.mark.parametrize(
    ("number", "poison", "most"),
    [
        (1000, set(), 1),
        (1000, {0}, 15),
        (1000, {999}, 15),
        (1000, {3, 500}, 25),
        (1000, {1, 2, 3}, 35),
        (1000, set(range(5, 1000, 10)), 750),
        (1000, SCATTERED, 650),
        (340, set(range(100, 134)), 100),
        (340, set(range(100, 204)), 200),
        (64, set(range(0, 64, 2)), 130),
    ],
)
def test_only_poison_is_given_up_and_each_of_it_has_failed_alone(number: int, poison: set[int], most: int) -> None:
    calls = Calls(poison)
    assert calls.bisection.over(range(number)) == 0
    assert sorted(calls.done) == [n for n in range(number) if n not in poison]
    assert calls.given_up == dict.fromkeys(poison, "1 at once")
    assert len(calls.sizes) <= most


def test_what_is_not_tried_alone_when_too_many_calls_have_failed_is_not_given_up() -> None:
    calls = Calls(SCATTERED)
    bisection = Bisection(calls.call, calls.give_up, most_failures=50)

    untried = bisection.over(range(1000))

    assert 0 < untried < 1000
    assert set(calls.given_up.values()) == {"1 at once"}
    assert calls.given_up.keys() < SCATTERED
    assert len(calls.done) + len(calls.given_up) + untried == 1000
    assert bisection.over(range(1000, 1010)) == 10
    assert max(calls.done) < 1000


def test_where_nothing_passes_nobody_is_blamed_beyond_a_few() -> None:
    calls = Calls(set(range(1000)))
    with pytest.raises(InVainError, match=r"32 messages failed.*the 968 others.*ValueError"):
        calls.bisection.over(range(1000))
    assert calls.given_up == dict.fromkeys(range(MOST_IN_VAIN), "1 at once")


def test_few_that_all_fail_are_all_given_up() -> None:
    calls = Calls(set(range(MOST_IN_VAIN)))
    assert calls.bisection.over(range(MOST_IN_VAIN)) == 0
    assert len(calls.given_up) == MOST_IN_VAIN


def test_what_has_failed_before_is_tried_in_small_parts_first_and_says_nothing_about_the_others() -> None:
    calls = Calls(set(range(100)))
    assert Bisection(calls.call, calls.give_up, has_failed=lambda _: True).over(range(100)) == 0
    assert calls.sizes == [1] * 100
    assert len(calls.given_up) == 100

    mended = Calls(set())
    assert Bisection(mended.call, mended.give_up, has_failed=lambda one: one == 50).over(range(100)) == 0
    assert mended.sizes == [1, 2, 4, 8, 16, 32, 37]


def test_what_fails_once_and_passes_alone_is_not_given_up() -> None:
    calls = Calls(set())

    def call(part: Sequence[int]) -> None:
        if not calls.sizes:
            calls.sizes.append(len(part))
            raise ConnectionError("for a moment")
        calls.call(part)

    assert Bisection(call, calls.give_up).over(range(8)) == 0
    assert sorted(calls.done) == list(range(8))
    assert calls.given_up == {}


def test_no_items_need_no_call() -> None:
    calls = Calls(set())
    assert calls.bisection.over([]) == 0
    assert calls.sizes == []


def test_what_is_nobodys_fault_passes_through() -> None:
    calls = Calls({1})
    with pytest.raises(ValueError, match="8 at once"):
        Bisection(calls.call, calls.give_up, lambda error: False).over(range(8))
    assert calls.given_up == {}
