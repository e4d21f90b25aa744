"""Renders answers as a table, as JSON or as YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from homing.printable import printable

_WIDEST = 60


def render(answer: Sequence[Mapping[str, Any]] | Mapping[str, Any], output: str) -> str:
    """The answer as text; `output` is table, json or yaml. Times become ISO 8601, bytes become base64.

    Control characters from messages never reach the terminal: see `printable`. JSON escapes them itself.
    """
    plain = msgspec.to_builtins(answer)
    if output == "json":
        return json.dumps(plain, indent=2)
    if output == "yaml":
        import yaml

        return printable(str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)).rstrip(), keep="\n")
    return _properties(plain) if isinstance(plain, dict) else _table(plain)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "no results"
    names = list(rows[0])
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(names))]
    numbers = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in names]
    lines = [
        "  ".join(
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, numbers, strict=True)
        ).rstrip()
        for line in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _properties(answer: dict[str, Any]) -> str:
    width = max((len(name) for name in answer), default=0)
    parts = []
    for name, value in answer.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            parts.append(f"{name}\n{_table(value)}")
        else:
            parts.append(f"{name.ljust(width)}  {_cell(value, None)}")
    return "\n".join(parts)


def _cell(value: Any, widest: int | None = _WIDEST) -> str:
    """A value as one line."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = printable(" ".join(text.split()))
    return text if widest is None or len(text) <= widest else f"{text[: widest - 1]}…"
