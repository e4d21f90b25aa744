"""Progress: how a service says that it got part of the way."""

from __future__ import annotations

from functools import partial
from typing import Any


class Progress(Exception):
    """Raised by a service, from the error that stopped it: the attempt failed, but not all of it has to be done again.

    `content` takes the place of the message's content: the next attempt starts from it, and it is what the dead-letter
    store gets in the end. With `durable`, the listener stores it before it tries again, under `id` if there is one: a
    crash must not undo it. `content_type` says that it is a failure record.
    """

    def __init__(
        self, content: Any, durable: bool = True, *, content_type: str | None = None, id: str | None = None
    ) -> None:
        super().__init__("part of the work is done")
        self.content = content
        self.durable = durable
        self.content_type = content_type
        self.id = id

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), content_type=self.content_type, id=self.id), (self.content, self.durable)
