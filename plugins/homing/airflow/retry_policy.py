"""The messages' retry policy as that of their tasks, counted from the last clear."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import RetryDecision
from airflow.sdk import RetryPolicy as AirflowRetryPolicy

from homing.retry import RetryPolicy

#: The tasks' own retries, where they wait for a database, for Spark or for Airflow, and for no message to be mended:
#: they go on for five minutes and more.
OUTAGE = RetryPolicy.exponential(5, 10.0, max_interval=160.0)


class TaskRetryPolicy(AirflowRetryPolicy):
    """Says how long to wait before a task's next try.

    Airflow's own growing delays count every try there ever was: after a clear, the first retry would come as late as
    the last one before it. How many tries there are is Airflow's to count, and that it does from the clear.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Any = None) -> RetryDecision:
        before = 0 if context is None else max_tries - context["task"].retries
        attempt = max(1, try_number - before)
        key = "" if context is None else context["run_id"]
        return RetryDecision.retry(timedelta(seconds=self._policy.delay(attempt, key=key)), reason=f"attempt {attempt}")

    def serialize(self) -> dict[str, Any]:
        about = {name: getattr(self._policy, name) for name in ("interval", "multiplier", "max_interval", "jitter")}
        return {"__type": f"{type(self).__module__}.{type(self).__qualname__}", **about}
