"""One table of docs/listener.md says where a ListenerConfig's words mean, or default to, something else elsewhere."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from homing import ListenerConfig, ReplayConfig
from homing.airflow import delivery_dag, listener_dag
from homing.pipeline import destination

_TEXT = (Path(__file__).parents[3] / "docs" / "listener.md").read_text(encoding="utf-8")
_TABLE = {
    cells[0].strip("`"): cells[1:]
    for line in _TEXT.partition("<!-- the same words")[2].partition("<!-- end of")[0].splitlines()
    if line.startswith("| `")
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}
_PLACES: list[tuple[int, Any]] = [(0, ListenerConfig), (0, listener_dag), (1, ReplayConfig), (2, delivery_dag)]


def default_of(place: Any, name: str) -> str:
    """As the table writes it."""
    parameter = inspect.signature(place).parameters.get(name)
    if parameter is None:
        return "`-`"
    return "to be named" if parameter.default is inspect.Parameter.empty else f"`{parameter.default!r}`"


def test_every_option_of_a_listener_has_a_row() -> None:
    assert list(_TABLE) == [field.name for field in fields(ListenerConfig)]


@pytest.mark.parametrize(("column", "place"), _PLACES, ids=lambda each: getattr(each, "__name__", str(each)))
def test_the_table_has_the_default_of_every_option_in_every_place(column: int, place: Any) -> None:
    written = {name: re.match(r"`[^`]+`|to be named", cells[column]) for name, cells in _TABLE.items()}
    assert {name: found and found[0] for name, found in written.items()} == {
        name: default_of(place, name) for name in _TABLE
    }


def test_a_destination_is_tried_once_unless_it_says_otherwise() -> None:
    defaults = inspect.signature(destination).parameters
    assert (defaults["max_retries"].default, defaults["retry_interval"].default) == (0, 1.0)
