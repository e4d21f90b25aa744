"""Who is to blame, by the text of a Spark error."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError

from homing.errors import HandlerError, LakeError
from homing.spark.error_kinds import is_crash, is_death, is_fault, is_outage


@pytest.mark.parametrize(
    "text",
    [
        "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 3 cancelled as part of cancellation of all jobs",
        "Job 3 cancelled because SparkContext was shut down",
        "[OPERATION_CANCELED] Operation has been canceled.",
        "homing.errors.LeaseLostError: step process of run x was taken over",
    ],
)
def test_what_spark_or_a_store_says_blames_no_message(text: str) -> None:
    assert is_outage(RuntimeError(text))
    assert not is_fault(RuntimeError(text))


@pytest.mark.parametrize(
    "quoted",
    [
        "homing.errors.LeaseLostError: x",
        "\nhoming.errors.StoreUnavailableError: x",
        "[SPARK_JOB_CANCELLED]",
        "Python worker exited unexpectedly",
        "StatusCode.UNAVAILABLE",
    ],
)
@pytest.mark.parametrize("state", ["22018", "22012", "P0001"])
def test_a_value_that_spark_quotes_is_a_fault_of_its_message_whatever_it_says(quoted: str, state: str) -> None:
    error = RuntimeError(f"[CAST_INVALID_INPUT] The value '{quoted}' cannot be cast. SQLSTATE: {state}")

    assert is_fault(error)
    assert not is_crash(error)
    assert not is_death(error)


def test_an_authors_error_may_speak_of_ours() -> None:
    assert is_fault(RuntimeError("ValueError: no order is called homing.errors.StoreUnavailableError"))


@pytest.mark.parametrize("text", ["ValueError: order was cancelled", "the shop is shut down", "Job 3 cancelled"])
def test_an_authors_error_is_his_whatever_it_says(text: str) -> None:
    assert is_fault(RuntimeError(text))


def test_errors_of_ours_are_outages_but_for_a_handlers() -> None:
    assert is_outage(LakeError("the lake is away"))
    assert is_fault(HandlerError("it failed"))


def test_a_death_is_known_by_whoever_tidies_up_after_it() -> None:
    def tidy_up() -> None:
        try:
            raise Py4JNetworkError("Answer from Java side is empty")
        finally:
            raise ConnectionRefusedError("Connection refused")

    with pytest.raises(ConnectionRefusedError) as caught:
        tidy_up()

    assert is_death(caught.value)
    assert not is_death(ConnectionRefusedError("the work directory's server is away"))
