"""A small CRM over HTTP: it keeps every order it is sent, twice if it is sent twice.

python -m demo.crm PORT FOLDER
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Crm(BaseHTTPRequestHandler):
    """Appends the body of each POST, with the trace it belongs to, to a file; answers 201 once it is written."""

    received: Path

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.received.open("a") as file:
            file.write(json.dumps({**order, "traceparent": self.headers["traceparent"]}) + "\n")
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Silent: there would be a line per order."""


def received(folder: Path) -> list[int]:
    """The numbers of the orders in a folder of JSON lines, in no particular order."""
    return [order["number"] for order in _orders(folder)]


def traces(folder: Path) -> dict[int, str | None]:
    """The trace that each order, by its number, was sent with."""
    return {order["number"]: order["traceparent"] for order in _orders(folder)}


def _orders(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


if __name__ == "__main__":
    port, folder = int(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    Crm.received = folder / "orders.jsonl"
    ThreadingHTTPServer(("127.0.0.1", port), Crm).serve_forever()
