"""The token of a lease: unique, and it says when it was taken."""

from __future__ import annotations

from homing.ids import random_hex


def new_token(now: int) -> str:
    return f"{token_from(now)}-{random_hex(18)}"


def token_from(time: int) -> str:
    """What the tokens of this time begin with; those of a later time are greater, as texts."""
    return f"{time:016x}"


def claimed_at(token: str) -> int:
    return int(token.partition("-")[0], 16)
