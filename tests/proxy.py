"""A proxy on the loopback: what a network does to those who talk through it, and a count of whether it did.

with Proxy(server_port) as proxy:      # clients connect to proxy.port
    with proxy.losing_replies(after=b"COMMIT"):
        ...
    assert proxy.counts.replies_lost
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

PASS, CUT, SILENT, SLOW, LOSE_REPLY = "pass", "cut", "silent", "slow", "lose reply"
#: What `counts` is counted by: connections that were ended or refused, chunks that did not get through or came late,
#: and connections whose server had an answer that their client never saw.
ENDED, WITHHELD, DELAYED, REPLIES_LOST, ASKED = "ended", "withheld", "delayed", "replies lost", "asked"

_CHUNK = 65_536
_BACKLOG = 128


class _Pair:
    """One client and its connection to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.loses_replies = False
        self.broken = False

    def end(self) -> None:
        """Both ends are told at once that there is nobody any more."""
        for end in (self.client, self.server):
            with suppress(OSError):
                # Without a farewell: the peer gets a reset.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            with suppress(OSError):
                end.close()


class Proxy:
    """Forwards connections to a port of this machine, as its mode allows. `counts` says what that did to anybody."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._mode, self._seconds, self._after = PASS, 0.0, b""
        self._lock = threading.Lock()
        self._pairs: set[_Pair] = set()
        self._closed = False
        self.counts: Counter[str] = Counter()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True).start()

    # -- what a network does -----------------------------------------------------------------------------------

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Every connection is reset, and every new one as well."""
        with self._in_mode(CUT):
            self.end_connections()
            yield

    @contextmanager
    def half_open(self) -> Iterator[None]:
        """Nothing gets through either way, and nobody is told; at the end these connections are reset."""
        with self._in_mode(SILENT):
            yield
        self._end_broken()

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Whatever is sent, either way, arrives so much later."""
        with self._in_mode(SLOW, seconds):
            yield

    @contextmanager
    def losing_replies(self, after: bytes) -> Iterator[None]:
        """The server gets every request; who sends one that holds `after` hears nothing more, then gets a reset."""
        with self._in_mode(LOSE_REPLY, after=after):
            yield
        self._end_broken()

    def lead_to(self, server_port: int) -> None:
        """From now on connections go to this port; those there were are reset."""
        self._server_port = server_port
        self.end_connections()

    def end_connections(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, set()
            self.counts[ENDED] += len(pairs)
        for pair in pairs:
            pair.end()

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.end_connections()

    # -- inside ------------------------------------------------------------------------------------------------

    @contextmanager
    def _in_mode(self, mode: str, seconds: float = 0.0, after: bytes = b"") -> Iterator[None]:
        self._seconds, self._after, self._mode = seconds, after, mode
        try:
            yield
        finally:
            with self._lock:  # nothing is withheld from here on
                self._mode = PASS

    def _end_broken(self) -> None:
        with self._lock:
            broken = {pair for pair in self._pairs if pair.broken}
            self._pairs -= broken
        for pair in broken:
            pair.end()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        """A client is led to the server; while nothing gets through, it waits like everybody."""
        if self._mode == CUT:
            self._refuse(client)
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._server_port), timeout=10)
        except OSError:
            self._refuse(client)
            return
        server.settimeout(None)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = _Pair(client, server)
        with self._lock:
            self._pairs.add(pair)
        threading.Thread(target=self._pump, args=(pair, client, server, True), daemon=True).start()
        self._pump(pair, server, client, False)

    def _refuse(self, client: socket.socket) -> None:
        self._count(ENDED)
        _Pair(client, client).end()

    def _pump(self, pair: _Pair, source: socket.socket, sink: socket.socket, is_request: bool) -> None:
        try:
            while chunk := source.recv(_CHUNK):
                if is_request:
                    self._count(ASKED)
                if self._gets_through(pair, chunk, is_request):
                    sink.sendall(chunk)
        except OSError:
            pass
        with self._lock:
            if pair.broken and self._mode != PASS:
                return  # who hangs up is not heard either
            self._pairs.discard(pair)
        pair.end()

    def _gets_through(self, pair: _Pair, chunk: bytes, is_request: bool) -> bool:
        """Whether this chunk arrives; when it is to be late, after it was late."""
        with self._lock:
            mode = self._mode
            if mode == SILENT:
                pair.broken = True
                self.counts[WITHHELD] += 1
            elif mode == LOSE_REPLY and is_request and self._after in chunk:
                pair.loses_replies = pair.broken = True
            elif pair.loses_replies and not is_request:
                self.counts[REPLIES_LOST] += 1
        if mode == SLOW:
            self._count(DELAYED)
            time.sleep(self._seconds)
        return not pair.broken or (pair.loses_replies and is_request)

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
