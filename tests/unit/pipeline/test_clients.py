"""Clients that a destination's setup makes once per process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import homing
from homing.errors import ChainError
from homing.pipeline import ExecutionError, HandlerChain, MessageContext, destination


def test_setup_runs_once_for_many_messages_and_not_before_the_first() -> None:
    made = []

    def connect() -> str:
        made.append(1)
        return "client"

    @destination(setup=connect)
    def crm(ctx: MessageContext, client: Any) -> Any:
        return client

    chain = HandlerChain("orders", destinations_flow=crm)
    assert made == []
    assert [chain.execute(number).destination_results for number in range(3)] == [{"crm": "client"}] * 3
    assert made == [1]


def test_setup_runs_once_for_many_threads() -> None:
    made = []
    together = threading.Barrier(4, timeout=20)

    def connect() -> object:
        made.append(1)
        return object()

    @destination(setup=connect)
    def crm(ctx: MessageContext, client: Any) -> int:
        return id(client)

    chain = HandlerChain("orders", destinations_flow=crm)

    def send() -> Any:
        together.wait()
        return chain.execute(1).destination_results["crm"]

    with ThreadPoolExecutor(4) as pool:
        seen = {job.result(timeout=20) for job in [pool.submit(send) for _ in range(4)]}
    assert (len(seen), made) == (1, [1])


def test_context_manager_is_entered_once_and_left_when_the_chain_closes() -> None:
    steps = []

    @contextmanager
    def connect() -> Iterator[str]:
        steps.append("open")
        yield "client"
        steps.append("close")

    @destination(setup=connect)
    def crm(number: int, client: str) -> Any:
        return client, number

    with HandlerChain("orders", destinations_flow=crm) as chain:
        assert chain.execute(7).destination_results == {"crm": ("client", 7)}
        chain.execute(8)
        assert steps == ["open"]
    assert steps == ["open", "close"]
    chain.close()
    assert steps == ["open", "close"]


def test_chain_that_was_closed_opens_its_client_anew() -> None:
    made = []

    @destination(setup=lambda: made.append(1))
    def crm(ctx: MessageContext, client: Any) -> None: ...

    chain = HandlerChain("orders", destinations_flow=crm)
    chain.execute(1)
    chain.close()
    chain.execute(2)
    assert made == [1, 1]


def test_async_context_manager_lives_on_the_loop_of_the_handlers() -> None:
    steps = []

    @asynccontextmanager
    async def connect() -> AsyncIterator[str]:
        steps.append("open")
        yield "client"
        steps.append("close")

    @destination(setup=connect)
    async def crm(ctx: MessageContext, client: str) -> str:
        return client

    with HandlerChain("orders", destinations_flow=crm) as chain:
        assert chain.execute(1).destination_results == {"crm": "client"}
    assert steps == ["open", "close"]


def test_coroutine_may_make_the_client() -> None:
    async def connect() -> str:
        return "client"

    @destination(setup=connect)
    def crm(ctx: MessageContext, client: str) -> str:
        return client

    assert HandlerChain("orders", destinations_flow=crm).execute(1).destination_results == {"crm": "client"}


def test_setup_that_fails_fails_the_message_and_is_tried_again_for_the_next() -> None:
    made = []

    def connect() -> str:
        made.append(1)
        if len(made) == 1:
            raise OSError("no route to host")
        return "client"

    @destination(setup=connect)
    def crm(ctx: MessageContext, client: str) -> str:
        return client

    chain = HandlerChain("orders", destinations_flow=crm)
    with pytest.raises(ExecutionError, match="crm: OSError: no route to host"):
        chain.execute(1)
    assert chain.execute(2).destination_results == {"crm": "client"}


def test_client_that_does_not_close_keeps_nobody_from_closing(caplog: pytest.LogCaptureFixture) -> None:
    @contextmanager
    def connect() -> Iterator[str]:
        yield "client"
        raise OSError("already gone")

    @destination(setup=connect)
    def crm(ctx: MessageContext, client: str) -> None: ...

    with HandlerChain("orders", destinations_flow=crm) as chain:
        chain.execute(1)
    assert "did not close" in caplog.text


def test_batch_destination_gets_its_client_too() -> None:
    @destination(batch=10, setup=lambda: "client")
    def lake(numbers: list[int], client: str) -> Any:
        return [f"{client} {number}" for number in numbers]

    assert HandlerChain("orders", destinations_flow=lake).execute(7).destination_results == {"lake": "client 7"}


def test_destination_without_a_parameter_for_its_client_is_refused() -> None:
    with pytest.raises(ChainError, match="last parameter is for the client"):

        @destination(setup=dict)
        def crm(ctx: MessageContext) -> None: ...


def test_setup_that_is_no_function_is_refused() -> None:
    with pytest.raises(ChainError, match="setup="):
        destination(setup="client")  # type: ignore[call-overload]


FORKED = """
import os, sys
from homing import HandlerChain, destination

class Connection:
    def __init__(self): self.process = os.getpid()
    def __enter__(self): return self
    def __exit__(self, *_): print("closed", self.process == os.getpid(), flush=True)

@destination(setup=Connection)
def crm(ctx, client):
    return client.process == os.getpid()

chain = HandlerChain("orders", destinations_flow=crm)
chain.execute(1)
child = os.fork()
if child == 0:
    print("child", chain.execute(2).destination_results, flush=True)
    chain.close()
    os._exit(0)
os.waitpid(child, 0)
print("parent", chain.execute(3).destination_results, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_every_process_opens_its_own_client_and_closes_only_that(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED],
        env={"PYTHONPATH": str(Path(homing.__path__[0]).parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["child {'crm': True}", "closed True", "parent {'crm': True}", "closed True"]
