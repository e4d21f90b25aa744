"""AMQP 1.0 types as bytes and back: as much of them as the Service Bus SDK speaks."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class UByte(int): ...


class UShort(int): ...


class UInt(int): ...


class ULong(int): ...


class Int(int): ...


class Timestamp(int):
    """Milliseconds since 1970."""


class Symbol(str):
    __slots__ = ()


class Array(list[Any]):
    """Values of one type, which all must have."""


@dataclass(frozen=True)
class Described:
    """A value under a descriptor, which is a number here."""

    descriptor: Any
    value: Any


_FIXED: dict[type, tuple[int, str]] = {
    UByte: (0x50, ">B"), UShort: (0x60, ">H"), UInt: (0x70, ">I"), ULong: (0x80, ">Q"), Int: (0x71, ">i"),
    Timestamp: (0x83, ">q"), int: (0x81, ">q"), float: (0x82, ">d"),
}  # fmt: skip


def encode(value: Any) -> bytes:
    code, body = _encode(value)
    return bytes([code]) + body


def _encode(value: Any) -> tuple[int, bytes]:
    kind = type(value)
    if value is None:
        return 0x40, b""
    if kind is bool:
        return (0x41 if value else 0x42), b""
    if kind is ULong and value < 256:
        return 0x53, bytes([value])  # the SDK reads descriptors in this form only
    if kind in _FIXED:
        code, form = _FIXED[kind]
        return code, struct.pack(form, value)
    if kind is uuid.UUID:
        return 0x98, value.bytes
    if kind is bytes:
        return 0xB0, struct.pack(">I", len(value)) + value
    if kind is str or kind is Symbol:
        text = value.encode()
        return (0xB3 if kind is Symbol else 0xB1), struct.pack(">I", len(text)) + text
    if kind is Described:
        return 0x00, encode(value.descriptor) + encode(value.value)
    if kind is Array:
        items = [_encode(item) for item in value]
        inside = bytes([items[0][0] if items else 0x40]) + b"".join(body for _, body in items)
        return 0xF0, struct.pack(">II", len(inside) + 4, len(value)) + inside
    if kind is dict:
        inside = b"".join(encode(key) + encode(item) for key, item in value.items())
        return 0xD1, struct.pack(">II", len(inside) + 4, 2 * len(value)) + inside
    inside = b"".join(encode(item) for item in value)
    return 0xD0, struct.pack(">II", len(inside) + 4, len(value)) + inside


_NUMBERS: dict[int, tuple[str, Callable[[Any], Any]]] = {
    0x50: (">B", int), 0x51: (">b", int), 0x52: (">B", int), 0x53: (">B", int), 0x54: (">b", int), 0x55: (">b", int),
    0x56: (">B", bool), 0x60: (">H", int), 0x61: (">h", int), 0x70: (">I", int), 0x71: (">i", int), 0x72: (">f", float),
    0x80: (">Q", int), 0x81: (">q", int), 0x82: (">d", float), 0x83: (">q", Timestamp),
}  # fmt: skip
_CONSTANTS = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_VARIABLE: dict[int, Callable[[bytes], Any]] = {
    0xA0: bytes, 0xB0: bytes, 0xA1: bytes.decode, 0xB1: bytes.decode,
    0xA3: lambda raw: Symbol(raw.decode()), 0xB3: lambda raw: Symbol(raw.decode()),
}  # fmt: skip


def decode(raw: bytes, place: int = 0) -> tuple[Any, int]:
    """The value that begins here, and where the next one does."""
    return _decode(raw[place], raw, place + 1)


def _decode(code: int, raw: bytes, place: int) -> tuple[Any, int]:
    if code == 0x00:
        descriptor, place = decode(raw, place)
        value, place = decode(raw, place)
        return Described(descriptor, value), place
    if code == 0x45:
        return [], place
    if code in _CONSTANTS:
        return _CONSTANTS[code], place
    if code in _NUMBERS:
        form, make = _NUMBERS[code]
        size = struct.calcsize(form)
        return make(struct.unpack_from(form, raw, place)[0]), place + size
    if code == 0x98:
        return uuid.UUID(bytes=raw[place : place + 16]), place + 16
    wide = bool(code & 0x10)
    (size,) = struct.unpack_from(">I" if wide else ">B", raw, place)
    place += 4 if wide else 1
    end = place + size
    if code in _VARIABLE:
        return _VARIABLE[code](raw[place:end]), end
    (count,) = struct.unpack_from(">I" if wide else ">B", raw, place)
    place += 4 if wide else 1
    items = []
    constructor = None
    if code in (0xE0, 0xF0):
        constructor, place = raw[place], place + 1
    for _ in range(count):
        item, place = decode(raw, place) if constructor is None else _decode(constructor, raw, place)
        items.append(item)
    if code in (0xC1, 0xD1):
        return dict(zip(items[::2], items[1::2], strict=True)), end
    return items, end
