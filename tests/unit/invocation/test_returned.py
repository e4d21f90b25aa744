"""What a handler may not return: in a chain, a batch destination, a listener and a replay alike."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain, islice, starmap
from pathlib import Path
from typing import Any

import pytest

from homing import ExecutionError, HandlerChain, ListenerConfig, Message, StoreListener, destination, open_store
from homing.delivery import Batch, open_pipeline_stores
from homing.delivery.local_replay import replay_in_process
from homing.errors import HandlerError
from homing.invocation.batch_result import read_returned
from homing.invocation.invalid_return import find_return_fault
from homing.ledger import FAILED
from homing.pipeline import Drop, MessageContext
from tests.flows import deliver_many

sent: list[object] = []


def _generator() -> Iterator[None]:
    sent.append("generator")
    yield


async def _coroutine() -> None:
    sent.append("coroutine")


async def _async_generator() -> AsyncIterator[None]:
    sent.append("async generator")
    yield


async def _returns_a_coroutine() -> Any:
    return _coroutine()


class _Request:
    """What some clients return for a request: nothing is sent before it is awaited."""

    def __await__(self) -> Iterator[None]:
        sent.append("request")
        yield


async def _returns_a_request() -> Any:
    return _Request()


async def _returns_a_task() -> Any:
    return asyncio.get_running_loop().create_future()


#: What may not be returned; made anew for each test, since some can be used once only.
RUBBISH: dict[str, Callable[[], Any]] = {
    "generator": _generator,
    "async generator": _async_generator,
    "coroutine of a coroutine": _returns_a_coroutine,
    "request of a coroutine": _returns_a_request,
    "future of a coroutine": _returns_a_task,
    "future of a thread": concurrent.futures.Future,
    "map": lambda: map(sent.append, [1]),
    "filter": lambda: filter(sent.append, [1]),
    "starmap": lambda: starmap(sent.append, [(1,)]),
    "zip": lambda: zip(_generator(), strict=True),
    "enumerate": lambda: enumerate(_generator()),
    "islice": lambda: islice(_generator(), 1),
    "chain": lambda: chain(_generator()),
    "exception": lambda: ValueError("no such customer"),
    "exception that ends programs": lambda: SystemExit(1),
    "exception type": lambda: ValueError,
    "a returned Drop": lambda: Drop("why"),
    "list of futures": lambda: [concurrent.futures.Future()],
    "dict of exceptions": lambda: {"m1": ValueError("no")},
}
FINE = (None, True, 1, "text", b"bytes", [1, "a"], {"id": 1}, ("a",), {1}, iter([1]), open_store, object())


@pytest.fixture(params=RUBBISH)
def rubbish(request: pytest.FixtureRequest) -> Iterator[Callable[[], Any]]:
    sent.clear()
    yield RUBBISH[request.param]
    assert not sent


def until(true: Callable[[], Any]) -> None:
    waited = threading.Event()
    for _ in range(3_000):
        if true():
            return
        waited.wait(0.01)
    pytest.fail("what was waited for did not happen")


def test_what_shows_that_the_work_is_done_is_a_result() -> None:
    assert [find_return_fault(result) for result in FINE] == [None] * len(FINE)


def test_a_coroutine_that_nobody_awaited_is_refused_and_closed() -> None:
    coroutine = _coroutine()
    assert "was not awaited" in str(find_return_fault(coroutine))
    with pytest.raises(RuntimeError, match="cannot reuse"):
        coroutine.send(None)


def test_a_destination_that_returns_it_has_failed(rubbish: Callable[[], Any]) -> None:
    calls = []

    @destination(max_retries=1, retry_interval=0.001)
    def crm(ctx: MessageContext) -> Any:
        calls.append(ctx.get_id())
        return rubbish()

    with HandlerChain("orders", destinations_flow=crm) as chain, pytest.raises(ExecutionError) as caught:
        chain.execute(1)
    assert caught.value.message.content["done"] == {}
    assert len(calls) == 2


def test_a_message_for_which_a_batch_destination_returns_it_has_failed_and_no_other(rubbish: Callable[[], Any]) -> None:
    returned = rubbish()
    if asyncio.iscoroutine(returned):
        returned.close()
        returned = _coroutine()

    @destination(batch=3)
    def lake(ctxs: list[MessageContext]) -> list[Any]:
        return ["ok", returned, "ok"]

    with HandlerChain("orders", destinations_flow=lake) as chain:
        contexts = [MessageContext(Message(f"m{n}", n)) for n in range(3)]
        ended = deliver_many(chain.flows[0], contexts)
    if isinstance(returned, Drop):  # which is how a batch destination drops one of its messages
        assert ended[1].error is None
        assert ended[1].state == "dropped"
        return
    assert [isinstance(ended[place].error, HandlerError) for place in range(3)] == [False, True, False]


def test_a_message_for_which_a_listener_is_returned_it_has_failed(tmp_path: Path, rubbish: Callable[[], Any]) -> None:
    with open_store(f"sqlite:///{tmp_path}/s.db?store=s") as store, open_store("memory://dead") as dead:
        store.store("order")
        config = ListenerConfig(polling_interval=0.01, max_retries=0, dead_letter_store=dead)
        listener = StoreListener(store, config)
        listener.attach(lambda content: rubbish())
        listener.start()
        try:
            until(lambda: listener.metrics().dead_lettered)
        finally:
            listener.graceful_stop()
        assert listener.metrics().processed == 0


def test_a_message_for_which_a_service_of_batches_returned_it_has_failed() -> None:
    answers = read_returned(["ok", concurrent.futures.Future(), _generator()], 3)
    assert [answer.error is None for answer in answers] == [True, False, False]


def test_a_replay_of_the_pipeline_records_it_as_failed(tmp_path: Path) -> None:
    @destination
    def crm(ctx: MessageContext) -> Any:
        return _generator()

    url = f"sqlite:///{tmp_path}/orders.db"
    chain = HandlerChain("orders", destinations_flow=crm)
    with chain, open_pipeline_stores(f"{url}?store=orders", f"{url}?store=dead") as stores:
        stores.store.store("order")
        batch = Batch(stores, "run", ["crm"], chain="orders")
        batch.claim(1)
        assert replay_in_process(stores, batch, chain) == {FAILED: 1}
