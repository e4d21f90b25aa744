"""The proxy does what it says to those who talk through it, and counts that it did."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.proxy import ASKED, DELAYED, ENDED, REPLIES_LOST, WITHHELD, Proxy


class Server:
    """Answers every line with itself in capitals, and remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client:
            try:
                while text := client.recv(1000):
                    self.heard.append(text)
                    client.sendall(text.upper())
            except OSError:
                return


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.listener.close()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.port) as made:
        yield made


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def ask(client: socket.socket, text: bytes) -> bytes:
    client.sendall(text)
    return client.recv(1000)


def hears_nothing(client: socket.socket, seconds: float = 0.3) -> bool:
    client.settimeout(seconds)
    try:
        client.recv(1000)
    except TimeoutError:
        return True
    finally:
        client.settimeout(10)
    return False


def wait_for(proxy: Proxy, what: str) -> None:
    deadline = time.monotonic() + 10
    while not proxy.counts[what]:
        assert time.monotonic() < deadline, f"nothing was {what}"
        time.sleep(0.01)


def is_reset(client: socket.socket) -> bool:
    try:
        return client.recv(1000) == b""
    except ConnectionError:
        return True


def is_refused(proxy: Proxy) -> bool:
    try:
        with connect(proxy) as client:
            return is_reset(client)
    except ConnectionError:  # the reset may come before the connection is there
        return True


def test_what_nobody_harms_gets_through(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert ask(client, b"one") == b"ONE"
    assert set(proxy.counts) == {ASKED}


def test_a_cut_resets_connections_and_new_ones(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert ask(client, b"one") == b"ONE"
        with proxy.cut():
            assert is_reset(client)
            assert is_refused(proxy)
    assert proxy.counts[ENDED] == 2
    with connect(proxy) as client:
        assert ask(client, b"two") == b"TWO"


def test_a_half_open_connection_says_nothing_and_is_reset_at_the_end(proxy: Proxy, server: Server) -> None:
    with connect(proxy) as client:
        assert ask(client, b"one") == b"ONE"
        with proxy.half_open():
            client.sendall(b"two")
            assert hears_nothing(client)
        assert is_reset(client)
    assert server.heard == [b"one"]
    assert proxy.counts[WITHHELD] == 1


def test_a_client_that_hangs_up_is_not_heard_through_a_half_open_network(proxy: Proxy, server: Server) -> None:
    client = connect(proxy)
    with proxy.half_open():
        client.sendall(b"one")
        client.close()
        wait_for(proxy, WITHHELD)
    with connect(proxy) as another:
        assert ask(another, b"two") == b"TWO"
    assert server.heard == [b"two"]


def test_a_slow_network_is_slow_both_ways(proxy: Proxy) -> None:
    with connect(proxy) as client, proxy.slow(0.2):
        began = time.monotonic()
        assert ask(client, b"one") == b"ONE"
        assert time.monotonic() - began >= 0.4
    assert proxy.counts[DELAYED] == 2


def test_a_reply_is_lost_after_the_server_has_done_what_it_was_asked(proxy: Proxy, server: Server) -> None:
    with connect(proxy) as client, connect(proxy) as another:
        with proxy.losing_replies(after=b"commit"):
            assert ask(another, b"select") == b"SELECT"
            client.sendall(b"commit")
            assert hears_nothing(client)
        assert is_reset(client)
        assert ask(another, b"again") == b"AGAIN"
    assert b"commit" in server.heard
    assert proxy.counts[REPLIES_LOST] == 1


def test_it_can_lead_to_another_server(proxy: Proxy, server: Server) -> None:
    successor = Server()
    with connect(proxy) as client:
        assert ask(client, b"one") == b"ONE"
        proxy.lead_to(successor.port)
        assert is_reset(client)
    with connect(proxy) as client:
        assert ask(client, b"two") == b"TWO"
    assert (server.heard, successor.heard) == ([b"one"], [b"two"])
    successor.listener.close()
