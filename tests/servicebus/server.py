"""An AMQP 1.0 server that the unmodified `azure-servicebus` SDK takes for Service Bus. Loopback, no TLS, one thread.

What it answers was found out by running the SDK against it; where nobody could look, Azure itself may differ.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import struct
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote

from tests.servicebus import management
from tests.servicebus.atom import Atom
from tests.servicebus.broker import Broker, Entry, Hold, Queue, Refusal
from tests.servicebus.codec import Array, Described, Symbol, Timestamp, UByte, UInt, ULong, UShort, decode, encode
from tests.servicebus.letters import Letter, read_batch, read_letter

Result = TypeVar("Result")

KEY_NAME, KEY = "RootManageSharedAccessKey", "dGVzdC1rZXk="
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ACCEPTED, REJECTED, RELEASED, MODIFIED = 0x24, 0x25, 0x26, 0x27
_BATCH = 0x80013700
_FRAME = 60_000
_TICK = 0.02
_CREDIT = 1000
_MAX_SIZE = 1_048_576
_TICKS = 621_355_968_000_000_000  # of .NET, 100 ns each, until 1970


class ServiceBusServer:
    """The server as the tests see it. `call` runs a function in its thread, where the broker may be touched."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.port = 0
        self.connections: set[Connection] = set()
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
        self.authorised: set[str] = set()
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

    def authorise(self, name: str, token: str) -> None:
        """Checks a shared access signature; raises PermissionError."""
        given = dict(parse_qsl(token.partition(" ")[2]))
        quoted = token.partition("sr=")[2].partition("&")[0]
        wanted = hmac.new(KEY.encode(), f"{quoted}\n{given.get('se')}".encode(), hashlib.sha256).digest()
        if given.get("skn") != KEY_NAME or given.get("sig") != base64.b64encode(wanted).decode():
            raise PermissionError(name)

    def next_delivery(self) -> int:
        self._deliveries += 1
        return self._deliveries - 1

    def deliver(self) -> None:
        for link in list(self.links.values()):
            link.deliver()

    def forget(self) -> None:
        for link in self.links.values():
            link.forget()


