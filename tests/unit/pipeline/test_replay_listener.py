"""The replay listener: failed messages are replayed without anybody's doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import homing
from homing import (
    HandlerChain,
    MessageContext,
    ReplayConfig,
    Retry,
    RetryPolicy,
    destination,
    open_store,
    transformer,
)
from homing.errors import ChainError, ConfigurationError, StoreUnavailableError
from homing.failure import read_record
from homing.message import ACKNOWLEDGED, AVAILABLE, SCHEDULED
from homing.pipeline import ExecutionError
from homing.store import Store
from tests.clocks import let_time_pass


class Calls:
    """What was delivered, how often each destination was called, and which of them refuse, how often."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()

    def to(self, name: str) -> str:
        self.count[name] += 1
        if self.refusals[name] > 0:
            self.refusals[name] -= 1
            raise OSError(f"{name} refused")
        return f"{name}-ok"


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/pipeline.db"


def opened(url: str, name: str) -> Iterator[Store]:
    with open_store(f"{url}?store={name}") as store:
        yield store


@pytest.fixture
def failures(url: str) -> Iterator[Store]:
    yield from opened(url, "failures")


@pytest.fixture
def dead(url: str) -> Iterator[Store]:
    yield from opened(url, "dead")


@pytest.fixture
def requested(url: str) -> Iterator[Store]:
    yield from opened(url, "requested")


@pytest.fixture
def make_chain(calls: Calls, failures: Store) -> Iterator[Any]:
    @transformer
    def doubled(ctx: MessageContext) -> Any:
        calls.count["doubled"] += 1
        return ctx.get_content() * 2

    @destination
    def crm(ctx: MessageContext) -> Any:
        return calls.to("crm")

    @destination
    def lake(ctx: MessageContext) -> Any:
        return calls.to("lake")

    built: list[HandlerChain] = []

    def make(**options: Any) -> HandlerChain:
        quick = {"polling_interval": 0.02, "retry_interval": 0.02, **options}
        chain = HandlerChain(
            "orders",
            source_flow=doubled,
            destinations_flow=[crm, lake],
            failure_store=failures,
            replay=ReplayConfig(**quick),
        )
        built.append(chain)
        return chain

    yield make
    for chain in built:
        chain.close()


def fail(chain: HandlerChain, calls: Calls, **refusals: int) -> None:
    calls.refusals.update(refusals)
    with pytest.raises(ExecutionError):
        chain.execute(2, id="m1")


def test_failed_message_is_replayed_by_itself_and_only_where_it_failed(
    make_chain: Any, calls: Calls, failures: Any, until: Any
) -> None:
    fail(make_chain(), calls, lake=1)
    until(lambda: failures.count()[ACKNOWLEDGED] == 1)
    assert calls.count == {"doubled": 2, "crm": 1, "lake": 2}


def test_message_is_replayed_once_plus_max_retries_times_and_then_dead_lettered(
    make_chain: Any, calls: Calls, failures: Any, dead: Any, until: Any
) -> None:
    fail(make_chain(max_retries=2, dead_letter_store=dead), calls, lake=1_000)
    until(lambda: failures.count()[ACKNOWLEDGED] == 1)
    assert calls.count == {"doubled": 4, "crm": 1, "lake": 4}
    letter = dead.retrieve()
    record = read_record(letter.content)
    assert (record.message.id, record.message.content, record.done) == ("m1", 2, {"crm": "crm-ok"})
    assert "lake: OSError: lake refused" in letter.headers["homing-dead-letter-description"]


def test_dead_letter_knows_what_was_delivered_by_the_replays_too(
    make_chain: Any, calls: Calls, dead: Any, until: Any
) -> None:
    chain = make_chain(max_retries=3, dead_letter_store=dead)
    fail(chain, calls, crm=2, lake=1_000)
    until(lambda: dead.count()[AVAILABLE] == 1)
    assert calls.count == {"doubled": 5, "crm": 3, "lake": 5}
    calls.refusals.clear()
    assert chain.replay(dead.retrieve()).destination_results == {"lake": "lake-ok"}


def test_progress_of_a_replay_is_durable_before_the_next_attempt(
    make_chain: Any, calls: Calls, failures: Any, until: Any
) -> None:
    chain = make_chain(retry_interval=60)
    fail(chain, calls, crm=1, lake=1_000)
    until(lambda: failures.count()[ACKNOWLEDGED] == 1)
    assert calls.count["crm"] == 2
    chain.close()
    [entry] = failures.browse(state=SCHEDULED)
    assert read_record(entry.content).done == {"crm": "crm-ok"}
    assert entry.headers == {"homing-attempts": 1}


