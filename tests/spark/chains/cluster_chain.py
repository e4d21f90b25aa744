"""A chain whose destination takes its time, and says where the code that runs it came from."""

from __future__ import annotations

import os
import time
from pathlib import Path

import homing
from homing import HandlerChain, MessageContext, destination


@destination
def slow(ctx: MessageContext) -> None:
    folder = Path(os.environ["SPARK_CHAIN_OUT"])
    (folder / f"code-{os.getpid()}").write_text(str(homing.__file__))
    with (folder / f"slow-{os.getpid()}").open("a") as file:
        file.write(f"{ctx.get_content()['n']}\n")
    time.sleep(0.02)


chain = HandlerChain("numbers", destinations_flow=[slow])
