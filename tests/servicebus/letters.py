"""A message on the wire: its sections, those that matter to a broker taken apart, the others kept byte for byte."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.servicebus.codec import Described, Symbol, Timestamp, UInt, ULong, decode, encode

HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION, DATA = 0x70, 0x71, 0x72, 0x73, 0x74, 0x75
_FIELDS = ("message_id", "user_id", "to", "label", "reply_to", "correlation_id", "content_type", "content_encoding",
           "absolute_expiry_time", "creation_time", "session_id", "group_sequence", "reply_to_session_id")  # fmt: skip
_SYMBOLS = {"content_type", "content_encoding"}
SCHEDULED_FOR = "x-opt-scheduled-enqueue-time"


@dataclass(frozen=True)
class Letter:
    header: list[Any] = field(default_factory=list)
    annotations: dict[Any, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    application: dict[Any, Any] = field(default_factory=dict)
    body: bytes = b""

    @property
    def time_to_live(self) -> float | None:
        """Seconds."""
        ttl = self.header[2] if len(self.header) > 2 else None
        return None if ttl is None else ttl / 1000

    @property
    def scheduled_for(self) -> float | None:
        """Seconds since 1970."""
        at = self.annotations.get(SCHEDULED_FOR)
        return None if at is None else at / 1000

    def encoded(self, *, delivery_count: int, annotations: dict[str, Any], delivery: dict[str, Any] | None) -> bytes:
        """As a receiver gets it."""
        header = [*self.header, None, None, None, None, None][:5]
        header[4] = UInt(delivery_count)
        if header[2] is not None:
            header[2] = UInt(header[2])
        known = {Symbol(key): value for key, value in {**self.annotations, **annotations}.items()}
        if SCHEDULED_FOR in known:
            known[Symbol(SCHEDULED_FOR)] = Timestamp(known[Symbol(SCHEDULED_FOR)])
        parts = [_section(HEADER, header)]
        if delivery:
            parts.append(_section(DELIVERY, {Symbol(key): value for key, value in delivery.items()}))
        parts += [_section(ANNOTATIONS, known), _section(PROPERTIES, self._properties())]
        if self.application:
            parts.append(_section(APPLICATION, self.application))
        return b"".join(parts) + self.body

    def _properties(self) -> list[Any]:
        values = []
        for name in _FIELDS:
            value = self.properties.get(name)
            if value is not None and name in _SYMBOLS:
                value = Symbol(value)
            elif value is not None and name in ("absolute_expiry_time", "creation_time"):
                value = Timestamp(value)
            values.append(UInt(value) if name == "group_sequence" and value is not None else value)
        return values


def _section(code: int, value: Any) -> bytes:
    return encode(Described(ULong(code), value))


def read_letter(raw: bytes) -> Letter:
    sections: dict[int, Any] = {}
    place = body = 0
    while place < len(raw):
        section, after = decode(raw, place)
        if section.descriptor >= DATA:
            body = place
            break
        sections[section.descriptor] = section.value
        place = after
    else:
        body = len(raw)
    properties = dict(zip(_FIELDS, sections.get(PROPERTIES, []), strict=False))
    return Letter(
        header=sections.get(HEADER, []),
        annotations={str(key): value for key, value in sections.get(ANNOTATIONS, {}).items()},
        properties=properties,
        application=sections.get(APPLICATION, {}) or {},
        body=raw[body:],
    )


def read_batch(raw: bytes) -> list[Letter]:
    """The messages in the data sections of a batch."""
    letters, place = [], 0
    while place < len(raw):
        section, place = decode(raw, place)
        if section.descriptor == DATA:
            letters.append(read_letter(section.value))
    return letters
