"""What becomes of messages that a service handles, or does not."""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from homing import Message, Retry, RetryPolicy, StoreListener, open_store
from homing.errors import LeaseLostError, StoreUnavailableError
from homing.message import ACKNOWLEDGED, AVAILABLE


class Failing:
    """Fails on some contents, always or the first few times."""

    def __init__(self, bad: Any = "bad", times: int = 1_000_000, error: BaseException | None = None) -> None:
        self.bad = bad
        self.times = times
        self.error = error or ValueError("no such customer")
        self.calls: Counter[Any] = Counter()

    def on_message(self, content: Any) -> None:
        self.calls[content] += 1
        if content == self.bad and self.calls[content] <= self.times:
            raise self.error


def test_failed_message_is_tried_once_plus_max_retries_times(
    any_store: Any, plain_dead: Any, listen: Any, until: Any
) -> None:
    service = Failing()
    any_store.store("bad")
    listener = listen(any_store, service, max_retries=2, dead_letter_store=plain_dead)
    until(lambda: listener.metrics().dead_lettered == 1)
    assert service.calls["bad"] == 3
    assert listener.metrics().retried == 2


def test_no_retries_means_one_attempt(plain: Any, plain_dead: Any, listen: Any, until: Any) -> None:
    service = Failing()
    plain.store("bad")
    listener = listen(plain, service, max_retries=0, dead_letter_store=plain_dead)
    until(lambda: listener.metrics().dead_lettered == 1)
    assert service.calls["bad"] == 1


def test_retry_that_succeeds_is_acknowledged_once(any_store: Any, listen: Any, until: Any) -> None:
    service = Failing(times=2)
    any_store.store("bad")
    listener = listen(any_store, service)
    until(lambda: listener.metrics().processed == 1)
    assert service.calls["bad"] == 3
    assert any_store.retrieve() is None


def test_retry_interval_passes_between_attempts(plain: Any, plain_dead: Any, listen: Any, until: Any) -> None:
    moments: list[float] = []

    def on_message(content: Any) -> None:
        moments.append(time.monotonic())
        raise OSError

    plain.store(1)
    listen(plain, on_message, max_retries=2, retry_interval=0.15, dead_letter_store=plain_dead)
    until(lambda: len(moments) == 3)
    assert min(moments[1] - moments[0], moments[2] - moments[1]) >= 0.15


def test_returned_exception_is_a_failure(plain: Any, plain_dead: Any, listen: Any, until: Any) -> None:
    plain.store(1)
    listen(plain, lambda content: ValueError("refused"), max_retries=0, dead_letter_store=plain_dead)
    until(lambda: plain_dead.available)
    assert plain_dead.available[0].headers["homing-dead-letter-reason"] == "ValueError"


def test_dead_letter_has_the_original_content_and_explains_itself(
    store: Any, dead: Any, listen: Any, until: Any
) -> None:
    service = Failing(bad=None)

    def on_message(order: dict[str, Any]) -> None:
        order["number"] = "spoilt"
        service.on_message(None)

    store.store({"number": 7}, id="m1", headers={"tenant": "eu"})
    listener = listen(store, on_message, max_retries=1, dead_letter_store=dead)
    until(lambda: listener.metrics().dead_lettered == 1)
    letter = dead.retrieve()
    assert letter.content == {"number": 7}
    headers = dict(letter.headers)
    assert "no such customer" in headers.pop("homing-dead-letter-stack")
    assert headers == {
        "tenant": "eu",
        "homing-message-id": "m1",
        "homing-dead-letter-reason": "ValueError",
        "homing-dead-letter-description": "no such customer",
        "homing-dead-letter-source": "orders",
        "homing-dead-letter-handler": on_message.__qualname__,
        "homing-dead-letter-attempts": 2,
    }
    assert store.count()[ACKNOWLEDGED] == 1


def test_dead_letter_in_a_store_that_takes_whole_messages_has_its_reason_and_all_properties(
    store: Any, dead: Any, listen: Any, until: Any
) -> None:
    store.store(Message("m1", "bad", subject="order", correlation_id="c1", priority=3))
    listener = listen(store, Failing(), max_retries=0, dead_letter_store=dead)
    until(lambda: listener.metrics().dead_lettered == 1)
    letter = dead.retrieve()
    assert (letter.subject, letter.correlation_id, letter.priority) == ("order", "c1", 3)
    assert (letter.dead_letter_reason, letter.dead_letter_source) == ("ValueError", "orders")
    assert letter.dead_letter_description == "no such customer"


