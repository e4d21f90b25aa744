"""The chain of the chaos runs on Spark and on Airflow: both flows of the destination that keeps score."""

from __future__ import annotations

import os
import time
from pathlib import Path

from chaos.destination import Destination
from homing import HandlerChain, MessageContext, destination

#: The variable that names the folder of the run, on the driver and on the executors.
FOLDER = "HOMING_CHAOS"
_TAKES = 0.03  # seconds: long enough for a kill to come in the middle


def _take(ctx: MessageContext, flow: str) -> None:
    Destination(Path(os.environ[FOLDER])).take(f"{ctx.get_id()} {flow}", ctx.get_content()["number"])
    time.sleep(_TAKES)


@destination
def lake(ctx: MessageContext) -> None:
    _take(ctx, "lake")


@destination
def crm(ctx: MessageContext) -> None:
    _take(ctx, "crm")


chain = HandlerChain("chaos", destinations_flow=[lake, crm])
