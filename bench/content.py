"""What the messages of the benchmark hold. Needs nothing but Python: the peers' environment imports it too."""

from __future__ import annotations

import random
from typing import Any

_RANDOM = random.Random(7)  # noqa: S311 - payloads, not secrets


def payload() -> dict[str, Any]:
    """A JSON object of about 1 KiB."""
    return {"customer": "c-1042", "amount": 12.5, "paid": True, "blob": _RANDOM.randbytes(448).hex()}


def payloads(count: int) -> list[dict[str, Any]]:
    return [payload() for _ in range(count)]
