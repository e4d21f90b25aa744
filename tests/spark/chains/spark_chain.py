"""A chain whose behaviour is written into its messages: {"n": 1, "fail": "lake"} fails at the lake, and so on."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

from homing import Drop, HandlerChain, MessageContext, destination, message_filter, transformer


@message_filter
def wanted(ctx: MessageContext) -> bool:
    return not ctx.get_content().get("drop")


@transformer
def numbered(ctx: MessageContext) -> dict[str, object]:
    content = ctx.get_content()
    if content.get("exit") == "source" and not Path(os.environ["SPARK_CHAIN_OUT"], "mended").exists():
        os._exit(9)
    if content.get("fail") == "source" and not Path(os.environ["SPARK_CHAIN_OUT"], "mended").exists():
        raise ValueError(f"message {content['n']} makes no sense")
    if content.get("drop_late"):
        raise Drop("too late")
    ctx.set_property("seen_by", "numbered")
    if content.get("stamp"):
        ctx.set_header("stamp", content["stamp"])
        ctx.remove_header("plain")
    return {**content, "doubled": content["n"] * 2}


@message_filter
def even(ctx: MessageContext) -> bool:
    if ctx.get_content().get("fail") == "even" and not Path(os.environ["SPARK_CHAIN_OUT"], "mended").exists():
        raise ValueError("neither odd nor even")
    return bool(ctx.get_content()["n"] % 2 == 0)


def exhaust_memory() -> None:
    """Asks for memory until there is none, as much as `spark.executor.pyspark.memory` would leave."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 100_000_000, before[1]))
    try:
        hoard = []
        while True:
            hoard.append(bytearray(10_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def overflow_memory() -> None:
    """The same in native code, where no exception can tell: the process is ended."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 100_000_000, resource.RLIM_INFINITY))
    new = ctypes.CDLL("libstdc++.so.6")._Znwm  # C++'s operator new
    while True:
        new(ctypes.c_size_t(10_000_000))


def deliver(name: str, ctx: MessageContext) -> str:
    content, folder = ctx.get_content(), Path(os.environ["SPARK_CHAIN_OUT"])
    if content.get("exit") == name and not (folder / "mended").exists():
        os._exit(9)
    if content.get("exhaust") == name:
        exhaust_memory()
    if content.get("overflow") == name:
        overflow_memory()
    if content.get("fail") == name and not (folder / "mended").exists():
        raise ConnectionError(f"{name} is down")
    with (folder / f"{name}-{os.getpid()}").open("a") as file:
        file.write(f"{content['n']} {content['doubled']} {ctx.get_property('seen_by')}\n")
    return f"{name} took {content['n']}" + "".join(f" {key}={value}" for key, value in ctx.get_headers().items())


@destination
def lake(ctx: MessageContext) -> str:
    return deliver("lake", ctx)


@destination
def crm(ctx: MessageContext) -> str:
    return deliver("crm", ctx)


chain = HandlerChain("numbers", source_flow=[wanted, numbered], destinations_flow=[lake, ([even], crm)])
