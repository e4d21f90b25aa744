"""Whatever is written into the form of a replay, or sent past it: refused with a reason, or a selection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError
from hypothesis import example, given
from hypothesis import strategies as st

from homing.airflow.selecting import read_selection, replay_params
from homing.delivery import PipelineStores, open_pipeline_stores
from homing.delivery.failures import select
from homing.errors import HomingError
from tests.fuzz.profile import JSON_VALUES, TEXTS, examples

_NAMES = tuple(replay_params())
_PARAMS = st.dictionaries(
    st.sampled_from(_NAMES),
    JSON_VALUES | TEXTS | st.lists(TEXTS, max_size=3) | st.sampled_from(["PT5M", "P99999999999Y", "now", 0, -1, 2**64]),
    max_size=4,
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineStores]:
    database = f"sqlite:///{tmp_path_factory.mktemp('params')}/x.db"
    with open_pipeline_stores(f"{database}?store=orders", f"{database}?store=orders_dead") as opened:
        yield opened


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
    waiting = stores.store.store("waits")
    params = ParamsDict(replay_params())
    try:
        params.update(given_params)
        selected = select(stores, read_selection(params.validate()))
    except (HomingError, ParamValidationError):
        selected = []
    assert selected == []
    assert stores.store.present([waiting]) == {waiting}
    stores.store.settle(stores.store.claim(10))
