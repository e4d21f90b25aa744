"""The chain of the chaos runs that have a pipeline: a rule that drops, and both flows of the destination."""

from __future__ import annotations

import os
import time
from pathlib import Path

from chaos.destination import Destination
from homing import HandlerChain, MessageContext, destination, message_filter

#: The variable that names the folder of the run, on the driver and on the executors.
FOLDER = "HOMING_CHAOS"
#: The variable that says how many seconds a delivery takes, or a refusal: long enough for a kill to come in the middle.
TAKES = "HOMING_CHAOS_TAKES"


@message_filter
def wanted(ctx: MessageContext) -> bool:
    return not _destination().drops(ctx.get_id(), ctx.get_content())


def _take(ctx: MessageContext, flow: str) -> None:
    try:
        _destination().take(ctx.get_id(), flow, ctx.get_content())
    finally:
        time.sleep(float(os.environ.get(TAKES, "0")))


def _destination() -> Destination:
    return Destination(Path(os.environ[FOLDER]))


@destination
def lake(ctx: MessageContext) -> None:
    _take(ctx, "lake")


@destination
def crm(ctx: MessageContext) -> None:
    _take(ctx, "crm")


chain = HandlerChain("chaos", source_flow=[wanted], destinations_flow=[lake, crm])
