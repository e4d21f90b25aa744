"""The test server as a process of its own: `python -m tests.servicebus`.

Says its connection string in the first line it writes. After the line "hold" it leaves settlements undone and without
an answer, and writes "held" when the first one comes; after "settle" it does them again. It ends with its input.
"""

from __future__ import annotations

import sys

from tests.servicebus.server import ServiceBusServer


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Holding:
    """In place of settling: says so, the first time."""

    def __init__(self) -> None:
        self.said = False

    def __call__(self) -> None:
        if not self.said:
            self.said = True
            say("held")


def main() -> None:
    server = ServiceBusServer().start()
    say(server.connection_string)
    try:
        for line in sys.stdin:
            server.on_settlement = Holding() if line.strip() == "hold" else None
    finally:
        server.stop()


if __name__ == "__main__":
    main()
