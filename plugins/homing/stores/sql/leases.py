"""The token of a lease: unique, and it says when it was taken."""

from __future__ import annotations

import secrets


def new_token(now: int) -> str:
    return f"{token_from(now)}-{secrets.token_hex(9)}"


def token_from(time: int) -> str:
    """What the tokens of this time begin with; those of a later time are greater, as texts."""
    return f"{time:016x}"


def claimed_at(token: str) -> int:
    return int(token.partition("-")[0], 16)
