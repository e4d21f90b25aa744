"""Tells what ends a task from what fails a message: both surface as an exception in the handler that runs just then."""

from __future__ import annotations

import signal
import threading
from functools import partial
from types import CodeType
from typing import Any


def is_user_interrupt(error: BaseException) -> bool:
    """Whether this was raised by a person at the keyboard or by a signal handler, such as that of Airflow's
    `execution_timeout`: then the process that runs the handler is to end, and no message has failed.

    A handler's own signal handlers, set only while it runs, do not count. Signals are handled in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    cause: BaseException | None = error
    seen = set[int]()
    while cause is not None and id(cause) not in seen:  # `raise error from error` makes it its own cause
        if isinstance(cause, KeyboardInterrupt) or _ran_through(cause, codes):
            return True
        seen.add(id(cause))
        cause = cause.__cause__
    return False


def _ran_through(error: BaseException, codes: set[CodeType | None]) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    function = handler.func if isinstance(handler, partial) else handler
    for each in (function, getattr(function, "__call__", None)):  # noqa: B004 - an object that is called has its code there
        code = getattr(each, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None
