"""How a handler that takes many messages at once says which of them failed.

It returns nothing when all went well; or a list with one entry per message, in order, each the result or the exception
it failed with; or it raises PartialFailure. Anything else it raises says nothing about any single message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from homing.invocation.invalid_return import find_return_fault


class PartialFailure(Exception):
    """`raise PartialFailure({3: error})`: these messages of the batch failed, all others succeeded.

    Keys are positions in the batch, which are whole numbers of any library, or message ids. Values are exceptions or
    texts.
    """

    def __init__(self, failed: Mapping[int | str, BaseException | str]) -> None:
        super().__init__(f"{len(failed)} messages of the batch failed: {', '.join(map(str, failed))}")
        self.failed = dict(failed)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.failed,)


class BatchAnswerError(TypeError):
    """A handler of batches returned, or named as failed, what cannot be understood."""


@dataclass(frozen=True)
class Answer:
    """What a handler said about one message: a result, or the error it failed with."""

    result: Any = None
    error: BaseException | None = None

    @classmethod
    def of(cls, returned: Any) -> Answer:
        """What a handler said that returned this for a message."""
        fault = find_return_fault(returned)
        return cls(returned) if fault is None else cls(error=fault)


def read_returned(returned: Any, size: int) -> list[Answer]:
    """One answer per message; raises BatchAnswerError where `returned` is neither nothing nor a list of that size."""
    if returned is None:
        return [Answer()] * size
    if not isinstance(returned, (list, tuple)):
        raise BatchAnswerError(f"it returned a value of type {type(returned).__qualname__}; {_RULE}")
    if len(returned) != size:
        raise BatchAnswerError(f"it returned {len(returned)} results for {size} messages; {_RULE}")
    return [Answer.of(item) for item in returned]


def read_partial(failure: PartialFailure, ids: Sequence[str]) -> list[Answer]:
    """One answer per message; raises BatchAnswerError where it names a message that is not in the batch."""
    answers = [Answer()] * len(ids)
    for key, reason in failure.failed.items():
        named = _places_of(key, ids)
        if not named:
            raise BatchAnswerError(f"it named {key!r} as failed, which is not in the batch of {len(ids)} messages")
        for place in named:
            answers[place] = Answer(error=reason if isinstance(reason, BaseException) else RuntimeError(str(reason)))
    return answers


def _places_of(key: Any, ids: Sequence[str]) -> list[int]:
    # NumPy's and pandas' whole numbers are positions like others: taken for ids, they would blame another message.
    if not isinstance(key, bool) and isinstance(key, Integral):
        place = int(key)
        return [place] if 0 <= place < len(ids) else []
    # Two messages may have one id: then both are meant, because no more is known.
    return [place for place, message_id in enumerate(ids) if message_id == str(key)]


_RULE = "a handler of batches returns None, or a list with one result or exception per message"
