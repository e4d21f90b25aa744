"""A chain for every scenario: it can be held at any message, and delivers by appending to a file of its process."""

from __future__ import annotations

import os
from pathlib import Path

from matrix_holds import HOME, hold
from matrix_settings import flows

from homing import HandlerChain, MessageContext, destination, processor
from homing.pipeline import Handler

#: This message fails until the scenario is mended.
POISON = 0


def make_chain(name: str) -> HandlerChain:
    folder = HOME / name

    @processor
    def source(ctx: MessageContext) -> None:
        hold(name, "source", ctx.get_content())

    def deliver(flow: str) -> Handler:
        @destination(name=flow)
        def append(ctx: MessageContext) -> None:
            number = ctx.get_content()
            if number == POISON and not (folder / "mended").exists():
                raise ValueError("poison")
            hold(name, flow, number)
            with Path(folder, f"{flow}.{os.getpid()}").open("a") as file:
                file.write(f"{number}\n")

        return append

    return HandlerChain(name, source_flow=[source], destinations_flow=[deliver(flow) for flow in flows(name)])


def __getattr__(name: str) -> HandlerChain:
    if name.startswith("_"):
        raise AttributeError(name)
    chain = globals()[name] = make_chain(name)
    return chain
