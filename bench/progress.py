"""What a long run says while it goes on."""

from __future__ import annotations

import time

_BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - _BEGAN:5.0f} s] {text}", flush=True)


def elapsed() -> float:
    return time.monotonic() - _BEGAN
