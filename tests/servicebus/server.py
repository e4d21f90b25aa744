"""An AMQP 1.0 server that the unmodified `azure-servicebus` SDK takes for Service Bus. Loopback, no TLS, one thread.

What it answers was found out by running the SDK against it; where nobody could look, Azure itself may differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

from tests.servicebus.atom import Atom
from tests.servicebus.broker import Broker, Refusal
from tests.servicebus.codec import Array, Described, Symbol, UByte, UInt, ULong, UShort, decode, encode
from tests.servicebus.keys import KEY, KEY_NAME
from tests.servicebus.links import ATTACH, BEGIN, CLOSE, DETACH, DISPOSITION, END, FLOW, OPEN, TRANSFER, Link

Result = TypeVar("Result")

_TICK = 0.02


class ServiceBusServer:
    """The server as the tests see it. `call` runs a function in its thread, where the broker may be touched."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.port = 0
        self.connections: set[Connection] = set()
        #: Called in place of settling, while it is set: for what happens between a commit and its settlement.
        self.on_settlement: Callable[[], None] | None = None
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="servicebus-server", daemon=True)

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY};"
            "UseDevelopmentEmulator=true;"
        )

    @property
    def url(self) -> str:
        return f"servicebus+emulator://{KEY_NAME}:{quote(KEY, safe='')}@127.0.0.1:{self.port}/"

    def start(self) -> ServiceBusServer:
        self._thread.start()
        self._await(self._listen())
        self._ticking = asyncio.run_coroutine_threadsafe(self._tick(), self._loop)
        return self

    def stop(self) -> None:
        self.drop_connections()
        self._await(self._close())
        self._ticking.cancel()
        self._await(asyncio.sleep(0.05))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def restart(self, pause: float = 0.3) -> None:
        """Goes away and comes back with the same messages on the same port, as a failing-over service would."""
        self._await(self._close())
        self.drop_connections()
        time.sleep(pause)
        self._await(self._listen())

    def drop_connections(self) -> None:
        def drop() -> None:
            for connection in list(self.connections):
                connection.writer.transport.abort()

        self.call(drop)

    def call(self, function: Callable[[], Result]) -> Result:
        async def run() -> Result:
            return function()

        return self._await(run())

    def _await(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            first = await reader.readexactly(4)
            if first != b"AMQP":
                await Atom(self.broker).serve(first, reader, writer)
                return
            connection = Connection(self, reader, writer)
            self.connections.add(connection)
            try:
                await connection.serve(first)
            finally:
                self.connections.discard(connection)
                connection.forget()
        writer.close()

    async def _tick(self) -> None:
        while True:
            self.broker.tick()
            for connection in list(self.connections):
                connection.deliver()
            await asyncio.sleep(_TICK)


class Connection:
    """One TCP connection: frames in, frames out."""

    def __init__(self, server: ServiceBusServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server, self.reader, self.writer = server, reader, writer
        self.broker = server.broker
        self.links: dict[tuple[int, int], Link] = {}
        self._deliveries = 0

    # -- bytes -------------------------------------------------------------------------------------------------

    async def serve(self, first: bytes) -> None:
        await self._sasl(first + await self.reader.readexactly(4))
        self.writer.write(await self.reader.readexactly(8))
        while True:
            channel, performative, payload = await self._frame()
            if performative is None:
                continue
            values = [*performative.value, *[None] * 14]
            if performative.descriptor == CLOSE:
                self.send(0, CLOSE, [None])
                return
            self._handle(channel, performative.descriptor, values, payload)

    async def _sasl(self, header: bytes) -> None:
        self.writer.write(header)
        mechanisms = Array(Symbol(name) for name in ("ANONYMOUS", "MSSBCBS", "PLAIN", "EXTERNAL"))
        self._write(1, 0, encode(Described(ULong(0x40), [mechanisms])))
        await self._frame()
        self._write(1, 0, encode(Described(ULong(0x44), [UByte(0), None])))

    async def _frame(self) -> tuple[int, Any, bytes]:
        size, offset, _, channel = struct.unpack(">IBBH", await self.reader.readexactly(8))
        body = await self.reader.readexactly(size - 8)
        body = body[offset * 4 - 8 :]
        if not body:
            return channel, None, b""
        performative, end = decode(body)
        return channel, performative, body[end:]

    def _write(self, kind: int, channel: int, body: bytes) -> None:
        if not self.writer.transport.is_closing():
            self.writer.write(struct.pack(">IBBH", len(body) + 8, 2, kind, channel) + body)

    def send(self, channel: int, code: int, values: list[Any], payload: bytes = b"") -> None:
        self._write(0, channel, encode(Described(ULong(code), values)) + payload)

    # -- performatives -----------------------------------------------------------------------------------------

    def _handle(self, channel: int, code: int, values: list[Any], payload: bytes) -> None:
        if code == OPEN:
            idle = UInt(240_000)
            self.send(0, OPEN, ["test", None, UInt(65536), UShort(4999), idle, None, None, None, None, None])
        elif code == BEGIN:
            window = UInt(2**31 - 1)
            self.send(channel, BEGIN, [UShort(channel), UInt(0), window, window, UInt(255), None, None, None])
        elif code == ATTACH:
            self._attach(channel, values)
        elif code == FLOW and values[4] is not None and (channel, values[4]) in self.links:
            self.links[channel, values[4]].on_flow(values)
        elif code == TRANSFER and (channel, values[0]) in self.links:
            self.links[channel, values[0]].on_transfer(values, payload)
        elif code == DISPOSITION:
            for link in list(self.links.values()):
                link.on_disposition(channel, values)
        elif code == DETACH and (channel, values[0]) in self.links:
            self.links.pop((channel, values[0])).forget()
            self.send(channel, DETACH, [UInt(values[0]), True, None])
        elif code == END:
            self.send(channel, END, [None])

    def _attach(self, channel: int, values: list[Any]) -> None:
        link = Link(self, channel, values)
        self.links[channel, link.handle] = link
        try:
            link.open()
        except Refusal as refusal:
            link.refuse(refusal)

    def next_delivery(self) -> int:
        self._deliveries += 1
        return self._deliveries - 1

    def deliver(self) -> None:
        for link in list(self.links.values()):
            link.deliver()

    def forget(self) -> None:
        for link in self.links.values():
            link.forget()
