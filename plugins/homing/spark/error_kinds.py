"""Tells from the text of a Spark error what is to blame: a worker's crash, an outage, or a handler or message."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from homing.errors import HandlerError, HomingError

# The Python process of a task is gone, or the executor with it.
_CRASHED = re.compile("Python worker exited unexpectedly|ExecutorLostFailure")
# A Spark Connect server went away under its client, which has tried for minutes to reach it again.
_SERVER_GONE = re.compile(r"StatusCode\.UNAVAILABLE")
# A store, a lease or Spark itself: no handler and no message. Ours as a traceback says what was raised; Spark in its
# own words to the letter, for an author may also say that something was cancelled.
_OUTAGES = re.compile(
    r"^homing\.errors\.(LeaseLostError|StoreUnavailableError)\b"
    r"|\[SPARK_JOB_CANCELLED\]|\[OPERATION_CANCELED\]|cancelled because SparkContext was shut down",
    re.MULTILINE,
)
# What an expression could not do with a value. Spark quotes the value, and that may say anything of the above.
_ABOUT_VALUES = re.compile(r"\bSQLSTATE: (22|P0)")


def is_crash(error: BaseException) -> bool:
    """Whether a worker died. A message may be to blame."""
    return not isinstance(error, HomingError) and _says(error, _CRASHED)


def is_death(error: BaseException) -> bool:
    """Whether a process died, which may be Spark's own. Any other exception comes from a living process.

    Cleaning up after a death raises other errors: then the death is among their causes.
    """
    return any(_tells_of_death(each) for each in _with_origins(error))


def _tells_of_death(error: BaseException) -> bool:
    return _is_cut_off(error) or is_crash(error) or _says(error, _SERVER_GONE)


def _is_cut_off(error: BaseException) -> bool:
    """Whether the way to Spark's own process is broken."""
    py4j = sys.modules.get("py4j.protocol")  # a small batch needs no Spark, and has no such errors
    return py4j is not None and isinstance(error, py4j.Py4JError) and not isinstance(error, py4j.Py4JJavaError)


def _with_origins(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def is_outage(error: BaseException) -> bool:
    """Whether it is known that no message is to blame."""
    if isinstance(error, HomingError):
        return not isinstance(error, HandlerError)
    return _says(error, _OUTAGES)


def _says(error: BaseException, signs: re.Pattern[str]) -> bool:
    text = str(error)
    return signs.search(text) is not None and not _ABOUT_VALUES.search(text)


def is_fault(error: BaseException) -> bool:
    """Whether a handler or a message may be to blame."""
    return not _is_cut_off(error) and not is_outage(error)
