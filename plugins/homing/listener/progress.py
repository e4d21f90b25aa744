"""Progress: how a service says that it got part of the way."""

from __future__ import annotations

from typing import Any


class Progress(Exception):
    """Raised by a service, from the error that stopped it: the attempt failed, but not all of it has to be done again.

    `content` takes the place of the message's content: the next attempt starts from it, and it is what the dead-letter
    store gets in the end. The listener makes it durable before it tries again.
    """

    def __init__(self, content: Any) -> None:
        super().__init__("part of the work is done")
        self.content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.content,)
