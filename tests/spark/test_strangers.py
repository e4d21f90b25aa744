"""What a message says, and Spark quotes, is no word of Spark's own."""

from __future__ import annotations

import pytest

from tests.spark.conftest import Numbers


@pytest.mark.parametrize(
    "said",
    ["StoreUnavailableError", "homing.errors.LeaseLostError: x", "[SPARK_JOB_CANCELLED]", "ExecutorLostFailure"],
)
def test_a_message_that_speaks_like_an_outage_or_a_crash_is_found_and_the_rest_goes_on(
    natively: Numbers, said: str
) -> None:
    """Spark's errors quote values: this one cannot be cast to a number."""
    batch = natively.claim("run", {"n": 0, "amount": "1"}, {"n": 2, "amount": said}, {"n": 4, "amount": "1"})

    natively.run_all(batch)

    settlement = batch.settle()
    assert (settlement.acknowledged, settlement.failed) == (2, 1)
