"""A chain whose router picks destinations that have threads, a rate or a circuit breaker of their own.

A line per call says when it began, which message it was for and in which thread it was made.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from homing import CircuitBreaker, HandlerChain, MessageContext, destination, destination_router
from homing.pipeline.handlers import Handler

RATE = 20
FAILURES = 3


def note(name: str, ctx: MessageContext) -> None:
    with Path(os.environ["SPARK_CHAIN_OUT"], f"{name}-{os.getpid()}").open("a") as file:
        file.write(f"{time.time()} {ctx.get_content()['n']} {threading.get_ident()}\n")


@destination(rate=RATE)
def rated(ctx: MessageContext) -> None:
    note("rated", ctx)


@destination(threads=4)
def threaded(ctx: MessageContext) -> None:
    note("threaded", ctx)
    time.sleep(0.05)


@destination(breaker=CircuitBreaker(failures=FAILURES, pause=600))
def down(ctx: MessageContext) -> None:
    note("down", ctx)
    raise ConnectionError("down")


@destination_router
def route(ctx: MessageContext) -> Handler:
    return (rated, threaded, down)[ctx.get_content()["n"] % 3]


chain = HandlerChain("routed", destinations_flow=route)
