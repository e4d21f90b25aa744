"""try_chain with handlers that take whole DataFrames."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from homing import HandlerChain, Message, MessageContext, destination, message_filter, transformer
from homing.testing import try_chain

pytestmark = pytest.mark.spark


@message_filter(dataframe=True)
def paid(orders: DataFrame) -> DataFrame:
    return orders.where(F.get_json_object("message", "$.paid") == "true")


@transformer(dataframe=True)
def priced(orders: DataFrame) -> DataFrame:
    order = F.from_json("message", "number int, pieces int, total int", {"mode": "FAILFAST"})
    return orders.withColumn("message", order.withField("total", order["pieces"] * 5))


@transformer
def marked(ctx: MessageContext) -> dict[str, Any]:
    ctx.set_property("seen", True)
    return {**ctx.get_content(), "marked": True}


@destination
def crm(ctx: MessageContext) -> Any:
    raise AssertionError("a destination was called")


@destination(dataframe=True)
def lake(orders: DataFrame) -> Any:
    if orders.where(F.get_json_object("message", "$.number") == "2").count():
        raise OSError("no room for two")


def order(number: int, pieces: Any = 1, *, paid: bool = True) -> dict[str, Any]:
    return {"number": number, "pieces": pieces, "paid": paid}


def test_filters_and_transformers_on_dataframes_run_on_spark(spark: SparkSession) -> None:
    chain = HandlerChain("orders", source_flow=[paid, priced, marked], destinations_flow=[crm])

    trial = try_chain(chain, [order(1, 2), order(2, paid=False), Message("third", order(3), headers={"trace": "t"})])

    assert trial.delivered == {
        "crm": [
            {"number": 1, "pieces": 2, "total": 10, "marked": True},
            {"number": 3, "pieces": 1, "total": 5, "marked": True},
        ]
    }
    assert [(each.id, each.headers, each.properties) for each in trial.deliveries] == [
        ("1", {}, {"seen": True}),
        ("third", {"trace": "t"}, {"seen": True}),
    ]
    assert [(each.id, each.handler, each.destination) for each in trial.dropped] == [("2", "paid", None)]


def test_a_message_that_fails_within_a_dataframe_fails_alone(spark: SparkSession) -> None:
    chain = HandlerChain("orders", destinations_flow=[([priced], crm)])

    trial = try_chain(chain, [order(1), order(2, pieces="many"), order(3)])

    assert [each["number"] for each in trial.delivered["crm"]] == [1, 3]
    assert [(each.id, each.handler, each.destination) for each in trial.failed] == [("2", "priced", "crm")]


def test_a_transformer_that_loses_or_doubles_a_message_has_failed(spark: SparkSession) -> None:
    @transformer(dataframe=True)
    def losing(orders: DataFrame) -> DataFrame:
        return orders.where("false")

    @message_filter(dataframe=True)
    def doubling(orders: DataFrame) -> DataFrame:
        return orders.union(orders)

    (lost,) = try_chain(HandlerChain("orders", source_flow=[losing], destinations_flow=[crm]), [order(1)]).failed
    (doubled,) = try_chain(HandlerChain("orders", source_flow=[doubling], destinations_flow=[crm]), [order(1)]).failed

    assert "it returns one row for each" in str(lost.error)
    assert "returned a message twice" in str(doubled.error)


def test_a_real_destination_gets_a_dataframe_and_what_fails_is_found_one_by_one(spark: SparkSession) -> None:
    trial = try_chain(HandlerChain("orders", destinations_flow=[lake]), [order(1), order(2), order(3)], real=["lake"])

    assert [each.id for each in trial.deliveries] == ["1", "3"]
    assert [(each.id, type(each.error)) for each in trial.failed] == [("2", OSError)]


def test_a_session_is_made_where_none_is_active() -> None:
    """In a process of its own: here, there is one."""
    code = (
        "from homing import HandlerChain, destination, message_filter\n"
        "from homing.testing import try_chain\n"
        "all_of_them = message_filter(name='all', dataframe=True)(lambda orders: orders)\n"
        "crm = destination(name='crm')(lambda ctx: None)\n"
        "chain = HandlerChain('orders', source_flow=[all_of_them], destinations_flow=[crm])\n"
        "print(try_chain(chain, [1, 'two', b'3']).delivered)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)

    assert done.stdout.strip() == "{'crm': [1, 'two', b'3']}", done.stderr