class Link:
    """One link. `receives` says that the client receives by it, and we send."""

    def __init__(self, connection: Connection, channel: int, attach: list[Any]) -> None:
        self.connection, self.channel = connection, channel
        self.broker = connection.broker
        self.name, self.handle, self.receives = attach[0], attach[1], bool(attach[2])
        self._attach = attach
        self.settled = attach[3] == 1
        self.source, self.target = attach[5], attach[6]
        end = self.source if self.receives else self.target
        self.address = str(end.value[0])
        self.path = _path(self.address)
        self.properties = attach[13] or {}
        self.credit = self.sent = self.received = 0
        self.queue: Queue | None = None
        self.session: str | None = None
        self.waiting_until: float | None = None
        self.unsettled: dict[int, Entry] = {}
        self._incoming = b""
        self._first: list[Any] = []
        self._answers: deque[bytes] = deque()

    @property
    def is_service(self) -> bool:
        return self.path == "$cbs" or self.path.endswith("/$management")

    # -- attaching ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        if self.path.endswith("/$management"):
            self._confirm()
            return
        if self.is_service:
            self._confirm()
        elif not self.receives:
            self.broker.inbox(self.path)
            self._confirm()
        else:
            self.queue = self.broker.receivable(self.path)
            self._open_receiver(self.queue)

    def _open_receiver(self, queue: Queue) -> None:
        filters = self.source.value[7] if len(self.source.value) > 7 else None
        asked = {str(key): value for key, value in (filters or {}).items()}
        if "com.microsoft:session-filter" not in asked:
            if queue.settings.requires_session:
                raise Refusal("amqp:not-allowed", "It is not possible for an entity that requires sessions to create a "
                              "non-sessionful message receiver.")  # fmt: skip
            self._confirm()
            return
        if not queue.settings.requires_session:
            raise Refusal("amqp:not-allowed", "A session receiver cannot be created on an entity without sessions.")
        wanted = asked["com.microsoft:session-filter"]
        if wanted is None:
            timeout = self.properties.get("com.microsoft:timeout", 60_000)
            self.waiting_until = time.time() + timeout / 1000
            self._take_next_session()
        elif wanted in queue.sessions:
            raise Refusal("com.microsoft:session-cannot-be-locked", f"The session {wanted!r} is locked by another.")
        else:
            self._take_session(wanted)

    def _take_next_session(self) -> None:
        assert self.queue is not None
        for entry in self.queue.available():
            if entry.session is not None and entry.session not in self.queue.sessions:
                self.waiting_until = None
                self._take_session(entry.session)
                return
        if self.waiting_until is not None and self.waiting_until <= time.time():
            self.waiting_until = None
            self.refuse(Refusal("com.microsoft:timeout", "There is no session to be accepted."))

    def _take_session(self, session: str) -> None:
        assert self.queue is not None
        until = time.time() + self.queue.settings.lock_duration
        self.session = session
        self.queue.sessions[session] = Hold(self, until)
        source = [*self.source.value, *[None] * 8][: max(8, len(self.source.value))]
        source[7] = {Symbol("com.microsoft:session-filter"): session}
        self.source = Described(self.source.descriptor, source)
        self._confirm({Symbol("com.microsoft:locked-until-utc"): int(until * 1e7) + _TICKS})

    def _confirm(self, properties: dict[Any, Any] | None = None) -> None:
        size: Any = None
        if not self.receives:
            limit = _MAX_SIZE if self.is_service else self.broker.inbox(self.path).settings.max_message_size
            size = ULong(limit)
            properties = {Symbol("com.microsoft:max-message-batch-size"): limit}
        values = self._values(self.source, self.target)
        values[9] = UInt(0) if self.receives else None
        values[10], values[13] = size, properties
        self.connection.send(self.channel, ATTACH, values)
        if not self.receives:
            self._give_credit()

    def _values(self, source: Any, target: Any) -> list[Any]:
        modes = [None if mode is None else UByte(mode) for mode in self._attach[3:5]]
        source, target = _typed(source), _typed(target)
        return [self.name, UInt(self.handle), not self.receives, *modes, source, target, *[None] * 7]

    def refuse(self, refusal: Refusal) -> None:
        self.connection.links.pop((self.channel, self.handle), None)
        # An end that is null says: refused, and the reason follows.
        values = self._values(*((None, self.target) if self.receives else (self.source, None)))
        values[9] = UInt(0) if self.receives else None
        self.connection.send(self.channel, ATTACH, values)
        self.detach(refusal)

    def detach(self, refusal: Refusal) -> None:
        self.connection.send(self.channel, DETACH, [UInt(self.handle), True, _error(refusal)])

    def forget(self) -> None:
        """The link is gone. Locks stay until they run out; a session is free again."""
        if self.session is not None and self.queue is not None:
            hold = self.queue.sessions.get(self.session)
            if hold is not None and hold.owner is self:
                del self.queue.sessions[self.session]
                for entry in self.queue.entries.values():
                    if entry.token is not None and entry.session == self.session:
                        self.queue.release(entry)

    # -- the client sends --------------------------------------------------------------------------------------

    def _give_credit(self) -> None:
        window = UInt(2**31 - 1)
        flow = [UInt(self.received), window, UInt(0), window, UInt(self.handle), UInt(self.received), UInt(_CREDIT)]
        self.connection.send(self.channel, FLOW, [*flow, None, None, None, None])

    def on_transfer(self, values: list[Any], payload: bytes) -> None:
        if not self._incoming:
            self._first = values
        self._incoming += payload
        if values[5]:
            return
        raw, self._incoming = self._incoming, b""
        self.received += 1
        outcome: Any = Described(ULong(ACCEPTED), [])
        try:
            self._accept(raw, self._first)
        except Refusal as refusal:
            outcome = Described(ULong(REJECTED), [_error(refusal)])
        number = UInt(self._first[1])
        self.connection.send(self.channel, DISPOSITION, [True, number, number, True, outcome, None])
        if self.received % 400 == 0:
            self._give_credit()
        self.connection.deliver()

    def _accept(self, raw: bytes, first: list[Any]) -> None:
        if self.path == "$cbs":
            self._answer(self._put_token(raw))
        elif self.path.endswith("/$management"):
            self._answer(management.answer(self.connection, self.path.removesuffix("/$management"), raw))
        else:
            limit = self.broker.inbox(self.path).settings.max_message_size
            if len(raw) > limit:
                raise Refusal(
                    "amqp:link:message-size-exceeded",
                    f"The message of {len(raw)} bytes exceeds the limit of {limit} bytes.",
                )
            self.broker.send(self.path, read_batch(raw) if first[3] == _BATCH else [read_letter(raw)])

    def _put_token(self, raw: bytes) -> bytes:
        request = read_letter(raw)
        body, _ = decode(request.body)
        status, text = 202, "Accepted"
        try:
            self.connection.authorise(str(request.application["name"]), body.value)
        except PermissionError:
            status, text = 401, "InvalidSignature: The token has an invalid signature."
        said = {"status-code": status, "status-description": text}
        return management.response(request, said, None)

    def _answer(self, raw: bytes) -> None:
        """Sends a response by the link that receives from the same address."""
        for link in self.connection.links.values():
            if link.receives and link.channel == self.channel and link.path == self.path:
                link.transfer(raw, tag=uuid.uuid4().bytes, settled=True)
                return

    # -- the client receives -----------------------------------------------------------------------------------

    def on_flow(self, values: list[Any]) -> None:
        if not self.receives:
            return
        self.credit = (values[5] or 0) + (values[6] or 0) - self.sent
        self.deliver()
        if values[8]:
            self.sent += max(self.credit, 0)
            self.credit = 0
            window = UInt(2**31 - 1)
            flow = [
                UInt(0),
                window,
                UInt(0),
                window,
                UInt(self.handle),
                UInt(self.sent),
                UInt(0),
                None,
                True,
                None,
                None,
            ]
            self.connection.send(self.channel, FLOW, flow)

    def deliver(self) -> None:
        if self.waiting_until is not None:
            self._take_next_session()
            return
        if self.queue is None:
            return
        if self.session is not None and self._session_ran_out():
            return
        while self.credit > 0 and (entry := next(self.queue.available(self.session), None)) is not None:
            self.queue.lock(entry)
            assert entry.token is not None
            raw = wire(entry, locked=not self.settled)
            number = self.transfer(raw, tag=entry.token.bytes_le, settled=self.settled)
            if self.settled:
                self.queue.complete(entry)
            else:
                self.unsettled[number] = entry

    def _session_ran_out(self) -> bool:
        assert self.queue is not None
        assert self.session is not None
        hold = self.queue.sessions.get(self.session)
        if hold is not None and hold.owner is self and hold.until > time.time():
            return False
        self.connection.links.pop((self.channel, self.handle), None)
        self.forget()
        self.detach(Refusal("com.microsoft:session-lock-lost", "The session lock has expired."))
        return True

    def transfer(self, raw: bytes, *, tag: bytes, settled: bool) -> int:
        number = self.connection.next_delivery()
        pieces = [raw[place : place + _FRAME] for place in range(0, len(raw), _FRAME)] or [b""]
        for index, piece in enumerate(pieces):
            more = index + 1 < len(pieces)
            values = [UInt(self.handle), UInt(number), tag, UInt(0), settled, more, *[None] * 5]
            self.connection.send(self.channel, TRANSFER, values, piece)
        self.sent += 1
        self.credit -= 1
        return number

    def on_disposition(self, channel: int, values: list[Any]) -> None:
        if channel != self.channel or not values[0] or self.queue is None:
            return
        last = values[1] if values[2] is None else values[2]
        for number in range(values[1], last + 1):
            entry = self.unsettled.pop(number, None)
            if entry is None:
                continue
            outcome = self._settle(entry, values[4])
            if not values[3]:
                echo = [False, UInt(number), UInt(number), True, outcome, None]
                self.connection.send(self.channel, DISPOSITION, echo)

    def _settle(self, entry: Entry, state: Any) -> Described:
        assert self.queue is not None
        if entry.token is None or entry.locked_until <= time.time() or entry.sequence not in self.queue.entries:
            lost = Refusal("com.microsoft:message-lock-lost", "The lock supplied is invalid or has expired.")
            return Described(ULong(REJECTED), [_error(lost)])
        if state.descriptor == ACCEPTED:
            self.queue.complete(entry)
        elif state.descriptor == RELEASED:
            self.queue.release(entry)
        elif state.descriptor == MODIFIED:
            fields = [*state.value, None, None]
            (self.queue.defer if fields[1] else self.queue.abandon)(entry)
            return Described(ULong(MODIFIED), [fields[0], fields[1], None])
        else:
            said = state.value[0].value[2] or {}
            said = {str(key): value for key, value in said.items()}
            self.queue.bury(entry, said.get("DeadLetterReason"), said.get("DeadLetterErrorDescription"))
        return Described(ULong(state.descriptor), [])


