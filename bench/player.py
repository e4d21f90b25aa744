"""A contestant in a process of its own, as seen from here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from bench import peers

ROOT = Path(__file__).resolve().parents[1]
#: What needs nothing of the peers' environment, and is what the project's own drivers can do.
_AT_HOME = ("homing", "psycopg", "pika", "sqlite3")
#: Seconds after which an answer will not come any more.
_PATIENCE = 120.0


class Player:
    """`seconds("take", 1000, 100)` has the contestant do it, and is what that took per message."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self._url = url
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process that writes to it
        self._process: subprocess.Popen[str] | None = None

    def _start(self) -> subprocess.Popen[str]:
        python = sys.executable if self.name.startswith(_AT_HOME) else str(peers.PYTHON)
        path = [str(ROOT)] + ([str(ROOT / "plugins")] if python == sys.executable else [])
        return subprocess.Popen(
            [python, "-m", "bench.contestants", self.name, self._url],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONWARNINGS": "ignore"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def seconds(self, verb: str, count: int, size: int = 1) -> float:
        """Raises RuntimeError with the last words of a contestant that gave up, or did not answer in time."""
        self._process = process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        giving_up = threading.Timer(_PATIENCE, process.kill)
        giving_up.start()
        try:
            process.stdin.write(f"{verb} {count} {size}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            giving_up.cancel()
        if not answer:
            killed = process.wait() == -signal.SIGKILL
            words = f"no answer in {_PATIENCE:.0f} seconds" if killed else self._last_words()
            raise RuntimeError(f"{self.name} gave up: {words}")
        return float(answer)

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return lines[-1] if lines else "it said nothing"

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._errors.close()
