"""A server of an attacker's: it takes down who calls, and answers the way a MySQL server would begin."""

from __future__ import annotations

import socket
import threading
from types import TracebackType

# A greeting of protocol 10: enough for a client to send its name, its options and, if it must, its files.
_GREETING = b"\x0a5.7.0\0\1\0\0\0" + b"12345678\0" + b"\xff\xf7\x21\2\0\xff\x81\x15" + b"\0" * 10 + b"123456789012\0"
_PACKET = len(_GREETING).to_bytes(3, "little") + b"\0" + _GREETING


class RogueServer:
    """Listens on the loopback while the block lasts; `calls` counts who came."""

    def __enter__(self) -> RogueServer:
        self.calls = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            self.calls += 1
            with caller:
                caller.sendall(_PACKET)

    @property
    def url(self) -> str:
        return f"mysql://root:x@127.0.0.1:{self.port}/db?store=x&local_infile=1"
