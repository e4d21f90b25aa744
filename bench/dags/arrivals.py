"""What is done with each message, in our pipeline and in Celery's tasks alike, and how arrivals are counted.

Needs nothing but Python: Airflow, Spark and the peers' environment import it.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

DESTINATIONS = ("crm", "lake")


def price(order: dict[str, Any]) -> dict[str, Any]:
    return {**order, "total": order["amount"] * 1.19}


def arrive(destination: str, order: dict[str, Any]) -> None:
    """One byte more in the destination's file; such an append is whole, whoever else appends."""
    assert order["total"] > order["amount"]
    os.write(_opened(destination), b".")


def arrived(folder: Path, destination: str) -> int:
    """How many messages the destination got so far."""
    try:
        return (folder / destination).stat().st_size
    except FileNotFoundError:
        return 0


@lru_cache
def _opened(destination: str) -> int:
    path = Path(os.environ["BENCH_ARRIVALS"], destination)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
