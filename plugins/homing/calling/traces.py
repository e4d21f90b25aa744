"""Describes an error so that people understand it later, on another machine."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import homing.errors
from homing.errors import HandlersFailedError, causes_of

_OWN_FRAMES = str(Path(homing.errors.__file__).parent)
_STACK_LIMIT = 8000
_TEXT_LIMIT = 4000


def describe(error: BaseException, handler: str, attempts: int) -> dict[str, Any]:
    """An error as a JSON object: type, message, stack, handler and attempt. Never an error itself.

    Of an error that only reports what handlers raised, that is described, and they take the place of `handler`. The
    stack leaves out Homing's own frames and keeps its newest part.
    """
    causes = causes_of(error)
    reported = error.errors if isinstance(error, HandlersFailedError) else ()
    text = text_of(error if reported else causes[0])
    return {
        "type": "; ".join(dict.fromkeys(_type_of(cause) for cause in causes)),
        "message": _printable(text[:_TEXT_LIMIT]),
        "stack": _printable(_newest("\n".join(_stack_of(cause) for cause in causes))),
        "handler": ", ".join(failed.handler for failed in reported) or handler,
        "attempt": attempts,
    }


def text_of(error: BaseException) -> str:
    """What an error says; never an error itself."""
    try:
        return str(error)
    except (Exception, SystemExit, GeneratorExit) as broken:  # noqa: BLE001 - an author's __str__ may do anything
        return f"(its text could not be made: {type(broken).__qualname__})"


def _type_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _stack_of(error: BaseException) -> str:
    try:
        trace = traceback.TracebackException.from_exception(error, compact=True)
        _leave_out_own_frames(trace)
        stack = "".join(trace.format())
    except (Exception, SystemExit, GeneratorExit) as broken:  # noqa: BLE001 - a stack is a comfort, and not needed
        stack = f"(the stack could not be formatted: {type(broken).__qualname__})"
    return _newest(stack)


def _newest(stack: str) -> str:
    return stack if len(stack) <= _STACK_LIMIT else f"...\n{stack[-_STACK_LIMIT:]}"


def _leave_out_own_frames(trace: traceback.TracebackException | None) -> None:
    while trace is not None:
        trace.stack[:] = [frame for frame in trace.stack if not frame.filename.startswith(_OWN_FRAMES)]
        trace = trace.__cause__ or trace.__context__


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
