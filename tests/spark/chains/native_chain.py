"""A chain of DataFrame handlers and others, whose behaviour is written into its messages as in spark_chain."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from homing import HandlerChain, MessageContext, destination, message_filter, transformer
from homing.spark import parquet_lake

OUT = Path(os.environ["SPARK_CHAIN_OUT"])
FIELDS = "n int, amount string, drop boolean, fail string, doubled int, cents int"


@message_filter(dataframe=True)
def wanted(messages: DataFrame) -> DataFrame:
    return messages.where(F.get_json_object("message", "$.drop").isNull())


@transformer(dataframe=True)
def priced(messages: DataFrame) -> DataFrame:
    # Spark is strict about casts: an amount that is no number fails the job.
    order = F.from_json("message", FIELDS)
    lost = messages.where(F.coalesce(F.get_json_object("message", "$.fail"), F.lit("")) != "lost")
    return lost.withColumn("message", order.withField("cents", (order["amount"].cast("double") * 100).cast("int")))


@transformer
def doubled(ctx: MessageContext) -> dict[str, object]:
    content = ctx.get_content()
    if content.get("fail") == "doubled":
        raise ValueError("no")
    if content.get("fail") == "exit":
        os._exit(1)
    ctx.set_property("seen_by", "doubled")
    return {**content, "doubled": content["n"] * 2}


@message_filter(dataframe=True)
def even(messages: DataFrame) -> DataFrame:
    return messages.where(F.get_json_object("message", "$.n").cast("int") % 2 == 0)


@message_filter
def small(ctx: MessageContext) -> bool:
    if ctx.get_content().get("fail") == "small":
        raise ValueError("no size")
    return bool(ctx.get_content()["n"] < 100)


@destination
def crm(ctx: MessageContext) -> str:
    with (OUT / f"crm-{os.getpid()}").open("a") as file:
        file.write(f"{ctx.get_content()['n']} {ctx.get_content()['doubled']} {ctx.get_property('seen_by')}\n")
    return "taken"


@destination(dataframe=True)
def archive(messages: DataFrame) -> None:
    refused = messages.where(F.get_json_object("message", "$.fail") == "archive")
    if not (OUT / "mended").exists() and not refused.isEmpty():
        raise ConnectionError("the archive takes none of these")
    messages.select("id", "message").write.mode("append").json(str(OUT / "archive"))


chain = HandlerChain(
    "numbers",
    source_flow=[wanted, priced, doubled],
    destinations_flow=[parquet_lake(str(OUT / "lake")), ([small, even], crm), ([even, small], archive)],
)


@transformer(dataframe=True)
def spread(messages: DataFrame) -> DataFrame:
    return messages.repartition(3).withColumn("message", F.concat("message", F.lit(" ")))


@message_filter(dataframe=True)
def about_nothing(messages: DataFrame) -> DataFrame:
    return messages.where(F.col("subject").isNull())


#: Its transformer shuffles, and where nothing is left to be shuffled, Spark leaves out what comes after.
spreading = HandlerChain(
    "numbers",
    source_flow=[about_nothing, wanted, spread],
    destinations_flow=[parquet_lake(str(OUT / "lake"))],
)


@transformer(dataframe=True)
def losing(messages: DataFrame) -> DataFrame:
    return messages.where(F.lit(False))


@message_filter(dataframe=True)
def none_today(messages: DataFrame) -> DataFrame:
    return messages.where(F.lit(False))


#: Of both, Spark knows before it reads anything that nothing will be left.
lost = HandlerChain("numbers", source_flow=[wanted, losing], destinations_flow=[parquet_lake(str(OUT / "lake"))])
closed = HandlerChain("numbers", source_flow=[spread, none_today], destinations_flow=[parquet_lake(str(OUT / "lake"))])

#: DataFrame handlers alone, none of which needs Python for a message.
plain = HandlerChain(
    "numbers",
    source_flow=[wanted, priced],
    destinations_flow=[parquet_lake(str(OUT / "lake")), archive],
)


def _changed(messages: DataFrame) -> DataFrame:
    """What a message says under `change` of the columns that it is known by. What says nothing stays as it is."""

    def said(name: str, value: Column) -> Column:
        return F.when(F.get_json_object("message", "$.change") == name, value).otherwise(F.col(name))

    return messages.withColumns(
        {
            "id": said("id", F.lit("another")),
            "sequence": said("sequence", F.lit(1_000_000)),
            "table_id": said("table_id", F.lit("t")),
            "batch_id": said("batch_id", F.lit("another")),
        }
    )


@message_filter(dataframe=True)
def changing_filter(messages: DataFrame) -> DataFrame:
    return _changed(messages)


@transformer(dataframe=True)
def changing_transformer(messages: DataFrame) -> DataFrame:
    return _changed(messages)


#: Handlers that return messages under another name, before others that record what becomes of each.
renamed_by_a_filter = HandlerChain("numbers", source_flow=[changing_filter, doubled], destinations_flow=[crm])
renamed_by_a_transformer = HandlerChain("numbers", source_flow=[changing_transformer, doubled], destinations_flow=[crm])
renamed_for_one = HandlerChain("numbers", source_flow=[doubled], destinations_flow=[([changing_filter, small], crm)])
renamed_for_all = HandlerChain("numbers", source_flow=[doubled], destinations_flow=[([changing_filter], archive)])
