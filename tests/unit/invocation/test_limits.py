"""Rates and circuit breakers, with a clock of their own."""

from __future__ import annotations

import pytest

from homing import CircuitBreaker, ExecutionError, HandlerChain, destination
from homing.errors import ChainError, CircuitOpenError, ConfigurationError
from homing.invocation.circuit_breaker import Circuit
from homing.invocation.guard import Guard, share_rates
from homing.invocation.rate_limit import RateLimiter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_a_rate_spreads_calls_evenly_and_never_makes_up_for_idle_time() -> None:
    clock = Clock()
    rate = RateLimiter(4, clock=clock, sleep=clock.sleep)
    for _ in range(3):
        rate.wait()
    assert clock.slept == [0.25, 0.25]
    clock.now = 100.0
    rate.wait()
    rate.wait()
    assert clock.slept == [0.25, 0.25, 0.25]


def test_a_rate_is_shared_by_those_who_call_at_the_same_time() -> None:
    clock = Clock()
    rate = RateLimiter(4, clock=clock, sleep=clock.sleep)
    guard = Guard(rate, None)
    share_rates(2)
    try:
        guard.call(str)
        guard.call(str)
    finally:
        share_rates(1)
    assert clock.slept == [0.5]


@pytest.mark.parametrize("bad", [0, -1, float("inf"), True, "10"])
def test_a_rate_that_cannot_be_is_refused(bad: object) -> None:
    with pytest.raises(ConfigurationError, match="calls per second"):
        RateLimiter(bad)  # type: ignore[arg-type]


def opened(clock: Clock) -> Circuit:
    circuit = Circuit(CircuitBreaker(failures=2, pause=30), clock)
    for _ in range(2):
        circuit.enter()
        circuit.failed()
    return circuit


def test_a_circuit_opens_after_failures_in_a_row_only() -> None:
    circuit = Circuit(CircuitBreaker(failures=2), Clock())
    for end in (circuit.failed, circuit.succeeded, circuit.failed):
        circuit.enter()
        end()
    circuit.enter()
    circuit.failed()
    with pytest.raises(CircuitOpenError, match="failed 2 times"):
        circuit.enter()


def test_after_the_pause_one_call_tries_and_the_others_wait_for_it() -> None:
    clock = Clock()
    circuit = opened(clock)
    clock.now = 30.0
    circuit.enter()
    with pytest.raises(CircuitOpenError):
        circuit.enter()
    circuit.succeeded()
    circuit.enter()
    circuit.enter()


def test_a_try_that_fails_begins_the_pause_anew() -> None:
    clock = Clock()
    circuit = opened(clock)
    clock.now = 30.0
    circuit.enter()
    circuit.failed()
    clock.now = 59.0
    with pytest.raises(CircuitOpenError, match="in 1 seconds"):
        circuit.enter()
    clock.now = 60.0
    circuit.enter()


@pytest.mark.parametrize("bad", [{"failures": 0}, {"failures": 1.5}, {"pause": 0}])
def test_a_breaker_that_cannot_be_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="circuit breaker"):
        CircuitBreaker(**bad)  # type: ignore[arg-type]


def test_an_exception_that_is_an_answer_shows_the_other_side_to_be_well() -> None:
    guard = Guard(None, Circuit(CircuitBreaker(failures=1), Clock()), answers=(LookupError,))

    def answer() -> None:
        raise LookupError

    for _ in range(2):
        with pytest.raises(LookupError):
            guard.call(answer)


def test_a_destination_that_is_down_stops_being_called_and_is_not_retried_in_place() -> None:
    calls = []

    @destination(max_retries=3, retry_interval=0.001, breaker=CircuitBreaker(failures=2, pause=300))
    def crm(ctx: object) -> None:
        calls.append(ctx)
        raise ConnectionError("down")

    @destination
    def lake(ctx: object) -> str:
        return "taken"

    chain = HandlerChain("orders", destinations_flow=[crm, lake])
    for _ in range(3):
        with pytest.raises(ExecutionError) as raised:
            chain.execute(1)
        assert raised.value.message.content["done"] == {"lake": "taken"}
    assert len(calls) == 2
    assert raised.value.message.content["errors"]["crm"]["type"] == "homing.errors.CircuitOpenError"


@pytest.mark.parametrize("bad", [{"threads": 0}, {"breaker": 5}])
def test_options_that_cannot_be_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ChainError):
        destination(**bad)  # type: ignore[call-overload]
