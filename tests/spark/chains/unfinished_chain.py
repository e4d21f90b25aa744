"""Destinations of both kinds that return something although nothing was sent."""

from __future__ import annotations

from concurrent.futures import Future

from pyspark.sql import DataFrame

from homing import HandlerChain, MessageContext, destination


@destination
def crm(ctx: MessageContext) -> object:
    return Future()


@destination(dataframe=True)
def archive(messages: DataFrame) -> object:
    return (row for row in messages.collect())


@destination(dataframe=True)
def ledger(messages: DataFrame) -> object:
    return ConnectionError("it takes none of these")


chain = HandlerChain("numbers", destinations_flow=[crm, archive, ledger])
