"""Text of others is shown without steering whatever shows it."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import homing.pipeline.outcome  # noqa: F401 - brings errors of its own
from homing import ListenerConfig, Message, StoreListener, open_store
from homing.errors import HomingError, NotInFlightError
from homing.invocation.error_info import frames_of
from homing.printable import make_log_records_printable, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("order-1", "order-1"),
        ("Größe 7 €", "Größe 7 €"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb\u2028c", "a\\u202eb\\u2028c"),
        ("\ud800", "\\ud800"),
        ("\0\x7f", "\\x00\\x7f"),
    ],
)
def test_what_would_steer_a_terminal_is_written_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_what_is_to_be_kept_stays() -> None:
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


@given(st.text())
def test_whatever_comes_leaves_one_line_that_can_be_written(text: str) -> None:
    shown = printable(text)

    shown.encode()
    assert len(f"x{shown}x".splitlines()) == 1
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in shown)


def test_a_hostile_id_neither_steers_a_terminal_nor_forges_a_line_in_the_applications_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def service(content: object) -> None:
        raise ValueError(content)

    with open_store("memory://hostile-orders") as store, open_store("memory://hostile-dead") as dead_letters:
        store.store(Message("a\x1b[2J\nERROR:root:forged", "x"))
        options = ListenerConfig(
            polling_interval=0.05, max_retries=0, retry_interval=0.05, dead_letter_store=dead_letters
        )
        listener = StoreListener(store, options)
        listener.attach(service)
        listener.start()
        deadline = time.monotonic() + 20
        while "went to dead-letter store" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.02)
        listener.graceful_stop()

    assert "message a\\x1b[2J\\nERROR:root:forged of store" in caplog.text
    assert "\x1b" not in caplog.text


def test_an_error_that_nobody_caught_shows_a_hostile_id_without_steering_the_terminal(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/x.db?store=orders") as store:
        store.store(Message("a\x1b[2J\nERROR:root:forged\u202e", "x"))
        message = store.retrieve()
        assert message is not None
        store.acknowledge(message)
        with pytest.raises(NotInFlightError) as caught:
            store.acknowledge(message)

    shown = "".join(traceback.format_exception(caught.value))
    assert "message a\\x1b[2J\\nERROR:root:forged\\u202e in store 'orders'" in shown.splitlines()[-1]
    assert "\x1b" not in shown


def _kinds(of: type[HomingError]) -> Iterator[type[HomingError]]:
    yield of
    for kind in of.__subclasses__():
        yield from _kinds(kind)


@pytest.mark.parametrize("kind", sorted(set(_kinds(HomingError)), key=lambda kind: kind.__name__))
def test_what_an_error_of_ours_says_is_one_printable_line(kind: type[HomingError]) -> None:
    error = kind.__new__(kind, "a\x1b[2J\nb\u202ec")

    assert str(error) == "a\\x1b[2J\\nb\\u202ec"


def test_records_of_others_and_stacks_of_ours_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise OSError

    make_log_records_printable()  # once is enough
    logging.getLogger("theirs").warning("%s", "a\nb")
    logging.getLogger("homing.ours").warning("%s %d %s", frames_of(ValueError()) + "\n", 3, frames_of(ValueError()))
    logging.getLogger("homing.ours").warning("%s and %s", ValueError("c\nd"), "e\nf")
    logging.getLogger("homing.ours").warning("%(name)s", {"name": "g"})
    record = logging.getLogger("homing.ours").makeRecord("homing.ours", 30, "f", 1, "%s", (Silent(),), None)

    assert "a\nb" in caplog.text
    assert "c\\nd and e\\nf" in caplog.text
    assert isinstance(record.args, tuple)
    assert isinstance(record.args[0], Silent)


def test_a_formatter_may_copy_a_record_as_structlog_does() -> None:
    record = logging.LogRecord("homing.stores", logging.INFO, __file__, 1, "message %s", ("m",), None)

    assert logging.makeLogRecord(record.__dict__).getMessage() == "message m"
