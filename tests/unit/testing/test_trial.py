"""try_chain: what an author learns of a chain without calling its destinations."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from homing import (
    CircuitBreaker,
    Drop,
    HandlerChain,
    Message,
    MessageContext,
    Retry,
    connections,
    destination,
    destination_router,
    message_filter,
    open_store,
    processor,
    processor_router,
    transformer,
)
from homing.errors import BindingError, ConfigurationError, MissingConnectionError, UnstorableContentError
from homing.pipeline import attempt
from homing.testing import Dropped, try_chain


@dataclass
class Order:
    number: int
    country: str = "DE"
    paid: bool = True


@message_filter
def paid(order: Order) -> bool:
    return order.paid


@transformer
def marked(order: Order, ctx: MessageContext) -> dict[str, Any]:
    if order.number == 13:
        raise ValueError("thirteen")
    ctx.set_header("seen", True)
    ctx.set_property("country", order.country)
    return {**ctx.get_content(), "marked": True}


@message_filter
def european(order: Order) -> bool:
    return order.country != "US"


def never_called(*_: object) -> Any:
    raise AssertionError("a destination was called")


@destination
def crm(order: Order) -> Any:
    never_called(order)


@destination
def lake(ctx: MessageContext) -> Any:
    never_called(ctx)


ORDERS = HandlerChain("orders", source_flow=[paid, marked], destinations_flow=[lake, ([european], crm)])


def order(number: int, **more: Any) -> dict[str, Any]:
    return {"number": number, **more}


def chain_of(*destinations: Any, source: Any = ()) -> HandlerChain:
    return HandlerChain("shop", source_flow=source, destinations_flow=list(destinations))


# -- how messages end ------------------------------------------------------------------------------------------


def test_each_destination_records_what_it_would_have_got_and_none_is_called() -> None:
    trial = try_chain(ORDERS, [order(1), order(2, country="US")])

    first, second = {"number": 1, "marked": True}, {"number": 2, "country": "US", "marked": True}
    assert trial.delivered == {"lake": [first, second], "crm": [first]}
    assert [(each.destination, each.id) for each in trial.deliveries] == [("lake", "1"), ("lake", "2"), ("crm", "1")]
    assert trial.failed == []


def test_a_delivery_has_the_headers_and_properties_that_the_processors_left() -> None:
    delivery = try_chain(ORDERS, [Message("a", order(1), headers={"trace": "t"})]).deliveries[0]

    assert (delivery.id, delivery.headers, delivery.properties, delivery.result) == (
        "a", {"trace": "t", "seen": True}, {"country": "DE"}, None,
    )  # fmt: skip


def test_what_a_rule_drops_is_told_with_the_rule_for_all_or_for_one_destination() -> None:
    trial = try_chain(ORDERS, [order(1, paid=False), order(2, country="US")])

    assert trial.dropped == [
        Dropped("1", "paid", "filter paid returned False"),
        Dropped("2", "european", "filter european returned False", "crm"),
    ]


def test_a_drop_that_is_raised_is_told_with_its_reason() -> None:
    @processor
    def check(ctx: MessageContext) -> None:
        raise Drop("not on sundays")

    @destination
    def real(ctx: MessageContext) -> None:
        raise Drop("not to this customer")

    (early,) = try_chain(chain_of(real, source=[check]), [1]).dropped
    (late,) = try_chain(chain_of(real), [1], real=["real"]).dropped
    assert (early.handler, early.reason, early.destination) == ("check", "not on sundays", None)
    assert (late.handler, late.destination) == ("real", "real")


def test_what_fails_is_told_with_the_handler_and_the_error_it_raised() -> None:
    @transformer
    def broken(ctx: MessageContext) -> None:
        raise KeyError("eu")

    trial = try_chain(
        HandlerChain("orders", source_flow=[marked], destinations_flow=[lake, ([broken], crm)]), [order(13), order(2)]
    )

    source, before_crm = trial.failed
    assert (source.id, source.handler, source.destination) == ("1", "marked", None)
    assert isinstance(source.error, ValueError)
    assert (before_crm.id, before_crm.handler, before_crm.destination) == ("2", "broken of crm", "crm")
    assert isinstance(before_crm.error, KeyError)
    assert [each["number"] for each in trial.delivered["lake"]] == [2], "the others are not touched"


def test_a_failure_is_logged_with_its_trace_for_whoever_did_not_look_for_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "homing.testing"):
        try_chain(ORDERS, [order(13)])

    assert "message 1 failed in marked" in caplog.text
    assert "thirteen" in caplog.text


# -- recorders -------------------------------------------------------------------------------------------------


def test_a_recorder_fails_where_the_content_does_not_fit_the_destination() -> None:
    (failed,) = try_chain(chain_of(crm), [{"number": "one"}]).failed

    assert (failed.handler, failed.destination, type(failed.error)) == ("crm", "crm", BindingError)


def test_a_destination_of_batches_records_them_one_by_one_and_refuses_those_that_do_not_fit() -> None:
    @destination(batch=10)
    def bulk(orders: list[Order]) -> Any:
        never_called(orders)

    trial = try_chain(chain_of(bulk), [order(1), {"number": None}, order(3)])

    assert trial.delivered == {"bulk": [order(1), order(3)]}
    assert [each.id for each in trial.failed] == ["2"]


def test_a_recorder_makes_no_client_and_keeps_to_no_rate() -> None:
    @destination(setup=never_called, rate=0.001, max_retries=5, breaker=CircuitBreaker(1, 60))
    def slow(order: Order, client: object) -> Any:
        never_called(order, client)

    trial = try_chain(chain_of(slow), [order(number) for number in range(20)])

    assert len(trial.delivered["slow"]) == 20


def test_a_destination_that_takes_dataframes_is_recorded_without_spark() -> None:
    @destination(dataframe=True)
    def parquet(orders: Any) -> Any:
        never_called(orders)

    assert try_chain(chain_of(parquet, source=[paid]), [order(1)]).delivered == {"parquet": [order(1)]}


def test_the_failure_store_is_not_written() -> None:
    with open_store("memory://trial-failures") as failures:
        chain = HandlerChain("orders", source_flow=[marked], destinations_flow=[lake], failure_store=failures)
        assert len(try_chain(chain, [order(13)]).failed) == 1

        assert failures.retrieve() is None


def test_the_chain_itself_is_left_as_it_was() -> None:
    try_chain(ORDERS, [order(1)])

    with pytest.raises(Exception, match="a destination was called"):
        ORDERS.execute(order(1))


# -- real destinations -----------------------------------------------------------------------------------------


def test_a_real_destination_is_called_and_its_result_and_failure_are_told() -> None:
    @destination
    def real(order: Order) -> str:
        if order.number == 2:
            raise ConnectionError("down")
        return f"order {order.number}"

    trial = try_chain(chain_of(real, lake), [order(1), order(2)], real=["real"])

    assert [each.result for each in trial.deliveries if each.destination == "real"] == ["order 1"]
    (failed,) = trial.failed
    assert (failed.id, failed.handler, type(failed.error)) == ("2", "real", ConnectionError)
    assert len(trial.delivered["lake"]) == 2


@pytest.mark.parametrize("error", [ConnectionError("down"), Retry("later", after=3600)])
def test_a_real_destination_is_tried_as_often_as_it_says_without_waiting(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []
    slept: list[float] = []
    monkeypatch.setattr(attempt.time, "sleep", slept.append)

    @destination(max_retries=3, retry_interval=3600, rate=0.001)
    def flaky(order: Order) -> str:
        attempts.append(order.number)
        if len(attempts) < 4:
            raise error
        return "at last"

    (delivery,) = try_chain(chain_of(flaky), [order(1)], real=["flaky"]).deliveries

    assert (delivery.result, attempts, set(slept)) == ("at last", [1, 1, 1, 1], {0.0})


def test_a_real_destinations_client_is_made_and_closed() -> None:
    told: list[str] = []

    class Client:
        def __enter__(self) -> Client:
            told.append("open")
            return self

        def __exit__(self, *_: object) -> None:
            told.append("closed")

    @destination(setup=Client, batch=2)
    def bulk(orders: list[Order], client: Client) -> None:
        told.append(f"{len(orders)} orders")

    trial = try_chain(chain_of(bulk), [order(1), order(2), order(3)], real=["bulk"])

    assert told == ["open", "2 orders", "1 orders", "closed"]
    assert [each.id for each in trial.deliveries] == ["1", "2", "3"]


# -- routers ---------------------------------------------------------------------------------------------------


@destination
def american(order: Order) -> Any:
    never_called(order)


@destination_router
def by_country(order: Order) -> Any:
    return {"US": american, "DE": ([paid], crm)}.get(order.country)


def test_destinations_behind_a_router_record_what_it_sends_them() -> None:
    orders = [order(1), order(2, country="US"), order(3, country="BR"), order(4, paid=False)]
    trial = try_chain(chain_of(by_country), orders)

    assert trial.delivered == {"crm": [order(1)], "american": [order(2, country="US")]}
    assert [(each.id, each.handler, each.destination) for each in trial.dropped] == [
        ("3", "by_country", "by_country"),
        ("4", "paid", "crm"),
    ]


def test_a_router_that_fails_is_told_as_such() -> None:
    (failed,) = try_chain(chain_of(by_country), [{"number": "x"}]).failed

    assert (failed.handler, failed.destination) == ("by_country", "by_country")


def test_a_destination_for_dataframes_fails_behind_a_router_as_it_does_on_spark() -> None:
    @destination(dataframe=True)
    def parquet(orders: Any) -> Any:
        never_called(orders)

    @destination_router
    def route(ctx: MessageContext) -> Any:
        return parquet

    (failed,) = try_chain(chain_of(route), [1]).failed
    assert "no router can pick it" in str(failed.error)


def test_a_processor_that_a_router_picks_runs_in_its_place() -> None:
    @processor_router
    def route(order: Order) -> Any:
        return paid

    trial = try_chain(chain_of(lake, source=[route]), [order(1), order(2, paid=False)])

    assert [each.id for each in trial.deliveries] == ["1"]
    assert [(each.handler, each.reason) for each in trial.dropped] == [("route", "filter paid returned False")]


# -- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "there are no messages"),
        (order(1), r"got one dict: write \[message\]"),
        ("text", "got one str"),
        (Message("1", 1), "got one Message"),
        (5, "got one int"),
        ([Message("a", 1), Message("a", 2)], "two messages have the id 'a'"),
    ],
)
def test_messages_that_say_nothing_are_refused(messages: Any, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        try_chain(ORDERS, messages)


def test_what_is_no_chain_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"chain must be a HandlerChain .* got a Handler"):
        try_chain(crm, [order(1)])  # type: ignore[arg-type]


def test_a_content_that_no_store_takes_is_refused_as_a_store_would() -> None:
    with pytest.raises(UnstorableContentError):
        try_chain(ORDERS, [Order(1)])


@pytest.mark.parametrize(("real", "fault"), [(["cmr"], "real= names cmr"), ("crm", r"write real=\['crm'\]")])
def test_a_real_destination_that_is_not_there_is_refused(real: Any, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        try_chain(chain_of(lake), [order(1)], real=real)


def test_to_ask_for_a_destination_that_is_not_there_is_an_error_that_says_which_was_meant() -> None:
    trial = try_chain(ORDERS, [order(1)])

    with pytest.raises(KeyError, match="did you mean 'crm'"):
        trial.delivered["cmr"]


def test_a_chain_may_be_named_and_then_starts_no_replay_listener(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "named_chain.py").write_text(
        "from homing import *\n"
        "failures = open_store('memory://named-failures')\n"
        "@destination\n"
        "def crm(ctx): raise AssertionError\n"
        "chain = HandlerChain('named', destinations_flow=[crm], failure_store=failures, replay=ReplayConfig())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    assert try_chain("named_chain:chain", [1]).delivered == {"crm": [1]}
    assert sys.modules.pop("named_chain").chain.by_reference


# -- what it needs ---------------------------------------------------------------------------------------------

_ALONE = """
import sys
sys.modules.update(dict.fromkeys({packages!r}))  # as if they were not installed
from homing import HandlerChain, destination, message_filter
from homing.testing import try_chain

