"""Links: what the client sends to, receives from, and asks for."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from tests.servicebus import management
from tests.servicebus.broker import Entry, Hold, Queue, Refusal, too_large
from tests.servicebus.codec import Described, Symbol, UByte, UInt, ULong, decode
from tests.servicebus.keys import is_authorised
from tests.servicebus.letters import read_batch, read_letter
from tests.servicebus.management import wire

if TYPE_CHECKING:
    from tests.servicebus.server import Connection

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ACCEPTED, REJECTED, RELEASED, MODIFIED = 0x24, 0x25, 0x26, 0x27
_BATCH = 0x80013700  # the message format of many in one
_FRAME = 60_000
_CREDIT = 1000
_MAX_SIZE = 1_048_576
_TICKS = 621_355_968_000_000_000  # of .NET, 100 ns each, until 1970


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

    @property
    def is_service(self) -> bool:
        return self.path == "$cbs" or self.path.endswith("/$management")

    # -- attaching ---------------------------------------------------------------------------------------------

    def open(self) -> None:
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
                raise too_large(len(raw), limit)
            self.broker.send(self.path, read_batch(raw) if first[3] == _BATCH else [read_letter(raw)])

    def _put_token(self, raw: bytes) -> bytes:
        request = read_letter(raw)
        body, _ = decode(request.body)
        status, text = 202, "Accepted"
        if not is_authorised(body.value):
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
        if self.connection.server.on_settlement is not None:
            self.connection.server.on_settlement()
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
