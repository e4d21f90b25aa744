"""The test server in a process of its own, as a test sees it."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]


class ServiceBusProcess:
    """A running server: its connection string, and whether it settles."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.connection_string = self._hear(30)

    def hold_settlements(self) -> None:
        """From now on they are left undone and unanswered."""
        self._tell("hold")

    def wait_for_settlement(self, timeout: float) -> None:
        """Returns when a client has asked for the first of those; raises TimeoutError."""
        heard = self._hear(timeout)
        assert heard == "held", heard

    def settle_again(self) -> None:
        self._tell("settle")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _hear(self, timeout: float) -> str:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            raise TimeoutError(f"the server said nothing for {timeout} s")
        return self._process.stdout.readline().strip()


@contextmanager
def running_servicebus() -> Iterator[ServiceBusProcess]:
    command = [sys.executable, "-m", "tests.servicebus"]
    with subprocess.Popen(
        command, cwd=_REPOSITORY, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield ServiceBusProcess(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)
