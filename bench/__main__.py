"""`make bench`: the same work on Homing and on its peers, in interleaved rounds, as one table of ratios.

Every ratio is time, ours to theirs: below 1, Homing is faster. The table goes to the screen, bench.json and bench.png.
Ends with 1 when something could not be measured; a bar that is not kept is in the table, and no error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

import pytest

from bench import peers
from bench.figures import FAILED, Row, summary, table
from bench.parts.chain import chain
from bench.parts.growth import growth
from bench.parts.latency import latency
from bench.parts.ledger import ledger
from bench.parts.pipeline import pipeline
from bench.parts.spark_jobs import spark
from bench.parts.stores import postgresql, rabbitmq, sqlite
from bench.parts.submit import submit
from bench.player import ROOT
from bench.progress import elapsed, say
from bench.scale import FULL, QUICK, Scale
from bench.services import Services

Part = Callable[[Scale, Services], Iterator[Row]]
#: In this order: those that need Airflow come last, because it takes a part of the machine while it runs.
PARTS: dict[str, Part] = {
    "chain": chain,
    "sqlite": sqlite,
    "postgresql": postgresql,
    "rabbitmq": rabbitmq,
    "growth": growth,
    "spark": spark,
    "ledger": ledger,
    "submit": submit,
    "pipeline": pipeline,
    "latency": latency,
}
# How the servers of the tests say that they are not installed.
_MISSING = (pytest.skip.Exception, pytest.fail.Exception)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller round of everything")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; may be given more than once")
    parser.add_argument("--output", type=Path, default=ROOT / "var" / "bench", help="where the table is written to")
    arguments = parser.parse_args()
    rows: list[Row] = []
    try:
        peers.install_peers()
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        rows.append(Row("peers", "their environment", "", error=str(error)))
    chosen = {name: part for name, part in PARTS.items() if name in (arguments.only or PARTS)}
    rows += measure(chosen, QUICK if arguments.quick else FULL)
    print(f"\nTime, Homing to the other: below 1, Homing is faster.\n\n{table(rows)}\n\n{summary(rows)}", flush=True)
    write(rows, arguments.output)
    say("done")
    return 1 if any(row.verdict == FAILED for row in rows) else 0


def measure(parts: dict[str, Part], scale: Scale) -> list[Row]:
    """The rows of all parts; a part that fails has the rows it came to, and one that says why it ended."""
    rows: list[Row] = []
    with Services(scale) as services:
        for name, part in parts.items():
            say(f"-- {name}")
            try:
                for row in part(scale, services):
                    rows.append(row)  # noqa: PERF402 - those it came to stay
            except (Exception, *_MISSING) as error:  # noqa: BLE001 - it goes into the table
                traceback.print_exc()
                rows.append(Row(name, "the whole part", "", error=f"{type(error).__name__}: {error}"))
    return rows


def write(rows: Sequence[Row], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        "measured": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(elapsed()),
        "machine": f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}",
        "ratio": "time, ours to theirs: below 1, Homing is faster; bar: the most it may be",
        "rows": [row.figures() for row in rows],
    }
    numbers, picture = folder / "bench.json", folder / "bench.png"
    numbers.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"written: {numbers}")
    if not peers.PYTHON.exists():
        return  # the table says why there are no peers, and their environment is what draws
    command = [str(peers.PYTHON), "-m", "bench.picture", str(numbers), str(picture)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    print(f"written: {picture}")


if __name__ == "__main__":
    sys.exit(main())