def test_dead_letter_that_does_not_fit_its_store_is_stored_with_content_id_and_headers(
    dead: Any, listen: Any, until: Any
) -> None:
    with open_store("memory://wide") as wide:
        wide.store(Message("m1", "bad", headers={"tenant": "eu"}, correlation_id="c" * 300, subject="order"))
        listener = listen(wide, Failing(), max_retries=0, dead_letter_store=dead)
        until(lambda: listener.metrics().dead_lettered == 1)
    letter = dead.retrieve()
    assert (letter.content, letter.headers["tenant"], letter.headers["homing-message-id"]) == ("bad", "eu", "m1")
    assert letter.headers["homing-dead-letter-reason"] == "ValueError"
    assert letter.headers["homing-correlation_id"] == "c" * 300
    assert letter.headers["homing-subject"] == "order"
    assert letter.correlation_id is None


def test_dead_letter_is_stored_before_the_message_is_acknowledged(
    plain: Any, plain_dead: Any, listen: Any, until: Any
) -> None:
    plain.down = {"acknowledge"}
    plain.store("bad")
    listen(plain, Failing(), max_retries=0, dead_letter_store=plain_dead)
    until(lambda: plain_dead.available)
    assert plain.told == []
    plain.down = set()
    until(lambda: plain.told == [("m1", True)])


@pytest.mark.parametrize("switch", [{}, {"ack_with_failure_after_max_retries": False}])
def test_dead_letter_store_is_used_whatever_the_switch_says(
    plain: Any, plain_dead: Any, listen: Any, until: Any, switch: Any
) -> None:
    plain.store("bad")
    listen(plain, Failing(), max_retries=0, dead_letter_store=plain_dead, **switch)
    until(lambda: plain_dead.available)


def test_two_messages_of_one_id_are_both_dead_lettered(
    store: Any, url: str, dead: Any, listen: Any, until: Any
) -> None:
    with open_store(f"{url}?store=invoices") as other:
        store.store("bad", id="m1")
        other.store("bad", id="m1")
        listeners = [listen(source, Failing(), max_retries=0, dead_letter_store=dead) for source in (store, other)]
        until(lambda: sum(listener.metrics().dead_lettered for listener in listeners) == 2)
        for listener in listeners:
            listener.graceful_stop()
    assert dead.count()[AVAILABLE] == 2


def test_two_messages_of_one_id_of_stores_that_nothing_outlives_are_both_dead_lettered(listen: Any, until: Any) -> None:
    with open_store("memory://one") as one, open_store("memory://other") as other, open_store("memory://both") as dead:
        listeners = []
        for source in (one, other):
            source.store("bad", id="m1")
            listeners.append(listen(source, Failing(), max_retries=0, dead_letter_store=dead))
        until(lambda: sum(listener.metrics().dead_lettered for listener in listeners) == 2)
        for listener in listeners:
            listener.graceful_stop()
        assert dead.count()[AVAILABLE] == 2


