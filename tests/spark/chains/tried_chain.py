"""A chain that knows which try of a Spark task it runs in.

{"exit": true} kills the first try, {"slow": 0.1} holds it up. A line per delivery says which message was delivered, and
in which try.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from pyspark import TaskContext

from homing import HandlerChain, MessageContext, destination


def attempt() -> int:
    task = TaskContext.get()
    assert task is not None
    return task.attemptNumber()


@destination
def shop(ctx: MessageContext) -> None:
    content = ctx.get_content()
    with Path(os.environ["SPARK_CHAIN_OUT"], f"shop-{os.getpid()}").open("a") as file:
        file.write(f"{content['n']} {attempt()}\n")
    if attempt() == 0:
        if content.get("exit"):
            os._exit(9)
        time.sleep(content.get("slow", 0))


chain = HandlerChain("tried", destinations_flow=shop)
