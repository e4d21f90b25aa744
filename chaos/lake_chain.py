"""The chain of the chaos run on a lake: a DataFrame destination that a run and a replay write to at the same time."""

from __future__ import annotations

import os
from pathlib import Path

from chaos.chain import FOLDER, crm, wanted
from chaos.destination import Destination
from homing import HandlerChain, MessageContext, message_filter
from homing.spark import parquet_lake


@message_filter
def fit(ctx: MessageContext) -> bool:
    """Fails once for some: so that replays write to the lake, too."""
    Destination(Path(os.environ[FOLDER])).look_at(ctx.get_id(), "lake", ctx.get_content())
    return True


chain = HandlerChain(
    "chaos", source_flow=[wanted], destinations_flow=[([fit], parquet_lake(f"{os.environ.get(FOLDER, '')}/lake")), crm]
)
