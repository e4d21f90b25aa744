"""What the ledger is told of messages that a DataFrame handler left out; no Spark is needed to tell it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from homing.delivery import Batch, open_pipeline_stores
from homing.ledger import DROPPED, FAILED, PROCESSED, SOURCE_FLOW
from homing.pipeline import message_filter
from homing.spark.dataframe_flow import DataFrameFlow


@message_filter(dataframe=True)
def none(frame: Any) -> Any:
    return frame.limit(0)


def test_a_message_that_failed_before_and_is_left_out_now_is_dropped(tmp_path: Path) -> None:
    """The processors before the DataFrame handler have said that they processed it: that is not the flow's end."""
    with open_pipeline_stores(
        f"sqlite:///{tmp_path}/a.db?store=orders", f"sqlite:///{tmp_path}/a.db?store=dead"
    ) as stores:
        stores.store.store({"order": 1}, id="a")
        batch = Batch(stores, "run", ["crm"])
        batch.claim(10)
        fence = stores.ledger.open_step("run", "process", 60)
        (head,) = batch.messages()
        error = {"type": "Crash", "message": "died", "handler": "none", "stack": "", "attempt": 1}
        stores.ledger.record(fence, [head.entry(SOURCE_FLOW, FAILED, error=error)])
        stores.ledger.record(fence, [head.entry(SOURCE_FLOW, PROCESSED)])

        left = DataFrameFlow(None, stores.ledger, batch, fence)._account(SOURCE_FLOW, [none], [head], {}, DROPPED)  # type: ignore[arg-type]

        assert left == 1
        assert stores.ledger.known(["a"])[head.ref][SOURCE_FLOW].state == DROPPED
