"""The language of SQL filters and actions: an expression over the properties of a message.

    expression  :=  and ("OR" and)*
    and         :=  not ("AND" not)*
    not         :=  "NOT" not | test
    test        :=  sum [comparison sum | "IS" ["NOT"] "NULL" | ["NOT"] "LIKE" sum ["ESCAPE" text]
                         | ["NOT"] "IN" "(" sum ("," sum)* ")"]
    sum         :=  product (("+" | "-") product)*
    product     :=  atom (("*" | "/" | "%") atom)*
    atom        :=  number | 'text' | TRUE | FALSE | NULL | property | "-" atom | "(" expression ")"
                    | "EXISTS" "(" property ")" | "PROPERTY" "(" 'name' ")"
    property    :=  ["sys." | "user."] (name | [quoted name] | "quoted name")

As in SQL, a test has three results: it is unknown for a property that is missing or of another type.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from homing.errors import ConfigurationError

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>\[[^\]]+\]|"(?:[^"]|"")+")
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<sign><>|!=|<=|>=|[=<>+\-*/%(),.;])
    )""",
    re.VERBOSE,
)
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<>": operator.ne, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
_MAX_LENGTH = 1024  # characters, as at the service
_MAX_DEPTH = 32


class Properties(Protocol):
    """The properties of a message as an expression reads them; names ignore case, None means "missing"."""

    def get(self, scope: str, name: str) -> Any: ...


Value = Callable[[Properties], Any]


@dataclass(frozen=True)
class Property:
    """A name in an expression; `scope` is "sys" or "user"."""

    scope: str
    name: str

    def __call__(self, properties: Properties) -> Any:
        return properties.get(self.scope, self.name)


class Token(NamedTuple):
    kind: str
    text: str
    place: int

    def says(self, *texts: str) -> bool:
        return self.kind in ("word", "sign") and self.text.upper() in texts


@lru_cache(maxsize=1024)
def compile_expression(text: str) -> Value:
    """The expression as a function of a message's properties; raises ConfigurationError with the position."""
    parser = Parser(text)
    value = parser.expression()
    parser.expect_end()
    return value


class Parser:
    """Parses one text from left to right; each method parses one rule of the grammar."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or not text.strip():
            raise ConfigurationError(f"invalid SQL filter or action {text!r:.60}: give a text such as colour = 'red'")
        if len(text) > _MAX_LENGTH:
            raise ConfigurationError(
                f"a SQL filter or action must have at most {_MAX_LENGTH} characters, got {len(text)}"
            )
        self._text = text
        self._tokens = list(self._read())
        self._next = 0
        self._depth = 0

    # -- tokens ------------------------------------------------------------------------------------------------

    def _read(self) -> list[Token]:
        tokens, place = [], 0
        while place < len(self._text.rstrip()):
            found = _TOKEN.match(self._text, place)
            if found is None:
                raise self.error("unexpected character", place)
            kind = found.lastgroup or ""
            tokens.append(Token(kind, found.group(kind), found.start(kind)))
            place = found.end()
        return [*tokens, Token("end", "", len(self._text))]

    @property
    def token(self) -> Token:
        return self._tokens[self._next]

    def take(self) -> Token:
        token = self.token
        self._next += token.kind != "end"
        return token

    def accept(self, *texts: str) -> Token | None:
        return self.take() if self.token.says(*texts) else None

    def expect(self, text: str) -> None:
        if self.accept(text) is None:
            raise self.error(f"expected {text}")

    def expect_end(self) -> None:
        if self.token.kind != "end":
            raise self.error("unexpected text after the end of the expression")

    def error(self, what: str, place: int | None = None) -> ConfigurationError:
        place = self.token.place if place is None else place
        rest = self._text[place : place + 20] or "the end"
        return ConfigurationError(f"in the SQL {self._text!r}, at character {place + 1} ({rest}): {what}")

    # -- the grammar -------------------------------------------------------------------------------------------

    def expression(self) -> Value:
        self._deeper()
        value = self._and()
        while self.accept("OR"):
            value = _joined(value, self._and(), decisive=True)
        self._depth -= 1
        return value

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self.error(f"more than {_MAX_DEPTH} parentheses, signs or negations inside each other")

    def _and(self) -> Value:
        value = self._not()
        while self.accept("AND"):
            value = _joined(value, self._not(), decisive=False)
        return value

    def _not(self) -> Value:
        if self.accept("NOT"):
            self._deeper()
            value = _opposite(self._not())
            self._depth -= 1
            return value
        return self._test()

    def _test(self) -> Value:
        left = self._sum()
        if sign := self.accept(*_COMPARISONS):
            return _comparison(sign.text, left, self._sum())
        if self.accept("IS"):
            negated = self.accept("NOT")
            self.expect("NULL")
            return lambda properties: (left(properties) is None) != bool(negated)
        negated = self.accept("NOT")
        if self.accept("LIKE"):
            test = self._like(left)
        elif self.accept("IN"):
            test = self._in(left)
        elif negated:
            raise self.error("expected LIKE or IN after NOT")
        else:
            return left
        return _opposite(test) if negated else test

    def _like(self, left: Value) -> Value:
        pattern, escape = self._sum(), ""
        if self.accept("ESCAPE"):
            token = self.take()
            escape = _unquoted(token.text)
            if token.kind != "text" or len(escape) != 1:
                raise self.error("ESCAPE takes one character in quotes", token.place)

        def test(properties: Properties) -> bool | None:
            value, wanted = left(properties), pattern(properties)
            if not isinstance(value, str) or not isinstance(wanted, str):
                return None
            return _like_pattern(wanted, escape).fullmatch(value) is not None

        return test

    def _in(self, left: Value) -> Value:
        self.expect("(")
        tests = [_comparison("=", left, self._sum())]
        while self.accept(","):
            tests.append(_comparison("=", left, self._sum()))
        self.expect(")")
        found = tests[0]
        for test in tests[1:]:
            found = _joined(found, test, decisive=True)
        return found

    def _sum(self) -> Value:
        value = self._product()
        while sign := self.accept("+", "-"):
            value = _arithmetic(sign.text, value, self._product())
        return value

    def _product(self) -> Value:
        value = self._atom()
        while sign := self.accept("*", "/", "%"):
            value = _arithmetic(sign.text, value, self._atom())
        return value

    def _atom(self) -> Value:
        token = self.token
        if token.kind == "number":
            self.take()
            number = int(token.text) if token.text.isdigit() else float(token.text)
            return lambda _: number
        if token.kind == "text":
            self.take()
            text = _unquoted(token.text)
            return lambda _: text
        if self.accept("-"):
            self._deeper()
            negated = _arithmetic("-", lambda _: 0, self._atom())
            self._depth -= 1
            return negated
        if self.accept("("):
            value = self.expression()
            self.expect(")")
            return value
        if word := self.accept("TRUE", "FALSE", "NULL"):
            constant = {"TRUE": True, "FALSE": False, "NULL": None}[word.text.upper()]
            return lambda _: constant
        if self.accept("EXISTS"):
            self.expect("(")
            wanted = self.property()
            self.expect(")")
            return lambda properties: wanted(properties) is not None
        if self.token.says("PROPERTY", "P") and self._tokens[self._next + 1].says("("):
            return self._property_call()
        return self.property()

    def _property_call(self) -> Property:
        self.take()
        self.expect("(")
        name = self.take()
        if name.kind != "text":
            raise self.error("expected a name in single quotes", name.place)
        self.expect(")")
        return Property("user", _unquoted(name.text))

    def property(self) -> Property:
        """A property of the sender's, unless sys. stands before it."""
        scope, token = "user", self.take()
        if token.kind == "word" and token.text.lower() in ("sys", "user") and self.accept("."):
            scope, token = token.text.lower(), self.take()
        if token.kind == "quoted":
            inner = token.text[1:-1]
            return Property(scope, inner if token.text[0] == "[" else inner.replace('""', '"'))
        if token.kind != "word":
            raise self.error("expected a value or the name of a property", token.place)
        return Property(scope, token.text)


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


