"""A chain whose handlers log in: what they were given, they leave as digests."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

from airflow.sdk import BaseHook

from homing import HandlerChain, MessageContext, destination, message_filter


def leave(name: str, *secrets: str | None) -> None:
    """A line with a digest of each."""
    digests = " ".join(sha256(str(secret).encode()).hexdigest() for secret in secrets)
    with Path(os.environ["SPARK_CHAIN_OUT"], f"{name}-{os.getpid()}").open("a") as file:
        file.write(f"{digests}\n")


@message_filter(connections=["rules"])
def wanted(ctx: MessageContext) -> bool:
    leave("wanted", ctx.connection("rules").password)
    return True


@destination(connections=["crm_api"])
def crm(ctx: MessageContext) -> None:
    api = ctx.connection("crm_api")
    leave("crm", api.password, api.extra["token"], BaseHook.get_connection("crm_api").password)
    if ctx.get_content().get("fail") and not Path(os.environ["SPARK_CHAIN_OUT"], "mended").exists():
        raise ConnectionError(f"no login with {api.password} and {api.extra['token']}")


def session(connections: Any) -> str:
    return str(connections["crm_api"].password)


@destination(setup=session, connections=["crm_api"])
def lake(ctx: MessageContext, client: str) -> None:
    leave("lake", client)


chain = HandlerChain("numbers", source_flow=wanted, destinations_flow=[lake, crm])
