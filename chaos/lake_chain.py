"""The chain of the chaos run on a lake: a DataFrame destination that a run and a replay write to at the same time."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import DataFrame

from chaos import chain as plain
from chaos.chain import FOLDER
from chaos.destination import SOURCE, Destination
from chaos.story import KEPT, PASSED
from homing import HandlerChain, MessageContext, destination, message_filter
from homing.spark import parquet_lake

_FOLDER = Path(os.environ.get(FOLDER, ""))
_LAKE = parquet_lake(f"{_FOLDER}/lake")


@message_filter
def wanted(ctx: MessageContext) -> bool:
    """The job has the message from here on, though no handler is called with it until `fit` is."""
    passed = not _destination().drops(ctx.get_id(), ctx.get_content())
    if passed:
        _destination().book.tell(KEPT, ctx.get_id(), SOURCE)
    return passed


@message_filter
def fit(ctx: MessageContext) -> bool:
    """Fails once for some: so that replays write to the lake, too."""
    _destination().look_at(ctx.get_id(), _LAKE.name, ctx.get_content())
    return True


@destination(dataframe=True)
def lake(messages: DataFrame) -> None:
    _LAKE.function(messages)
    for row in messages.select("id").collect():
        _destination().book.tell(PASSED, row["id"], _LAKE.name)


def _destination() -> Destination:
    return Destination(_FOLDER)


chain = HandlerChain("chaos", source_flow=[wanted], destinations_flow=[([fit], lake), plain.crm])