@message_filter({options})
def paid(order):
    return order.get_content()["paid"]

@destination
def crm(order):
    raise AssertionError

print(try_chain(HandlerChain("shop", source_flow=[paid], destinations_flow=[crm]), [{{"paid": True}}]).delivered)
"""


@pytest.fixture
def alone() -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*packages: str, options: str = "") -> subprocess.CompletedProcess[str]:
        code = _ALONE.format(packages=packages, options=options)
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    return run


def test_a_trial_needs_neither_pytest_nor_spark_nor_airflow(
    alone: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = alone("pytest", "hypothesis", "pyspark", "pyarrow", "pandas", "airflow")

    assert done.stdout == "{'crm': [{'paid': True}]}\n", done.stderr


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
def test_a_handler_for_dataframes_without_spark_is_refused_by_an_error_that_names_the_extra(
    alone: Callable[..., subprocess.CompletedProcess[str]], package: str
) -> None:
    last = alone(package, options="dataframe=True").stderr.strip().splitlines()[-1]

    assert last.startswith("homing.errors.MissingExtraError: a trial of a handler that takes DataFrames needs")
    assert last.endswith('pip install "homing[spark]"')


@destination(connections=["crm_api"])
def api(ctx: MessageContext) -> str:
    return ctx.connection("crm_api").host


@transformer(connections=["rates"])
def rated(ctx: MessageContext) -> Any:
    return {"rate": ctx.connection("rates").extra["rate"]}


def test_handlers_that_are_called_get_the_connections_that_the_test_gives() -> None:
    chain = HandlerChain("orders", source_flow=[rated], destinations_flow=[api])

    with connections({"crm_api": {"host": "crm.test"}, "rates": {"extra": {"rate": 3}}}):
        (delivery,) = try_chain(chain, [1], real=["api"]).deliveries

    assert (delivery.content, delivery.result) == ({"rate": 3}, "crm.test")


@pytest.mark.parametrize(("given", "real"), [({}, []), ({"rates": {"extra": {"rate": 3}}}, ["api"])])
def test_a_connection_that_nobody_gave_is_an_error_of_the_trial(given: dict[str, Any], real: list[str]) -> None:
    chain = HandlerChain("orders", source_flow=[rated], destinations_flow=[api])
    lacking = "crm_api" if given else "rates"

    with connections(given), pytest.raises(MissingConnectionError, match=lacking):
        try_chain(chain, [1], real=real)


def test_a_destination_that_is_recorded_needs_no_connection() -> None:
    trial = try_chain(HandlerChain("orders", destinations_flow=[api]), [1])

    assert trial.delivered == {"api": [1]}