def test_a_message_that_comes_again_after_it_was_dead_lettered_is_one_dead_letter(
    listen: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store("memory://again") as source, open_store("memory://again-dead") as dead:
        acknowledge, lost = source.acknowledge, list[Any]()

        def lose_the_first(message: Any, success: bool = True) -> None:
            lost.append(message)
            acknowledge(message, success=success and len(lost) > 1)
            if len(lost) == 1:
                raise LeaseLostError("another consumer has it by now")

        monkeypatch.setattr(source, "acknowledge", lose_the_first)
        source.store("bad")
        listener = listen(source, Failing(), max_retries=0, dead_letter_store=dead)
        until(lambda: listener.metrics().dead_lettered == 1)
        listener.graceful_stop()
        assert len(lost) == 2
        assert dead.count()[AVAILABLE] == 1


def test_without_dead_letter_store_the_message_is_acknowledged_with_failure(
    plain: Any, listen: Any, until: Any
) -> None:
    plain.store("bad")
    listener = listen(plain, Failing(), max_retries=1, polling_interval=60)
    until(lambda: listener.metrics().released == 1)
    assert plain.told == [("m1", False)]


@pytest.mark.parametrize(
    "switch", [{"ack_with_failure_after_max_retries": False}, {"drop_message_after_max_retries": True}]
)
def test_drop_switch_acknowledges_with_success(plain: Any, listen: Any, until: Any, switch: Any) -> None:
    plain.store("bad")
    listener = listen(plain, Failing(), max_retries=1, **switch)
    until(lambda: listener.metrics().dropped == 1)
    assert plain.told == [("m1", True)]


def test_binding_failure_is_tried_again_like_any_other_before_the_switch_drops_it(
    plain: Any, listen: Any, until: Any
) -> None:
    def on_message(number: int) -> None: ...

    plain.store("seven")
    listener = listen(plain, on_message, max_retries=2, drop_message_after_max_retries=True)
    until(lambda: listener.metrics().dropped == 1)
    assert listener.metrics().retried == 2


def test_rubbish_answer_for_a_batch_is_tried_again_like_any_failure_before_the_switch_drops_it(
    plain: Any, listen: Any, until: Any
) -> None:
    answers: list[Any] = ["rubbish", "rubbish", None]

    class Service:
        def on_messages(self, contents: list[Any]) -> Any:
            return answers.pop(0)

    plain.store(1)
    listener = listen(plain, Service(), max_retries=2, drop_message_after_max_retries=True)
    until(lambda: listener.metrics().processed == 1)
    assert (listener.metrics().retried, listener.metrics().dropped) == (2, 0)


def test_released_message_waits_for_the_next_poll_and_is_then_tried_afresh(plain: Any, listen: Any, until: Any) -> None:
    service = Failing(times=2)
    plain.store("bad")
    listener = listen(plain, service, max_retries=1, polling_interval=0.1)
    until(lambda: listener.metrics().processed == 1)
    assert plain.told == [("m1", False), ("m1", True)]
    assert service.calls["bad"] == 3


def test_released_message_does_not_make_the_listener_run_hot(plain: Any, listen: Any, until: Any) -> None:
    service = Failing()
    plain.store("bad")
    listener = listen(plain, service, max_retries=0, polling_interval=60)
    until(lambda: listener.metrics().released == 1)
    until(lambda: "m1" in plain.leased)
    assert service.calls["bad"] == 1


def test_listener_drains_what_is_due_and_then_waits_for_the_polling_interval(
    plain: Any, listen: Any, until: Any
) -> None:
    for number in range(20):
        plain.store(number)
    listener = listen(plain, lambda content: None, polling_interval=60)
    until(lambda: listener.metrics().processed == 20)
    until(lambda: plain.retrievals == 21)
    plain.store("late")
    assert plain.retrievals == 21


def test_messages_are_handled_in_the_order_of_the_store(any_store: Any, listen: Any, until: Any) -> None:
    for number in range(10):
        any_store.store(number)
    seen: list[int] = []
    listen(any_store, seen.append)
    until(lambda: len(seen) == 10)
    assert seen == list(range(10))


def test_failing_message_does_not_keep_others_waiting(any_store: Any, listen: Any, until: Any) -> None:
    service = Failing()
    any_store.store("bad")
    for number in range(10):
        any_store.store(number)
    listener = listen(any_store, service, max_retries=3, retry_interval=60)
    until(lambda: listener.metrics().processed == 10)
    assert service.calls["bad"] == 1
    assert listener.metrics().in_flight == 1


def test_many_failing_messages_do_not_keep_a_good_one_waiting(
    plain: Any, plain_dead: Any, listen: Any, until: Any
) -> None:
    order: list[str] = []

    def on_message(content: str) -> None:
        order.append(content)
        if content != "good":
            raise OSError

    for _ in range(20):
        plain.store("bad")
    listener = listen(plain, on_message, max_retries=100_000, retry_interval=0.0001, dead_letter_store=plain_dead)
    until(lambda: listener.metrics().retried > 40)
    plain.store("good")
    until(lambda: "good" in order)


def test_retry_raised_by_the_handler_sets_the_delay(plain: Any, listen: Any, until: Any) -> None:
    calls: list[float] = []

    def on_message(content: Any) -> None:
        calls.append(time.monotonic())
        if len(calls) == 1:
            raise Retry("busy", after=0.2)

    plain.store(1)
    listen(plain, on_message, retry_interval=60)
    until(lambda: len(calls) == 2)
    assert calls[1] - calls[0] >= 0.2


def test_error_that_must_not_be_retried_is_given_up_at_once(
    plain: Any, plain_dead: Any, listen: Any, until: Any
) -> None:
    service = Failing(error=PermissionError())
    plain.store("bad")
    policy = RetryPolicy(5, 0.01, never=(PermissionError,))
    listen(plain, service, retry_interval=1, dead_letter_store=plain_dead, retry=policy)
    until(lambda: plain_dead.available)
    assert service.calls["bad"] == 1


def test_each_attempt_gets_its_own_copy_of_the_content(plain: Any, plain_dead: Any, listen: Any, until: Any) -> None:
    seen: list[Any] = []

    def on_message(order: Any) -> None:
        seen.append(dict(order, lines=list(order["lines"])))
        order["lines"].append("spoilt")
        order["total"] = 0
        raise OSError

    plain.store({"lines": ["a"]})
    listen(plain, on_message, max_retries=2, dead_letter_store=plain_dead)
    until(lambda: plain_dead.available)
    assert seen == [{"lines": ["a"]}] * 3
    assert plain_dead.available[0].content == {"lines": ["a"]}


def test_handlers_run_at_the_same_time_when_concurrency_says_so(any_store: Any, listen: Any, until: Any) -> None:
    together = threading.Barrier(3, timeout=20)

    def on_message(content: Any) -> None:
        together.wait()

    for number in range(3):
        any_store.store(number)
    listener = listen(any_store, on_message, concurrency=3)
    until(lambda: listener.metrics().processed == 3)


def test_one_handler_runs_at_a_time_unless_said_otherwise(plain: Any, listen: Any, until: Any) -> None:
    running, most = [0], [0]

    def on_message(content: Any) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        threading.Event().wait(0.002)
        running[0] -= 1

    for number in range(20):
        plain.store(number)
    listener = listen(plain, on_message)
    until(lambda: listener.metrics().processed == 20)
    assert most == [1]


def test_metrics_know_what_is_in_flight_and_how_old_it_is(store: Any, listen: Any, until: Any) -> None:
    entered, leave = threading.Event(), threading.Event()

    def on_message(content: Any) -> None:
        entered.set()
        assert leave.wait(20)

    store.store(1)
    time_stored = time.time()
    listener = listen(store, on_message)
    assert entered.wait(20)
    until(lambda: time.time() - time_stored > 0.05)
    metrics = listener.metrics()
    assert metrics.in_flight == 1
    assert metrics.oldest_age is not None
    assert 0.05 <= metrics.oldest_age < 20
    leave.set()
    until(lambda: listener.metrics().in_flight == 0)
    until(lambda: listener.metrics().oldest_age is None)


def test_oldest_age_is_that_of_the_longest_waiting_message_of_the_store(store: Any, listen: Any, until: Any) -> None:
    entered, leave = threading.Event(), threading.Event()

    def on_message(content: Any) -> None:
        entered.set()
        assert leave.wait(20)

    for seconds in (400, 300):
        store.store(seconds, scheduled_at=datetime.now(timezone.utc) - timedelta(seconds=seconds))
    assert 399 < (StoreListener(store).metrics().oldest_age or 0) < 450

    listener = listen(store, on_message)
    assert entered.wait(20)
    assert 299 < (listener.metrics().oldest_age or 0) < 350
    leave.set()
    until(lambda: listener.metrics().oldest_age is None)


def test_oldest_age_of_a_store_that_is_away_is_that_of_what_is_in_hand(
    store: Any, listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, leave = threading.Event(), threading.Event()

    def on_message(content: Any) -> None:
        entered.set()
        assert leave.wait(20)

    def away() -> float:
        raise StoreUnavailableError("no connection")

    store.store(1)
    listener = listen(store, on_message)
    assert entered.wait(20)
    monkeypatch.setattr(store, "oldest_age", away)
    assert listener.metrics().oldest_age is not None
    leave.set()


def test_content_named_fail_fails_and_others_are_received(plain: Any, listen: Any, until: Any) -> None:
    """The example of both documents, in Python."""
    received: list[Any] = []

    class Example:
        def on_message(self, content: Any) -> None:
            received.append(content)
            if content == "fail":
                raise RuntimeError("Message processing failed")

    plain.store("fail")
    plain.store("hello")
    listener = listen(plain, Example(), max_retries=2, drop_message_after_max_retries=True)
    until(lambda: listener.metrics().dropped == 1)
    assert received.count("fail") == 3
    assert received.count("hello") == 1
