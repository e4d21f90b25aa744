"""How content becomes the type a handler asks for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

from homing.binding import bind, describe_type
from homing.errors import BindingError, ConfigurationError


@dataclass
class Line:
    sku: str


@dataclass
class DataOrder:
    id: int
    lines: list[Line]
    at: datetime | None = None


class DictOrder(TypedDict):
    id: int
    lines: list[dict[str, str]]


class StructOrder(msgspec.Struct):
    id: int
    lines: list[Line]


class ModelLine(pydantic.BaseModel):
    sku: str


class ModelOrder(pydantic.BaseModel):
    id: int
    lines: list[ModelLine]


CONTENT = {"id": 7, "lines": [{"sku": "a"}]}


@pytest.mark.parametrize(
    ("annotation", "bound"),
    [
        (DataOrder, DataOrder(7, [Line("a")])),
        (DictOrder, CONTENT),
        (StructOrder, StructOrder(7, [Line("a")])),
        (ModelOrder, ModelOrder(id=7, lines=[ModelLine(sku="a")])),
        (dict[str, Any], CONTENT),
        (dict, CONTENT),
        (DataOrder | None, DataOrder(7, [Line("a")])),
    ],
)
def test_content_is_bound(annotation: Any, bound: Any) -> None:
    got = bind(annotation)(CONTENT)
    assert got == bound
    assert type(got) is type(bound)


@pytest.mark.parametrize("annotation", [DataOrder, DictOrder, StructOrder, ModelOrder])
@pytest.mark.parametrize("content", [{"id": "x", "lines": []}, {"lines": []}, [1], "text", None])
def test_content_that_does_not_fit_names_the_type(annotation: Any, content: Any) -> None:
    with pytest.raises(BindingError, match=f"does not fit {annotation.__name__}: "):
        bind(annotation)(content)


@pytest.mark.parametrize("annotation", [DataOrder, StructOrder, ModelOrder])
def test_content_that_does_not_fit_says_where_and_keeps_a_cause_that_does_not_quote(annotation: Any) -> None:
    with pytest.raises(BindingError, match=r"lines.*sku|lines\[0\]") as failure:
        bind(annotation)({"id": 7, "lines": [{}]})
    assert (failure.value.__cause__ is None) == (annotation is ModelOrder)


def test_reason_does_not_show_the_payload() -> None:
    for annotation in (DataOrder, ModelOrder):
        with pytest.raises(BindingError) as failure:
            bind(annotation)({"id": "secret", "lines": []})
        assert "secret" not in str(failure.value)


def test_models_inside_generics_are_bound() -> None:
    assert bind(list[ModelLine])([{"sku": "a"}]) == [ModelLine(sku="a")]
    with pytest.raises(BindingError, match=r"sku: Field required"):
        bind(list[ModelLine])([{}])


def test_text_that_looks_like_a_number_is_no_number() -> None:
    with pytest.raises(BindingError, match="does not fit int"):
        bind(int)("1")


def test_times_are_read_from_their_text() -> None:
    order = bind(DataOrder)({"id": 7, "lines": [], "at": "2026-12-01T02:00:00Z"})
    assert order.at == datetime(2026, 12, 1, 2, tzinfo=timezone.utc)


def test_text_is_not_taken_for_base64() -> None:
    assert bind(bytes)(b"abcd") == b"abcd"
    with pytest.raises(BindingError, match="does not fit bytes"):
        bind(bytes)("abcd")


def test_any_and_object_pass_content_on_as_it_is() -> None:
    for annotation in (Any, object):
        assert bind(annotation)(CONTENT) is CONTENT


def test_constraints_are_kept() -> None:
    positive = bind(Annotated[int, msgspec.Meta(gt=0)])
    assert positive(1) == 1
    with pytest.raises(BindingError):
        positive(0)


def test_annotation_that_cannot_be_hashed_is_bound_too() -> None:
    assert bind(Annotated[int, ["unhashable"]])(1) == 1


@pytest.mark.parametrize("annotation", [type("Custom", (), {}), str | bytes])
def test_type_no_content_can_become_is_refused_before_any_content(annotation: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot be bound to"):
        bind(annotation)


def test_types_are_named_as_people_write_them() -> None:
    assert describe_type(DataOrder) == "DataOrder"
    assert describe_type(dict[str, Any]) == "dict[str, Any]"
