"""Ids: of messages that come without one, of leases, owners and tables."""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Iterator
from itertools import count

# Of its own, so that an author who seeds `random` does not make two messages the same. uuid.uuid4 would ask the
# operating system each time, and let go of the interpreter for it, which costs more than all the rest of a small chain.
_random = random.Random()  # noqa: S311 - it has to be unique, not secret


def start_over() -> None:
    """In a forked process, which is to make other ids than its parent and its siblings do."""
    _random.seed()


def new_id() -> str:
    """An id no other message has, in the form of a UUID."""
    bits = _random.getrandbits(128) & ~(0xF << 76) & ~(0x3 << 62) | (0x4 << 76) | (0x2 << 62)
    digits = f"{bits:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def ordered_ids() -> Iterator[str]:
    """Ids that rise with time: those of messages in a database, so that the index on them grows at one end."""
    prefix = f"{time.time_ns():016x}-{random_hex(12)}"
    return (f"{prefix}{number:04x}" for number in count())


def random_hex(digits: int) -> str:
    """So many random hexadecimal digits."""
    return f"{_random.getrandbits(4 * digits):0{digits}x}"


def secret_hex(digits: int) -> str:
    """So many random hexadecimal digits that cannot be computed from others. `digits` is even."""
    return secrets.token_hex(digits // 2)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=start_over)