@lru_cache(maxsize=1024)
def _like_pattern(pattern: str, escape: str) -> re.Pattern[str]:
    parts, characters = [], iter(pattern)
    for character in characters:
        if escape and character == escape:
            parts.append(re.escape(next(characters, "")))
        else:
            parts.append({"%": ".*", "_": "."}.get(character, re.escape(character)))
    return re.compile("".join(parts), re.DOTALL)


# -- what the operators mean --------------------------------------------------------------------------------------


def _truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _joined(left: Value, right: Value, *, decisive: bool) -> Value:
    """AND, which one side that is false decides; or OR, which one that is true decides."""

    def test(properties: Properties) -> bool | None:
        first = _truth(left(properties))
        if first is decisive:
            return first
        second = _truth(right(properties))
        return second if second is decisive or first is not None else None

    return test


def _opposite(value: Value) -> Value:
    def test(properties: Properties) -> bool | None:
        truth = _truth(value(properties))
        return None if truth is None else not truth

    return test


def _comparison(sign: str, left: Value, right: Value) -> Value:
    compare = _COMPARISONS[sign]

    def test(properties: Properties) -> bool | None:
        first, second = left(properties), right(properties)
        return compare(first, second) if _comparable(first, second) else None

    return test


def _comparable(first: Any, second: Any) -> bool:
    if first is None or second is None:
        return False
    if isinstance(first, bool) or isinstance(second, bool):
        return isinstance(first, bool) and isinstance(second, bool)
    if isinstance(first, (int, float)):
        return isinstance(second, (int, float))
    return type(first) is type(second)


def _arithmetic(sign: str, left: Value, right: Value) -> Value:
    def value(properties: Properties) -> Any:
        first, second = left(properties), right(properties)
        if isinstance(first, str) and isinstance(second, str) and sign == "+":
            return first + second
        if not (_is_number(first) and _is_number(second)):
            return None
        return _calculate(sign, first, second)

    return value


def _calculate(sign: str, first: Any, second: Any) -> Any:
    whole = isinstance(first, int) and isinstance(second, int)
    if sign in ("/", "%") and second == 0:
        return None
    if sign == "/":
        return int(first / second) if whole else first / second
    if sign == "%":
        return first - second * int(first / second)
    return {"+": operator.add, "-": operator.sub, "*": operator.mul}[sign](first, second)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
