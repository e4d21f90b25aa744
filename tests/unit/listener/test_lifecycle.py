"""Attaching, starting and stopping a listener."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from homing import ListenerConfig, StoreListener
from homing.errors import ConfigurationError


class Service:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_message(self, content: Any) -> None:
        self.seen.append(content)


class Gate:
    """A service whose handler waits until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.left = threading.Event()

    def on_message(self, content: Any) -> None:
        self.entered.set()
        assert self.open.wait(20)
        self.left.set()


def polling(store: str) -> list[str]:
    """The threads that work for a store."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(f"homing-{store}-")]


def test_started_listener_hands_the_content_to_the_service_and_acknowledges(
    any_store: Any, listen: Any, until: Any
) -> None:
    any_store.store({"number": 7})
    service = Service()
    listener = listen(any_store, service)
    until(lambda: listener.metrics().processed == 1)
    assert service.seen == [{"number": 7}]
    assert any_store.retrieve() is None


def test_plain_function_is_a_service(any_store: Any, listen: Any, until: Any) -> None:
    seen: list[Any] = []
    any_store.store("hello")
    listen(any_store, seen.append)
    until(lambda: seen == ["hello"])


def test_async_service_is_awaited(plain: Any, listen: Any, until: Any) -> None:
    seen: list[Any] = []

    async def on_message(content: Any) -> None:
        seen.append(content)

    plain.store(7)
    listen(plain, on_message)
    until(lambda: plain.told == [("m1", True)])
    assert seen == [7]


def test_nothing_is_retrieved_before_the_start(plain: Any) -> None:
    listener = StoreListener(plain)
    listener.attach(Service())
    assert plain.retrievals == 0
    assert not listener.is_running


def test_start_without_a_service_raises(plain: Any) -> None:
    with pytest.raises(ConfigurationError, match="no service"):
        StoreListener(plain).start()


def test_starting_twice_starts_once(plain: Any, listen: Any) -> None:
    plain.name = "twice"
    listener = listen(plain, Service())
    running = polling("twice")
    listener.start()
    assert polling("twice") == running
    assert len(running) == 2


def test_second_service_is_refused_and_the_first_stays(plain: Any, listen: Any, until: Any) -> None:
    first = Service()
    listener = listen(plain, first)
    with pytest.raises(ConfigurationError, match=r"Service\.on_message"):
        listener.attach(Service())
    plain.store(1)
    until(lambda: first.seen == [1])


@pytest.mark.parametrize("service", [7, None, object(), Service, "print"])
def test_what_is_no_service_is_refused(plain: Any, service: Any) -> None:
    with pytest.raises(ConfigurationError):
        StoreListener(plain).attach(service)


def test_generator_is_refused_because_calling_it_would_run_nothing(plain: Any) -> None:
    def on_message(content: Any) -> Any:
        yield content

    with pytest.raises(ConfigurationError, match="generator"):
        StoreListener(plain).attach(on_message)


def test_service_with_both_methods_is_refused(plain: Any) -> None:
    class Both(Service):
        def on_messages(self, contents: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="on_message and on_messages"):
        StoreListener(plain).attach(Both())


def test_detaching_what_is_not_attached_raises_and_changes_nothing(plain: Any, listen: Any, until: Any) -> None:
    service = Service()
    listener = listen(plain, service)
    with pytest.raises(ConfigurationError, match="is not attached"):
        listener.detach(Service())
    assert listener.is_running
    plain.store(1)
    until(lambda: service.seen == [1])


def test_detaching_stops_the_polling(plain: Any, listen: Any, until: Any) -> None:
    service = Service()
    listener = listen(plain, service)
    until(lambda: plain.retrievals > 1)
    listener.detach(service)
    until(lambda: not polling("plain"))
    plain.store(1)
    assert service.seen == []
    with pytest.raises(ConfigurationError, match="no service"):
        listener.start()


def test_another_service_can_be_attached_after_detaching(plain: Any, listen: Any, until: Any) -> None:
    first, second = Service(), Service()
    listener = listen(plain, first)
    listener.detach(first)
    listener.attach(second)
    listener.start()
    plain.store(1)
    until(lambda: second.seen == [1])
    assert first.seen == []


def test_bound_method_is_detached_by_its_name(plain: Any) -> None:
    service, listener = Service(), StoreListener(plain)
    listener.attach(service.on_message)
    listener.detach(service.on_message)
    with pytest.raises(ConfigurationError):
        listener.detach(service.on_message)


def test_graceful_stop_lets_what_is_in_flight_finish_and_acknowledges_it(any_store: Any, listen: Any) -> None:
    gate = Gate()
    message_id = any_store.store(1)
    any_store.store(2)
    listener = listen(any_store, gate)
    assert gate.entered.wait(20)
    stopping = threading.Thread(target=listener.graceful_stop)
    stopping.start()
    gate.open.set()
    stopping.join(20)
    assert not stopping.is_alive()
    assert listener.metrics().processed == 1
    left = any_store.retrieve()
    assert left.content == 2
    assert left.id != message_id


def test_graceful_stop_gives_a_failing_message_its_remaining_attempts(plain: Any, plain_dead: Any, listen: Any) -> None:
    first = threading.Event()
    calls: list[Any] = []

    def on_message(content: Any) -> None:
        calls.append(content)
        first.set()
        raise OSError

    plain.store(1)
    listener = listen(plain, on_message, max_retries=2, dead_letter_store=plain_dead)
    assert first.wait(20)
    assert listener.graceful_stop(timeout=20)
    assert calls == [1, 1, 1]
    assert [message.content for message in plain_dead.available] == [1]


def test_graceful_stop_without_retries_releases_what_fails_or_waits(plain: Any, listen: Any, until: Any) -> None:
    entered, leave = threading.Event(), threading.Event()

    def on_message(content: str) -> None:
        if content == "running":
            entered.set()
            assert leave.wait(20)
        raise OSError

    plain.store("waiting")
    plain.store("running")
    listener = listen(plain, on_message, retry_interval=600)
    assert entered.wait(20)
    stopping = threading.Thread(target=lambda: listener.graceful_stop(retries=False))
    stopping.start()
    until(lambda: plain.told == [("m1", False)])
    leave.set()
    stopping.join(20)
    assert not stopping.is_alive()
    assert plain.told == [("m1", False), ("m2", False)]


def test_graceful_stop_that_takes_too_long_becomes_an_immediate_one(plain: Any, listen: Any, until: Any) -> None:
    gate = Gate()
    plain.store(1)
    listener = listen(plain, gate)
    assert gate.entered.wait(20)
    assert listener.graceful_stop(timeout=0.05) is False
    gate.open.set()
    assert gate.left.wait(20)
    assert plain.told == []


def test_immediate_stop_acknowledges_nothing_that_is_in_flight(plain: Any, listen: Any, until: Any) -> None:
    gate = Gate()
    plain.store(1)
    listener = listen(plain, gate)
    assert gate.entered.wait(20)
    listener.immediate_stop()
    gate.open.set()
    assert gate.left.wait(20)
    until(lambda: not polling("plain"))
    assert plain.told == []
    assert "m1" in plain.leased


@pytest.mark.parametrize("stop", ["immediate_stop", "graceful_stop"])
def test_message_that_is_retrieved_too_late_is_given_back_and_not_handled(
    plain: Any, listen: Any, until: Any, stop: str
) -> None:
    asked, answer = threading.Event(), threading.Event()
    real, service = plain.retrieve, Service()

    def slow() -> Any:
        asked.set()
        assert answer.wait(20)
        return real()

    plain.retrieve = slow
    plain.store(1)
    listener = listen(plain, service)
    assert asked.wait(20)
    stopping = threading.Thread(target=getattr(listener, stop))
    stopping.start()
    until(lambda: listener._run is None or listener._run.in_flight._phase != "running")
    answer.set()
    until(lambda: plain.told == [("m1", False)])
    stopping.join(20)
    assert service.seen == []


def test_immediate_stop_leaves_a_message_that_waits_for_its_retry_alone(plain: Any, listen: Any, until: Any) -> None:
    def on_message(content: Any) -> None:
        raise OSError

    plain.store(1)
    listener = listen(plain, on_message, retry_interval=60)
    until(lambda: listener.metrics().retried == 1)
    listener.immediate_stop()
    assert plain.told == []


def test_stopped_listener_retrieves_nothing_and_can_be_started_again(plain: Any, listen: Any, until: Any) -> None:
    service = Service()
    listener = listen(plain, service)
    listener.graceful_stop()
    plain.store(1)
    assert service.seen == []
    listener.start()
    until(lambda: service.seen == [1])


def test_stopping_what_is_not_running_does_nothing(plain: Any) -> None:
    listener = StoreListener(plain)
    assert listener.graceful_stop()
    listener.immediate_stop()


def test_threads_end_with_the_listener(plain: Any, until: Any) -> None:
    plain.name = "ending"
    listener = StoreListener(plain, ListenerConfig(polling_interval=60, concurrency=3))
    listener.attach(Service())
    with listener:
        listener.start()
        assert len(polling("ending")) == 4
    until(lambda: not polling("ending"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_listener_runs_in_the_process_that_started_it_and_not_in_a_forked_one(plain: Any, listen: Any) -> None:
    listener = listen(plain, Service())
    child = os.fork()
    if child == 0:
        stopped = not listener.is_running and listener.graceful_stop()
        os._exit(0 if stopped else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert listener.is_running


def test_handler_may_stop_its_own_listener(plain: Any, listen: Any, until: Any) -> None:
    holder: list[StoreListener] = []

    def on_message(content: Any) -> None:
        holder[0].graceful_stop()

    listener = StoreListener(plain, ListenerConfig(polling_interval=0.02))
    holder.append(listener)
    listener.attach(on_message)
    plain.store(1)
    listener.start()
    assert listener.join(20)
    until(lambda: plain.told == [("m1", True)])


def test_graceful_stop_does_not_outlast_an_immediate_one_that_leaves_a_hung_handler(store: Any, listen: Any) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hang(content: Any) -> None:
        entered.set()
        leave.wait(60)

    store.store(1)
    listener = listen(store, hang)
    assert entered.wait(20)
    results: list[bool] = []
    stopping = threading.Thread(target=lambda: results.append(listener.graceful_stop()), daemon=True)
    stopping.start()
    listener.immediate_stop()

    stopping.join(20)
    leave.set()

    assert not stopping.is_alive()
    assert results == [False]


def test_batch_that_fails_after_the_stop_is_not_told_to_the_store(plain: Any, listen: Any) -> None:
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    class Service:
        def on_messages(self, contents: list[Any]) -> None:
            entered.set()
            try:
                assert leave.wait(20)
                raise OSError("says nothing of any message")
            finally:
                left.set()

    plain.store(1)
    plain.store(2)
    listener = listen(plain, Service())
    assert entered.wait(20)
    run = listener._run
    assert listener.graceful_stop(timeout=0.05, retries=False) is False
    leave.set()
    assert left.wait(20)
    for worker in run._workers:
        worker.thread.join(20)
        assert not worker.thread.is_alive()
    assert plain.told == []
