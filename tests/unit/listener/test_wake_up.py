"""A store that says by itself when it has something is not polled for it: no test here waits for a poll."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa

from homing import open_store
from homing.listener.wake_up import Waker
from homing.store import Store
from homing.stores.sql.notify import WakeUp

#: Nothing that is handled here was found by polling.
NEVER = 3600.0

LISTENERS = sa.text("SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()")


@pytest.fixture
def address(postgresql: Any) -> str:
    return f"{postgresql.empty_database()}?store=orders"


@pytest.fixture
def inbox(address: str) -> Iterator[Store]:
    with open_store(address) as opened:
        yield opened


@pytest.fixture
def server(address: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(address.partition("?")[0], isolation_level="AUTOCOMMIT")
    yield engine
    engine.dispose()


def listeners(server: sa.Engine) -> list[int]:
    with server.connect() as connection:
        return list(connection.execute(LISTENERS).scalars())


def cut(server: sa.Engine, pid: int) -> None:
    with server.connect() as connection:
        connection.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})


def test_message_is_handled_when_it_is_committed(
    inbox: Store, address: str, server: sa.Engine, listen: Any, until: Any
) -> None:
    handled: list[Any] = []
    listen(inbox, handled.append, polling_interval=NEVER)
    until(lambda: listeners(server))
    with open_store(address) as producer:
        for number in range(3):
            producer.store(number)
            until(lambda: len(handled) == number + 1)  # noqa: B023 - it is waited for here
    assert handled == [0, 1, 2]


def test_scheduled_message_is_handled_when_it_is_due(
    inbox: Store, address: str, server: sa.Engine, listen: Any, until: Any
) -> None:
    handled: list[Any] = []
    listen(inbox, handled.append, polling_interval=NEVER)
    until(lambda: listeners(server))
    with open_store(address) as producer:
        producer.store("later", scheduled_at=datetime.now(timezone.utc) + timedelta(seconds=1))
    until(lambda: handled == ["later"])


def test_listener_whose_connection_was_cut_listens_again(
    inbox: Store, address: str, server: sa.Engine, listen: Any, until: Any
) -> None:
    handled: list[Any] = []
    listen(inbox, handled.append, polling_interval=NEVER)
    until(lambda: listeners(server))
    with open_store(address) as producer:
        for turn in range(3):
            for pid in listeners(server):
                cut(server, pid)
            producer.store(turn)
            until(lambda: len(handled) == turn + 1)  # noqa: B023 - it is waited for here
            until(lambda: listeners(server))


def test_listener_that_cannot_listen_polls(
    inbox: Store, server: sa.Engine, listen: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> bool:
        raise OSError("no connection to spare")

    handled: list[Any] = []
    with monkeypatch.context() as without:
        without.setattr(type(inbox), "wait", refuse)
        listen(inbox, handled.append)
        inbox.store("a")
        until(lambda: handled == ["a"])
        assert not listeners(server)
    until(lambda: listeners(server))  # it comes back to it


def test_message_that_is_committed_just_before_the_listening_begins_is_handled(
    inbox: Store, address: str, listen: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = WakeUp._listen

    def late(wake_up: WakeUp) -> None:
        with open_store(address) as producer:
            producer.store("a", id="a")
        begin(wake_up)

    handled: list[Any] = []
    monkeypatch.setattr(WakeUp, "_listen", late)
    listen(inbox, handled.append, polling_interval=NEVER)
    until(lambda: handled == ["a"])


@pytest.mark.parametrize("how", ["graceful_stop", "immediate_stop"])
def test_stopped_listener_leaves_neither_thread_nor_connection(
    how: str, inbox: Store, server: sa.Engine, listen: Any, until: Any
) -> None:
    listener = listen(inbox, [].append, polling_interval=NEVER)
    waker = listener._current_run()._waker
    until(lambda: listeners(server))
    getattr(listener, how)()
    until(lambda: not waker._thread.is_alive())
    until(lambda: not listeners(server))  # the server ends its side a moment later


def test_store_that_is_closed_while_it_is_listened_to_closes_at_once(
    inbox: Store, server: sa.Engine, listen: Any, until: Any
) -> None:
    listen(inbox, [].append, polling_interval=NEVER)
    until(lambda: listeners(server))
    inbox.close()


def test_idle_connection_hears_nothing_that_nobody_reads(inbox: Store, address: str, server: sa.Engine) -> None:
    """Else what is said piles up in the server, until no transaction can say more."""
    inbox.wait(0.05)
    assert not listeners(server)


def test_message_of_a_memory_store_is_handled_when_it_is_stored(listen: Any, until: Any) -> None:
    handled: list[Any] = []
    with open_store("memory://woken") as store:
        listener = listen(store, handled.append, polling_interval=NEVER)
        for number in range(3):
            time.sleep(0.05)  # so that it is idle each time
            store.store(number)
            until(lambda: len(handled) == number + 1)  # noqa: B023 - it is waited for here
        listener.graceful_stop()


class Ringing(Store):
    """Says for ever that it has something, or is away."""

    def __init__(self, answer: Callable[[], bool]) -> None:
        self.name = "ringing"
        self.answer = answer
        self.asked = 0

    wakes = True

    def store(self, content: Any, **_: Any) -> str:
        raise NotImplementedError

    def retrieve(self) -> None:
        return None

    def acknowledge(self, message: Any, success: bool = True) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def wait(self, timeout: float, *, ended: Callable[[], bool] = bool) -> bool:
        self.asked += 1
        return self.answer()

    def wake(self) -> None:
        pass


def _away() -> bool:
    raise OSError("no connection")


@pytest.mark.parametrize("answer", [lambda: True, _away])
def test_store_that_is_mistaken_or_away_does_not_make_the_listener_run_hot(
    answer: Any, listen: Any, until: Any
) -> None:
    store = Ringing(answer)
    listen(store, [].append, polling_interval=NEVER)
    until(lambda: store.asked > 2)
    time.sleep(0.5)
    assert store.asked < 10  # it is asked again after 0.02 s, then 0.04 s, 0.08 s, …


def test_a_waker_that_was_stopped_wakes_no_more(until: Any) -> None:
    rung: list[int] = []
    let_go = False

    def answer() -> bool:
        until(lambda: let_go)
        return True

    store = Ringing(answer)
    waker = Waker(store, lambda: rung.append(1), NEVER)
    waker.start()
    waker.listen()
    until(lambda: store.asked)
    waker.stop()
    let_go = True
    until(lambda: not waker._thread.is_alive())
    assert not rung
