"""The management API of Service Bus: entities and rules as Atom documents over HTTP, on the same port."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from tests.servicebus.broker import Broker, Settings, Subscription
from tests.servicebus.keys import is_authorised
from tests.servicebus.rules import CorrelationFilter, Filter, Rule, SqlFilter, everything, nothing

_SB = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"
_TYPE = "{http://www.w3.org/2001/XMLSchema-instance}type"
_DEFAULT = (
    f'<RuleDescription xmlns="{_SB[1:-1]}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
    '<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression></Filter>'
    '<Action i:type="EmptyRuleAction"/><Name>$Default</Name></RuleDescription>'
)
_TEXTS = {"CorrelationId": "correlation_id", "MessageId": "message_id", "To": "to", "ReplyTo": "reply_to",
          "Label": "label", "SessionId": "session_id", "ReplyToSessionId": "reply_to_session_id",
          "ContentType": "content_type"}  # fmt: skip

#: path -> the description as it was sent, which is how it is sent back
Descriptions = dict[str, tuple[str, str]]


class Atom:
    """One HTTP connection."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.descriptions: Descriptions = broker.__dict__.setdefault("descriptions", {})

    async def serve(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = first + await reader.readuntil(b"\r\n\r\n")
            first = b""
            line, *lines = head.decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines if one)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, target, _ = line.split(" ", 2)
            if is_authorised(headers.get("authorization", "")):
                status, text = self._answer(method, target, body.decode(), updating="if-match" in headers)
            else:
                status, text = 401, _problem(401, "InvalidSignature: The token has an invalid signature.")
            raw = text.encode()
            reply = f"HTTP/1.1 {status} X\r\nContent-Type: application/xml\r\nContent-Length: {len(raw)}\r\n\r\n"
            writer.write(reply.encode() + raw)
            await writer.drain()

    def _answer(self, method: str, target: str, body: str, *, updating: bool) -> tuple[int, str]:
        url = urlsplit(target)
        path = unquote(url.path).strip("/")
        key = path.lower()
        if method == "GET":
            return self._get(path, int(parse_qs(url.query).get("$skip", ["0"])[0]))
        if method == "DELETE":
            if key not in self.descriptions:
                return 404, _problem(404, f"The messaging entity '{path}' could not be found.")
            self._delete(key)
            return 200, ""
        if (key in self.descriptions) != updating:
            return (404 if updating else 409), _problem(404 if updating else 409, f"'{path}' exists not, or already.")
        parent = key.rpartition("/rules/")[0] or key.rpartition("/subscriptions/")[0]
        if parent and parent not in self.descriptions:
            return 404, _problem(404, f"The messaging entity '{parent}' could not be found.")
        entry = ET.fromstring(body)  # noqa: S314 - our own client wrote it
        self._put(path, entry, updating=updating)
        content = entry.find("{http://www.w3.org/2005/Atom}content")
        assert content is not None
        described = ET.tostring(content[0], encoding="unicode")
        self.descriptions[key] = (path.rpartition("/")[2] if parent else path, described)
        return (200 if updating else 201), _entry(*self.descriptions[key])

    def _get(self, path: str, skip: int) -> tuple[int, str]:
        key = path.lower()
        if key in self.descriptions:
            return 200, _entry(*self.descriptions[key])
        listed = {"$resources/queues": "QueueDescription", "$resources/topics": "TopicDescription"}
        if key in listed:
            found = [value for value in self.descriptions.values() if listed[key] in value[1]]
        elif key.endswith(("/subscriptions", "/rules")):
            if key.rpartition("/")[0] not in self.descriptions:
                return 404, _problem(404, f"The messaging entity '{path}' could not be found.")
            found = [value for name, value in self.descriptions.items() if name.rpartition("/")[0] == key]
        else:
            found = []
        return 200, f'<feed xmlns="http://www.w3.org/2005/Atom">{"".join(_entry(*one) for one in found[skip:])}</feed>'

    def _put(self, path: str, entry: ET.Element, *, updating: bool) -> None:
        key = path.lower()
        if "/rules/" in key:
            subscription, _, name = path.rpartition("/rules/")
            self._subscription(subscription).rules[name.lower()] = _rule(entry, name)
            return
        settings = _settings(entry)
        topic, separator, name = path.partition("/subscriptions/")
        if updating:
            self._settings_of(key, settings)
        elif separator:
            queue = self.broker.make_queue(f"{topic}/Subscriptions/{name}", settings)
            rules = {"$default": Rule("$Default")}
            self.broker.topics[topic.lower()].subscriptions[name.lower()] = Subscription(queue, rules)
            self.descriptions[f"{key}/rules/$default"] = ("$Default", _DEFAULT)
        elif entry.find(f".//{_SB}TopicDescription") is not None:
            self.broker.make_topic(path, settings)
        else:
            self.broker.make_queue(path, settings)

    def _settings_of(self, key: str, settings: Settings) -> None:
        if key in self.broker.topics:
            self.broker.topics[key].inbox.settings = settings
        else:
            queue = self.broker.queues[key]
            queue.settings = settings
            assert queue.dead is not None
            queue.dead.settings = replace(settings, requires_session=False, time_to_live=None)

    def _delete(self, key: str) -> None:
        if "/rules/" in key:
            subscription, _, name = key.rpartition("/rules/")
            del self._subscription(subscription).rules[name]
        else:
            topic, separator, name = key.partition("/subscriptions/")
            if separator:
                del self.broker.topics[topic].subscriptions[name]
            self.broker.remove(key)
        for gone in [name for name in self.descriptions if name == key or name.startswith(f"{key}/")]:
            del self.descriptions[gone]

    def _subscription(self, path: str) -> Subscription:
        topic, _, name = path.lower().partition("/subscriptions/")
        return self.broker.topics[topic].subscriptions[name]


