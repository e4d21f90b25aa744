"""Filters and actions of the test server, judged by SQLite: nothing of the embedded bus's own reading is in here.

An expression becomes a SELECT over the properties it names, so that precedence, arithmetic, LIKE and the three values
of truth are another's. To SQLite a boolean is a number, and + adds numbers only.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.servicebus.letters import Letter

RULE_NAME = "RuleName"
#: What sys. names, in lower case, and the property of AMQP it is.
SYSTEM = {"messageid": "message_id", "to": "to", "label": "label", "replyto": "reply_to",
          "correlationid": "correlation_id", "contenttype": "content_type", "sessionid": "session_id",
          "replytosessionid": "reply_to_session_id"}  # fmt: skip
_WORDS = {"and", "or", "not", "is", "null", "like", "escape", "in", "true", "false"}
_NAME = r"""(?:(?:sys|user)\s*\.\s*)?(?:[a-z_]\w*|\[[^\]]+\]|"(?:[^"]|"")+")"""
_PART = re.compile(
    rf"""(?P<text>'(?:[^']|'')*')
    | exists \s* \( \s* (?P<exists>{_NAME}) \s* \)
    | property \s* \( \s* '(?P<called>(?:[^']|'')*)' \s* \)
    | (?P<name>{_NAME})""",
    re.IGNORECASE | re.VERBOSE,
)
_STEP = re.compile(
    rf"""\s*(?: set \s+ (?P<set>{_NAME}) \s* = (?P<value>(?:'(?:[^']|'')*'|[^;',]|,(?!\s*(?:set|remove)\b))+)
    | remove \s+ (?P<remove>{_NAME}) ) \s* (?:[;,]|$)""",
    re.IGNORECASE | re.VERBOSE,
)

Filter = Callable[[Letter], bool]


def everything(_letter: Letter) -> bool:
    return True


def nothing(_letter: Letter) -> bool:
    return False


@dataclass(frozen=True)
class SqlFilter:
    expression: str

    def __call__(self, letter: Letter) -> bool:
        return bool(evaluate(self.expression, letter) == 1)


@dataclass(frozen=True)
class CorrelationFilter:
    fields: dict[str, str]
    properties: dict[str, Any]

    def __call__(self, letter: Letter) -> bool:
        asked = [(letter.properties.get(name), value) for name, value in self.fields.items()]
        asked += [(letter.application.get(name), value) for name, value in self.properties.items()]
        return all(type(theirs) is type(value) and theirs == value for theirs, value in asked)


@dataclass(frozen=True)
class Rule:
    name: str
    filter: Filter = field(default=everything)
    action: str | None = None


def copies(rules: Iterable[Rule], letter: Letter) -> list[Letter]:
    """One by all matching rules without an action together, and one by each with one."""
    matching = [rule for rule in rules if rule.filter(letter)]
    plain = [letter] if any(rule.action is None for rule in matching) else []
    return plain + [_acted(rule, letter) for rule in matching if rule.action is not None]


def evaluate(expression: str, letter: Letter) -> Any:
    """What SQLite makes of it; None is unknown. Raises sqlite3.Error for what it cannot read."""
    asked: dict[str, Any] = {}

    def column(name: str) -> str:
        scope, own = _parts(name)
        asked[f"{scope} {own}"] = _value(letter, scope, own)
        return '"{}"'.format(f"{scope} {own}".replace('"', '""'))

    def part(found: re.Match[str]) -> str:
        if found["text"] is not None:
            return found["text"]
        if found["exists"] is not None:
            return f"({column(found['exists'])} is not null)"
        if found["called"] is not None:
            return column(f"[{found['called']}]")
        return found["name"] if found["name"].lower() in _WORDS else column(found["name"])

    sql = _PART.sub(part, expression)
    columns = ", ".join('? as "{}"'.format(name.replace('"', '""')) for name in asked) or "1"
    database = sqlite3.connect(":memory:")
    try:
        database.execute("pragma case_sensitive_like = on")
        return database.execute(f"select ({sql}) from (select {columns})", [*asked.values()]).fetchone()[0]  # noqa: S608
    finally:
        database.close()


def _parts(name: str) -> tuple[str, str]:
    """Scope and bare name, both in lower case."""
    found = re.fullmatch(r"(?:(sys|user)\s*\.\s*)?(.*)", name, re.IGNORECASE | re.DOTALL)
    assert found is not None
    own = found[2][1:-1].replace('""', '"') if found[2][0] in '["' else found[2]
    return (found[1] or "user").lower(), own.lower()


def _value(letter: Letter, scope: str, name: str) -> Any:
    if scope == "sys":
        return letter.properties.get(SYSTEM[name])
    return next((value for key, value in letter.application.items() if str(key).lower() == name), None)


def _acted(rule: Rule, letter: Letter) -> Letter:
    place, text = 0, str(rule.action).strip()
    while place < len(text):
        step = _STEP.match(text, place)
        if step is None:
            raise ValueError(f"this is no action: {text[place:]!r}")
        place = step.end()
        value = None if step["remove"] is not None else evaluate(step["value"], letter)
        letter = _changed(letter, step["set"] or step["remove"], value, remove=step["remove"] is not None)
    return replace(letter, application={**letter.application, RULE_NAME: rule.name})


def _changed(letter: Letter, name: str, value: Any, *, remove: bool) -> Letter:
    scope, own = _parts(name)
    if scope == "sys":
        return replace(letter, properties={**letter.properties, SYSTEM[own]: value})
    kept = {key: theirs for key, theirs in letter.application.items() if str(key).lower() != own}
    bare = re.sub(r"^user\s*\.\s*", "", name, flags=re.IGNORECASE).strip('[]"')
    return replace(letter, application=kept if remove else {**kept, bare: value})
