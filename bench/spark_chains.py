"""The chains that run on Spark, and the same work as one would write it without them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from homing import HandlerChain, MessageContext, destination, message_filter, transformer

_FIELDS = "customer string, amount double, paid boolean, blob string, total double"


def price(order: dict[str, Any]) -> dict[str, Any]:
    return {**order, "total": order["amount"] * 1.19}


@transformer
def priced(ctx: MessageContext) -> dict[str, Any]:
    return price(ctx.get_content())


@message_filter(dataframe=True)
def paid_rows(orders: DataFrame) -> DataFrame:
    return orders.where(F.get_json_object("message", "$.paid") == "true")


@transformer(dataframe=True)
def priced_rows(orders: DataFrame) -> DataFrame:
    order = F.from_json("message", _FIELDS)
    return orders.withColumn("message", F.to_json(order.withField("total", order["amount"] * 1.19)))


@destination
def nowhere(ctx: MessageContext) -> None:
    ctx.get_id()


messages = HandlerChain("bench", source_flow=[priced], destinations_flow=[nowhere])
frames = HandlerChain("bench", source_flow=[paid_rows, priced_rows], destinations_flow=[nowhere])


def plain_python(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What `priced` does, as one would write it for mapInArrow."""
    for batch in batches:
        place = batch.schema.get_field_index("message")
        contents = [
            msgspec.json.encode(price(msgspec.json.decode(text))).decode() for text in batch.column(place).to_pylist()
        ]
        yield batch.set_column(place, "message", pa.array(contents, pa.string()))


def plain_deliver(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What delivering to `nowhere` does, without a ledger, a retry or a record of what failed."""
    delivered = 0
    for batch in batches:
        for text in batch.column("message").to_pylist():
            msgspec.json.decode(text)
            delivered += 1
    yield pa.RecordBatch.from_pydict({"state": ["delivered"], "messages": [delivered]})


def plain_sql(rows: DataFrame) -> DataFrame:
    return priced_rows.function(paid_rows.function(rows))
