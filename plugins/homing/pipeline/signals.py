"""What a handler raises to steer its chain. A signal is not a failure, so it is not in the error tree."""

from __future__ import annotations


class Drop(Exception):
    """`raise Drop("why")` in any handler: the message goes no further from here, and that is a success.

    In the source flow it ends the message, in a destination flow only this destination.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
