"""A chain whose destination takes its time, and says where the code that runs it came from.

{"kill": true} takes the whole executor down with it. `connected` needs a connection besides, which executors of a
cluster do not find in their environment.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from airflow.sdk import BaseHook

import homing
from homing import HandlerChain, MessageContext, destination


def executor() -> int:
    """The JVM that started the daemon that forked this process."""
    parent = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2]
    return int(parent.split()[1])


@destination
def slow(ctx: MessageContext) -> None:
    if ctx.get_content().get("kill"):
        os.kill(executor(), signal.SIGKILL)
        time.sleep(2)
        os._exit(9)
    folder = Path(os.environ["SPARK_CHAIN_OUT"])
    code = folder / f"code-{os.getpid()}"
    if not code.is_symlink():
        # Whole or not at all: the process may be killed at any moment.
        code.symlink_to(str(homing.__file__))
    with (folder / f"slow-{os.getpid()}").open("a") as file:
        file.write(f"{ctx.get_content()['n']}\n")
    time.sleep(0.02)


@destination(name="slow", connections=["numbers_api"])
def logging_in(ctx: MessageContext) -> None:
    assert ctx.connection("numbers_api").password == BaseHook.get_connection("numbers_api").password == "told"  # noqa: S105
    slow.function(ctx)


chain = HandlerChain("numbers", destinations_flow=[slow])
connected = HandlerChain("numbers", destinations_flow=[logging_in])
