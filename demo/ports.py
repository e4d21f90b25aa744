"""Ports for servers of our own."""

from __future__ import annotations

import secrets
import socket

#: Below what systems give to outgoing connections: a client that calls a server which is just restarting could get its
#: port, and keep the server from coming back.
_LOW, _HIGH = 10_240, 32_000


def free_port(port: int = 0) -> int:
    """A port nobody listens on at this moment: `port` itself when given. Raises OSError when it is taken."""
    if port:
        return _try(port)
    while True:
        try:
            return _try(_LOW + secrets.randbelow(_HIGH - _LOW))
        except OSError:
            continue


def _try(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
    return port