def wire(entry: Entry, *, locked: bool) -> bytes:
    """A message as it goes to a receiver."""
    annotations: dict[str, Any] = {
        "x-opt-sequence-number": entry.sequence,
        "x-opt-enqueue-sequence-number": entry.enqueued_sequence,
        "x-opt-enqueued-time": Timestamp(int(entry.enqueued * 1000)),
        "x-opt-message-state": management.Int(entry.state),
    }
    if locked:
        annotations["x-opt-locked-until"] = Timestamp(int(entry.locked_until * 1000))
    delivery = {"x-opt-lock-token": entry.token} if locked else None
    return entry.letter.encoded(delivery_count=entry.delivery_count, annotations=annotations, delivery=delivery)


def _path(address: str) -> str:
    if "://" in address:
        address = address.partition("://")[2].partition("/")[2]
    return address.strip("/")


def _typed(end: Any) -> Any:
    """A source or target echoed: numbers in it are uints, apart from the expiry policy's symbol."""
    if end is None:
        return None
    values = [UInt(value) if type(value) is int else value for value in end.value]
    return Described(ULong(end.descriptor), values)


def _error(refusal: Refusal) -> Described:
    return Described(ULong(0x1D), [Symbol(refusal.condition), refusal.text, None])


__all__ = ["Letter", "ServiceBusServer"]
