"""Rules of a subscription: which messages of its topic it gets, and what is changed on the copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from homing.bus.filter_language import Parser, Property, Value, compile_expression
from homing.bus.message import Message
from homing.errors import ConfigurationError

DEFAULT_RULE = "$Default"
RULE_NAME = "RuleName"  # the property that says which rule with an action made this copy

# What sys. can name, lower-cased, and the field it stands for.
_SYSTEM = {
    "messageid": "message_id", "correlationid": "correlation_id", "to": "to", "replyto": "reply_to",
    "label": "label", "subject": "label", "sessionid": "session_id", "replytosessionid": "reply_to_session_id",
    "contenttype": "content_type", "partitionkey": "partition_key", "timetolive": "time_to_live",
    "sequencenumber": "sequence_number", "enqueuedsequencenumber": "enqueued_sequence_number",
    "deliverycount": "delivery_count",
}  # fmt: skip
_SETTABLE = {"message_id", "correlation_id", "to", "reply_to", "label", "session_id", "reply_to_session_id",
             "content_type", "partition_key"}  # fmt: skip


@dataclass(frozen=True)
class SqlFilter:
    """Messages for which this expression is true; see homing.bus.filter_language."""

    expression: str

    def matches(self, message: Message) -> bool:
        return compile_expression(self.expression)(MessageView(message)) is True


@dataclass(frozen=True)
class TrueFilter:
    """All messages."""

    def matches(self, message: Message) -> bool:
        return True


@dataclass(frozen=True)
class FalseFilter:
    """No message."""

    def matches(self, message: Message) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class CorrelationFilter:
    """Messages whose fields and properties are equal to all of these, upper and lower case included."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.fields() and not self.properties:
            raise ConfigurationError("a correlation filter needs at least one field or property to compare")

    def fields(self) -> dict[str, str]:
        """The fields that are compared."""
        return {name: value for name, value in asdict(self).items() if name != "properties" and value is not None}

    def matches(self, message: Message) -> bool:
        theirs = message.application_properties
        return all(getattr(message, name) == value for name, value in self.fields().items()) and all(
            key in theirs and type(theirs[key]) is type(value) and theirs[key] == value
            for key, value in self.properties.items()
        )


Filter = SqlFilter | TrueFilter | FalseFilter | CorrelationFilter


@dataclass(frozen=True)
class Rule:
    """A filter, and optionally a SQL action: `SET colour = 'red'; REMOVE size`."""

    name: str
    filter: Filter = field(default_factory=TrueFilter)
    action: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.filter, Filter):
            raise ConfigurationError(
                f"the filter of rule {self.name!r} must be a filter of homing.bus, got {self.filter!r}"
            )

    def check(self) -> None:
        """Raises ConfigurationError for what the embedded bus cannot parse; the service accepts more."""
        if isinstance(self.filter, SqlFilter):
            compile_expression(self.filter.expression)
        if self.action is not None:
            compile_action(self.action)


def copies(rules: Iterable[Rule], message: Message) -> list[Message]:
    """The copies that a subscription with these rules gets of a message: one if a rule without action matches, and
    another one for every matching rule with an action."""
    found, plain = [], False
    for rule in rules:
        if not rule.filter.matches(message):
            continue
        if rule.action is None:
            plain = True
        else:
            changed = compile_action(rule.action)(message)
            found.append(
                replace(changed, application_properties={**changed.application_properties, RULE_NAME: rule.name})
            )
    return [message, *found] if plain else found


class MessageView:
    """A message as an expression sees it."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._own = {key.lower(): value for key, value in message.application_properties.items()}

    def get(self, scope: str, name: str) -> Any:
        if scope == "user":
            return self._own.get(name.lower())
        known = _SYSTEM.get(name.lower())
        return getattr(self._message, known) if known else None


@lru_cache(maxsize=1024)
def compile_action(text: str) -> Callable[[Message], Message]:
    """The action as a function that returns a changed copy; raises ConfigurationError with the position."""
    parser = Parser(text)
    steps: list[tuple[Property, Value | None]] = []
    while parser.token.kind != "end":
        if parser.accept("SET"):
            wanted = _settable(parser)
            parser.expect("=")
            steps.append((wanted, parser.expression()))
        elif parser.accept("REMOVE"):
            steps.append((_settable(parser), None))
        else:
            raise parser.error("an action consists of SET property = value and REMOVE property")
        if parser.accept(";", ",") is None:
            break
    parser.expect_end()

    def act(message: Message) -> Message:
        for wanted, value in steps:
            message = _changed(
                message, wanted, None if value is None else value(MessageView(message)), remove=value is None
            )
        return message

    return act


def _settable(parser: Parser) -> Property:
    place = parser.token.place
    wanted = parser.property()
    if wanted.scope == "sys" and _SYSTEM.get(wanted.name.lower()) not in _SETTABLE:
        raise parser.error(f"sys.{wanted.name} cannot be changed by an action", place)
    return wanted


def _changed(message: Message, wanted: Property, value: Any, *, remove: bool) -> Message:
    if wanted.scope == "sys":
        system: dict[str, Any] = {_SYSTEM[wanted.name.lower()]: None if value is None else str(value)}
        return replace(message, **system)
    kept = {k: v for k, v in message.application_properties.items() if k.lower() != wanted.name.lower()}
    return replace(message, application_properties=kept if remove else {**kept, wanted.name: value})