def test_listener_of_another_process_waits_for_the_retry_interval_too(
    make_chain: Any, calls: Calls, failures: Any, url: str, until: Any
) -> None:
    fail(make_chain(retry_interval=60), calls, crm=1, lake=1_000)
    until(lambda: failures.count()[ACKNOWLEDGED] == 1)
    with open_store(f"{url}?store=failures") as elsewhere:
        assert elsewhere.retrieve() is None
        assert elsewhere.count()[SCHEDULED] == 1


def test_delay_that_a_destination_asks_for_is_kept_by_the_replays(calls: Calls, failures: Any, until: Any) -> None:
    moments: list[float] = []

    @destination
    def crm(ctx: MessageContext) -> None:
        moments.append(time.monotonic())
        if len(moments) < 3:
            raise Retry("busy", after=0.3)

    quick = ReplayConfig(polling_interval=0.02, retry_interval=600)
    with HandlerChain("orders", destinations_flow=crm, failure_store=failures, replay=quick) as chain:
        with pytest.raises(ExecutionError):
            chain.execute(1)
        until(lambda: failures.count()[ACKNOWLEDGED] == 1)
    assert moments[2] - moments[1] >= 0.3


def test_delay_that_a_destination_asks_for_holds_for_the_first_replay_too(failures: Any) -> None:
    @destination
    def crm(ctx: MessageContext) -> None:
        raise Retry("busy", after=600)

    quick = ReplayConfig(polling_interval=0.02)
    with HandlerChain("orders", destinations_flow=crm, failure_store=failures, replay=quick) as chain:
        with pytest.raises(ExecutionError):
            chain.execute(1)
        assert failures.count()[SCHEDULED] == 1
    by_hand = HandlerChain("orders", destinations_flow=crm, failure_store=failures)
    with pytest.raises(ExecutionError):
        by_hand.execute(1)
    assert failures.count()[AVAILABLE] == 1


def test_error_that_must_never_be_retried_ends_the_replays(failures: Any, dead: Any, until: Any) -> None:
    count: Counter[str] = Counter()

    @destination
    def crm(ctx: MessageContext) -> None:
        count["crm"] += 1
        raise PermissionError("locked out")

    policy = RetryPolicy(5, 0.02, never=(PermissionError,))
    quick = ReplayConfig(polling_interval=0.02, retry=policy, dead_letter_store=dead)
    with HandlerChain("orders", destinations_flow=crm, failure_store=failures, replay=quick) as chain:
        with pytest.raises(ExecutionError):
            chain.execute(1)
        until(lambda: dead.count()[AVAILABLE] == 1)
    letter = dead.retrieve()
    assert letter.headers["homing-dead-letter-reason"] == "PermissionError"
    assert letter.headers["homing-dead-letter-handler"] == "crm"
    assert count["crm"] == 2