def _entry(title: str, content: str) -> str:
    return (
        f'<entry xmlns="http://www.w3.org/2005/Atom"><id>x</id><title type="text">{escape(title)}</title>'
        f'<updated>2026-01-01T00:00:00Z</updated><content type="application/xml">{content}</content></entry>'
    )


def _problem(code: int, text: str) -> str:
    return f"<Error><Code>{code}</Code><Detail>{escape(text)}</Detail></Error>"


def _settings(entry: ET.Element) -> Settings:
    def text(name: str) -> str | None:
        return entry.findtext(f".//{_SB}{name}")

    def seconds(name: str) -> float | None:
        return _seconds(text(name))

    settings = Settings()
    settings.lock_duration = seconds("LockDuration") or settings.lock_duration
    settings.max_delivery_count = int(text("MaxDeliveryCount") or settings.max_delivery_count)
    settings.time_to_live = seconds("DefaultMessageTimeToLive")
    settings.dead_letter_expired = text("DeadLetteringOnMessageExpiration") == "true"
    settings.requires_session = text("RequiresSession") == "true"
    if text("RequiresDuplicateDetection") == "true":
        settings.duplicate_window = seconds("DuplicateDetectionHistoryTimeWindow") or 600.0
    forward_to = text("ForwardTo")
    settings.forward_to = None if not forward_to else urlsplit(forward_to).path.strip("/") or forward_to
    return settings


def _seconds(duration: str | None) -> float | None:
    found = re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?", duration or "")
    if found is None or duration in (None, ""):
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return None if days > 10_000 else total


def _rule(entry: ET.Element, name: str) -> Rule:
    wanted = entry.find(f".//{_SB}Filter")
    action = entry.findtext(f".//{_SB}Action/{_SB}SqlExpression")
    assert wanted is not None
    return Rule(name, _filter(wanted), action or None)


def _filter(wanted: ET.Element) -> Filter:
    kind = wanted.get(_TYPE)
    if kind == "TrueFilter":
        return everything
    if kind == "FalseFilter":
        return nothing
    if kind == "SqlFilter":
        return SqlFilter(wanted.findtext(f"{_SB}SqlExpression") or "")
    texts = {name: wanted.findtext(f"{_SB}{tag}") for tag, name in _TEXTS.items()}
    properties: dict[str, Any] = {}
    for pair in wanted.iter(f"{_SB}KeyValueOfstringanyType"):
        value = pair.find(f"{_SB}Value")
        assert value is not None
        convert = {"int": int, "long": int, "double": float, "boolean": lambda text: text == "true"}
        kind = (value.get(_TYPE) or "").partition(":")[2]
        properties[pair.findtext(f"{_SB}Key") or ""] = convert.get(kind, str)(value.text or "")
    return CorrelationFilter({name: text for name, text in texts.items() if text}, properties)
