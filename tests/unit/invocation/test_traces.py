"""What logs may say of an error: its type and where it was raised, and never what a message says."""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

from homing import (
    ExecutionError,
    HandlerChain,
    ListenerConfig,
    Message,
    StoreListener,
    destination,
    open_store,
)
from homing.errors import HandlerError, LeaseLostError, StoreUnavailableError
from homing.invocation.error_info import frames_of, sign_of
from homing.store import Store

MARK = "Zk7f3aPayload"


class QuotingError(Exception):
    """Quotes."""


def quote(text: str) -> None:
    try:
        {}[text]
    except KeyError as error:
        raise QuotingError(text) from error


def caught(text: str) -> BaseException:
    try:
        quote(text)
    except QuotingError as error:
        return error
    raise AssertionError


def test_an_authors_error_is_told_by_its_type_and_its_line() -> None:
    line = quote.__code__.co_firstlineno + 4

    assert sign_of(caught(MARK)) == f"{__name__}.QuotingError at {Path(__file__)}:{line}"


def test_of_an_error_that_only_reports_another_that_other_is_told() -> None:
    failed = HandlerError(f"crm failed: {MARK}", "crm")
    failed.__cause__ = caught(MARK)

    assert sign_of(failed) == sign_of(failed.__cause__)


@pytest.mark.parametrize("kind", [StoreUnavailableError, LeaseLostError])
def test_an_error_of_ours_is_told_in_full_and_made_printable(kind: type[Exception]) -> None:
    assert sign_of(kind("the store is \x1b[31maway")) == f"{kind.__name__}: the store is \\x1b[31maway"


def test_an_error_that_was_never_raised_has_no_line() -> None:
    assert sign_of(ValueError(MARK)) == "ValueError"


def test_the_frames_have_every_type_on_the_way_and_no_text() -> None:
    frames = frames_of(caught(MARK))

    assert MARK not in frames
    assert "QuotingError" in frames
    assert "KeyError" in frames
    assert f'File "{__file__}"' in frames


@destination
def crm(content: str) -> None:
    quote(content)


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """Everything that was logged above DEBUG, with its traces."""
    formatter = logging.Formatter()
    return "\n".join(formatter.format(record) for record in caplog.records if record.levelno > logging.DEBUG)


def handle(store: Store, service: object, **config: Any) -> None:
    listener = StoreListener(store, ListenerConfig(polling_interval=0.02, retry_interval=0.02, **config))
    listener.attach(service)
    listener.start()
    deadline = time.monotonic() + 60
    while store.count()["acknowledged"] < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    listener.graceful_stop()


def test_a_listener_logs_its_service_s_error_without_its_text_and_the_dead_letter_has_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with open_store("memory://traces") as store, open_store("memory://traces_dead") as dead:
        store.store(MARK, id="m1")
        handle(store, quote, max_retries=1, dead_letter_store=dead)

        (letter,) = dead.browse(10)
    assert letter.dead_letter_description == MARK
    said = logged(caplog)
    assert "message m1 of store traces failed in quote at attempt 1 and is tried again" in said
    assert "went to dead-letter store traces_dead: " in said
    assert f"QuotingError at {__file__}:" in said
    assert MARK not in said


def test_a_chain_logs_what_its_failure_store_took_without_the_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with open_store("memory://chained") as store, open_store("memory://chained_failures") as failures:
        chain = HandlerChain("orders", destinations_flow=crm, failure_store=failures)
        store.store(MARK, id="m1")
        handle(store, chain)

        assert MARK in str(failures.browse(10)[0].content)
    said = logged(caplog)
    assert "message m1 failed in orders, and failure store chained_failures has it: " in said
    assert MARK not in said


def test_a_chain_logs_that_its_failure_store_refused_without_the_text(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(Store):
        name = "refusing"

        def store(self, content: Any, *, id: str | None = None, headers: Any = None) -> str:
            quote(str(content))
            raise AssertionError

        def retrieve(self) -> Message | None:
            return None

        def acknowledge(self, message: str | Message, success: bool = True) -> None:
            raise AssertionError

        def close(self) -> None:
            pass

    with pytest.raises(ExecutionError):
        HandlerChain("orders", destinations_flow=crm, failure_store=Refusing()).execute(MARK, id="m1")

    assert "message m1 failed, and failure store refusing did not take it: " in logged(caplog)
    assert MARK not in logged(caplog)


def test_of_an_error_of_the_system_the_number_is_told_and_not_its_text() -> None:
    full = OSError(errno.ENOSPC, f"{MARK} could not be written", f"/{MARK}")

    assert sign_of(full) == f"OSError ({os.strerror(errno.ENOSPC)})"
    assert frames_of(full).endswith(f"OSError ({os.strerror(errno.ENOSPC)})")
    assert sign_of(OSError(MARK)) == "OSError"
    assert sign_of(OSError(987_654_321, MARK)) == "OSError", "no number of the system's"