def test_close_leaves_a_replay_that_hangs_behind_and_its_message_comes_back(
    failures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.pipeline.chain.PATIENCE", 0.2)
    hung, leave = threading.Event(), threading.Event()

    @destination
    def crm(ctx: MessageContext) -> None:
        if threading.current_thread() is not threading.main_thread():
            hung.set()
            leave.wait(60)
        raise OSError("refused")

    quick = ReplayConfig(polling_interval=0.02, lease=0.5)
    chain = HandlerChain("orders", destinations_flow=crm, failure_store=failures, replay=quick)
    with pytest.raises(ExecutionError):
        chain.execute(1)
    assert hung.wait(20)
    closing = threading.Thread(target=chain.close, daemon=True)
    closing.start()
    closing.join(20)
    try:
        assert not closing.is_alive()
        assert failures.count()[ACKNOWLEDGED] == 0
    finally:
        leave.set()


def test_replay_store_is_listened_to_instead_of_the_failure_store(
    make_chain: Any, calls: Calls, failures: Any, requested: Any, until: Any
) -> None:
    fail(make_chain(replay_store=requested), calls, lake=1)
    entry = failures.retrieve()
    assert calls.count["lake"] == 1
    requested.store(entry.content)
    until(lambda: requested.count()[ACKNOWLEDGED] == 1)
    assert calls.count == {"doubled": 2, "crm": 1, "lake": 2}


@pytest.mark.parametrize("content", ["rubbish", 7, {"homing": "failure"}, None])
def test_what_is_no_failure_record_goes_to_the_dead_letter_store_at_once(
    make_chain: Any, calls: Calls, failures: Any, dead: Any, *, until: Any, content: Any
) -> None:
    failures.store(content, id="odd")
    make_chain(dead_letter_store=dead, retry_interval=60)
    until(lambda: failures.count()[ACKNOWLEDGED] == 1)
    letter = dead.retrieve()
    assert letter.content == content
    assert letter.headers["homing-message-id"] == "odd"
    assert letter.headers["homing-dead-letter-reason"] == "homing.errors.UnreadableMessageError"
    assert calls.count == {}


def test_what_is_no_failure_record_stays_while_the_dead_letter_store_is_down(
    make_chain: Any, failures: Any, dead: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*args: Any, **kwargs: Any) -> str:
        raise StoreUnavailableError("no connection")

    with monkeypatch.context() as patched:
        patched.setattr(dead, "store", down)
        failures.store("rubbish")
        chain = make_chain(dead_letter_store=dead)
        until(lambda: chain.replay_listener.metrics().released >= 2)
        assert failures.count()[ACKNOWLEDGED] == 0
    until(lambda: dead.count()[AVAILABLE] == 1)


def test_without_dead_letter_store_what_fails_stays_in_the_failure_store(
    make_chain: Any, calls: Calls, failures: Any, until: Any
) -> None:
    chain = make_chain(max_retries=0)
    fail(chain, calls, lake=1_000)
    until(lambda: chain.replay_listener.metrics().released >= 2)
    assert failures.count()[ACKNOWLEDGED] == 0
    calls.refusals.clear()
    until(lambda: failures.count()[ACKNOWLEDGED] == 1)


def test_listener_starts_with_the_chain_and_ends_with_close(make_chain: Any, calls: Calls, failures: Any) -> None:
    chain = make_chain()
    assert chain.replay_listener.is_running
    chain.close()
    assert not chain.replay_listener.is_running
    fail(chain, calls, lake=1)
    assert failures.count()[AVAILABLE] == 1


def test_close_waits_for_the_replay_that_is_running_and_releases_what_waits(
    make_chain: Any, calls: Calls, failures: Any, until: Any
) -> None:
    chain = make_chain(retry_interval=600)
    fail(chain, calls, lake=1_000)
    until(lambda: chain.replay_listener.metrics().retried == 1)
    closing = threading.Thread(target=chain.close)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    assert failures.count()[AVAILABLE] == 1


def test_chain_without_replay_listens_to_nothing(calls: Calls, failures: Any) -> None:
    @destination
    def crm(ctx: MessageContext) -> None: ...

    assert HandlerChain("orders", destinations_flow=crm, failure_store=failures).replay_listener is None


def test_replay_without_any_store_is_refused() -> None:
    @destination
    def crm(ctx: MessageContext) -> None: ...

    with pytest.raises(ChainError, match="no replay store"):
        HandlerChain("orders", destinations_flow=crm, replay=ReplayConfig())


@pytest.mark.parametrize("options", [{"polling_interval": 0}, {"max_retries": -1}, {"retry_interval": 0}])
def test_impossible_replay_is_refused(options: Any) -> None:
    with pytest.raises(ConfigurationError):
        ReplayConfig(**options)


def test_store_that_is_replayed_cannot_be_its_own_dead_letter_store(failures: Any) -> None:
    @destination
    def crm(ctx: MessageContext) -> None: ...

    with pytest.raises(ConfigurationError, match="own dead-letter store"):
        HandlerChain(
            "orders", destinations_flow=crm, failure_store=failures, replay=ReplayConfig(dead_letter_store=failures)
        )


MODULE = """
import os, sys, threading
from homing import HandlerChain, ReplayConfig, destination, open_store

@destination
def crm(ctx):
    if "hang" in sys.argv:
        print("delivering", ctx.get_content(), flush=True)
        threading.Event().wait(600)
    raise OSError("refused")

chain = HandlerChain(
    "orders",
    destinations_flow=crm,
    failure_store=open_store(os.environ["FAILURES"]),
    replay=ReplayConfig(polling_interval=0.05, lease=600),
)
"""

LOADING = """
from homing.pipeline import load_chain
print(load_chain("orders_replaying:chain").replay_listener.is_running)
"""

LISTENING = """
import orders_replaying
orders_replaying.chain.replay_listener.join()
"""


def test_chain_loaded_for_a_job_never_starts_its_listener(tmp_path: Path, url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING],
        env=environment(tmp_path, url),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "False\n", done.stderr


def environment(tmp_path: Path, url: str) -> dict[str, str]:
    (tmp_path / "orders_replaying.py").write_text(MODULE)
    plugins = Path(homing.__path__[0]).parent
    return {"PYTHONPATH": f"{tmp_path}{os.pathsep}{plugins}", "FAILURES": f"{url}?store=failures"}


def test_failure_record_of_a_replay_that_is_killed_comes_back(
    tmp_path: Path, url: str, make_chain: Any, calls: Calls, *, failures: Any, until: Any
) -> None:
    first = make_chain()
    first.close()
    fail(first, calls, crm=1, lake=1)
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENING, "hang"], env=environment(tmp_path, url), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "delivering 2\n"
        assert failures.count()[AVAILABLE] == 0
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()  # type: ignore[union-attr]
    let_time_pass(failures, 600)
    make_chain()
    until(lambda: failures.count()[ACKNOWLEDGED] == 1)
    assert calls.count == {"doubled": 2, "crm": 2, "lake": 2}
