"""Whatever is written into the form of a replay, or sent past it: refused with a reason, or a selection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError
from hypothesis import example, given
from hypothesis import strategies as st

from homing.airflow.operators.select import read_selection, replay_params
from homing.delivery import PipelineStores, open_pipeline_stores
from homing.delivery.failures import select
from homing.errors import HomingError
from tests.fuzz.profile import JSON_VALUES, TEXTS, examples
from tests.fuzz.shop import fill, still_there

_NAMES = tuple(replay_params())
_PARAMS = st.dictionaries(
    st.sampled_from(_NAMES),
    JSON_VALUES | TEXTS | st.lists(TEXTS, max_size=3) | st.sampled_from(
        ["PT5M", "P99999999999Y", "now", 0, -1, 2**64, "crm", "crm: E", ["failed 1", "waits 1"], ["dead 1"]]
    ),
    max_size=4,
)  # fmt: skip
#: What there is to select.
_FAILED = {"failed 1", "dead 1"}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineStores]:
    database = f"sqlite:///{tmp_path_factory.mktemp('params')}/x.db"
    with open_pipeline_stores(f"{database}?store=orders", f"{database}?store=orders_dead") as opened:
        fill(opened, "1")
        yield opened


def selected_by(stores: PipelineStores, given_params: Any) -> set[str]:
    params = ParamsDict(replay_params())
    params.update(given_params)
    return {failure.message_id for failure in select(stores, read_selection(params.validate()))}


@examples(150)
@given(_PARAMS)
@example({"ids": ["\0", "\ud800"]})
@example({"batch": "\ud800"})
@example({"ids": ["x"], "limit": 2**64})
@example({"since": "P99999999999Y"})
@example({"since": "now", "until": "PT5M"})
@example({"since": "now", "rate": 1e-320})
@example({"batch": "b", "rate": 1e-320})
def test_params_are_refused_with_a_reason_or_select_something(stores: PipelineStores, given_params: Any) -> None:
    selected, refusal = set[str](), None
    try:
        selected = selected_by(stores, given_params)
    except (HomingError, ParamValidationError) as error:
        refusal = str(error)
    assert refusal != ""
    assert selected <= _FAILED
    assert not selected or selected <= set(given_params.get("ids") or _FAILED)
    assert still_there(stores, {"waits 1", *_FAILED}) == {"waits 1", *_FAILED}


@pytest.mark.parametrize(
    ("params", "selected"),
    [
        ({"ids": ["failed 1", "waits 1", "finished 1", "\0"]}, {"failed 1"}),
        ({"error_group": "crm: E"}, _FAILED),
        ({"destination": "crm", "since": "P1D"}, _FAILED),
        ({"destination": "lake"}, set()),
        ({"destination": "crm", "until": "P1D"}, set()),
    ],
)
def test_params_select_what_failed(stores: PipelineStores, params: Any, selected: set[str]) -> None:
    assert selected_by(stores, params) == selected
