"""Describes an error so that people understand it later, on another machine."""

from __future__ import annotations

import errno
import os
import traceback
from pathlib import Path
from typing import Any

import homing.errors
from homing.connection import hide_secrets
from homing.errors import (
    CircuitOpenError,
    ConfigurationError,
    HandlersFailedError,
    LakeError,
    StoreError,
    WorkDirError,
    causes_of,
)
from homing.printable import Lines

_OWN_FRAMES = str(Path(homing.errors.__file__).parent)
_STACK_LIMIT = 8000
_CAUSES_SHOWN = 5
_TEXT_LIMIT = 4000
# Their texts are ours, and say nothing of what messages hold.
_OURS = (CircuitOpenError, ConfigurationError, LakeError, StoreError, WorkDirError)


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
        return hide_secrets(str(error))
    except (Exception, SystemExit, GeneratorExit) as broken:  # noqa: BLE001 - an author's __str__ may do anything
        return f"(its text could not be made: {type(broken).__qualname__})"


def sign_of(error: BaseException) -> str:
    """What a log may say of an error: its type, and where it was raised. Never an error itself.

    Not its text, nor that of what caused it: it may contain a message's content. The text is in
    the failure record, where contents are. Errors of stores and the like, which are ours, are told in full, and of an
    error of the system its number, in the system's words.
    """
    if isinstance(error, _OURS):
        return f"{type(error).__qualname__}: {text_of(error)}"
    return "; ".join(dict.fromkeys(f"{_kind_of(cause)}{_place_of(cause)}" for cause in causes_of(error)))


def frames_of(error: BaseException) -> Lines:
    """Where an error came from, and through what: the stack of it and of its causes, with types and without texts."""
    seen: list[str] = []
    current: BaseException | None = error
    while current is not None and len(seen) < _CAUSES_SHOWN:
        seen.append("".join(traceback.format_tb(current.__traceback__)) + _kind_of(current))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return Lines("\nwhich came of\n".join(seen))


def _place_of(error: BaseException) -> str:
    """The line that raised it: an author's, if there is one on the way."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_OWN_FRAMES)]
    return "".join(f" at {frame.filename}:{frame.lineno}" for frame in (theirs or frames)[-1:])


def _type_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _kind_of(error: BaseException) -> str:
    """Its type, and of an error of the system what its number means: a full disk must not look like any other fault."""
    number = error.errno if isinstance(error, OSError) else None
    known = isinstance(number, int) and number in errno.errorcode
    return f"{_type_of(error)} ({os.strerror(number)})" if known else _type_of(error)  # type: ignore[arg-type]


def _stack_of(error: BaseException) -> str:
    try:
        trace = traceback.TracebackException.from_exception(error, compact=True)
        _leave_out_own_frames(trace)
        stack = hide_secrets("".join(trace.format()))
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
