"""`make bench`: the same work on Homing and on its peers, in interleaved rounds, as ratios.

Peers live in an environment of their own, bench/.venv-peers. A ratio is ours to theirs, of neighbours in time: below 1
we are faster. The table shows medians with their range; bench.json and bench.png hold the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import venv
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.rabbitmq_server import running_rabbitmq

HERE = Path(__file__).parent
PEERS = HERE / ".venv-peers"
PACKAGES = ["litequeue", "celery", "dramatiq[rabbitmq]", "matplotlib"]
#: What is compared: where it runs, ours first.
FIELDS = {"SQLite": ("homing", "litequeue"), "RabbitMQ": ("homing", "celery", "dramatiq")}


class Player:
    """A contestant in a process of its own."""

    def __init__(self, stack: ExitStack, name: str, url: str) -> None:
        python = sys.executable if name == "homing" else str(PEERS / "bin" / "python")
        command = [python, str(HERE / "contestants.py"), name, url]
        self._process: Any = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(self._process.stdin.close)
        self.name = name

    def seconds(self, verb: str, count: int) -> float:
        self._process.stdin.write(f"{verb} {count}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def install_peers() -> None:
    """Makes the peers' environment, once."""
    wanted = PEERS / "installed"
    if wanted.exists() and wanted.read_text().split("\n") == PACKAGES:
        return
    venv.create(PEERS, with_pip=True, clear=True)
    subprocess.run([str(PEERS / "bin" / "pip"), "install", "--quiet", *PACKAGES], check=True)
    wanted.write_text("\n".join(PACKAGES))


def compare(players: list[Player], verbs: list[str], rounds: int, count: int) -> dict[str, list[float]]:
    """The ratios of ours to each peer's, by what was done."""
    ratios: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for verb in verbs:
            taken = {player.name: player.seconds(verb, count) for player in players}
            for name in taken.keys() - {"homing"}:
                if number:  # the first round warms up
                    ratios.setdefault(f"{verb} one, to {name}", []).append(taken["homing"] / taken[name])
    return ratios


def draw(figures: dict[str, dict[str, float]], where: Path) -> None:
    """The picture, by the peers' environment: nothing of ours needs matplotlib."""
    script = (
        "import json, sys, matplotlib; matplotlib.use('Agg'); import matplotlib.pyplot as plt\n"
        "figures = json.loads(sys.argv[1]); names = list(figures)\n"
        "middle = [figures[n]['median'] for n in names]\n"
        "spread = [[figures[n]['median'] - figures[n]['least'] for n in names],"
        " [figures[n]['most'] - figures[n]['median'] for n in names]]\n"
        "plt.figure(figsize=(9, 1 + len(names) / 2)); plt.barh(names, middle, xerr=spread)\n"
        "plt.axvline(1, color='black'); plt.xlabel('time, Homing to peer (below 1: Homing is faster)')\n"
        "plt.tight_layout(); plt.savefig(sys.argv[2])\n"
    )
    subprocess.run([str(PEERS / "bin" / "python"), "-c", script, json.dumps(figures), str(where)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--output", type=Path, default=Path("var/bench"), help="where bench.json and bench.png go")
    arguments = parser.parse_args()
    rounds, count = (5, 50) if arguments.quick else (30, 200)
    install_peers()
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="homing-bench-") as folder, running_rabbitmq() as broker:
        ours = {"SQLite": f"sqlite:///{folder}/ours.db?store=bench", "RabbitMQ": f"{broker.url}?store=bench"}
        theirs = {"SQLite": f"{folder}/theirs.db", "RabbitMQ": broker.url}
        for place, names in FIELDS.items():
            with ExitStack() as stack:
                players = [Player(stack, name, (ours if name == "homing" else theirs)[place]) for name in names]
                verbs = ["enqueue", "take"] if place == "SQLite" else ["enqueue"]
                found = compare(players, verbs, rounds, count)
            ratios.update({f"{place}: {what}": values for what, values in found.items()})
    figures = {
        what: {"median": statistics.median(values), "least": min(values), "most": max(values)}
        for what, values in sorted(ratios.items())
    }
    print(f"{'time, Homing to peer (below 1: faster)':44}{'median':>8}{'range':>16}")
    for what, figure in figures.items():
        print(f"{what:44}{figure['median']:>8.2f}{figure['least']:>9.2f} -{figure['most']:>5.2f}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "bench.json").write_text(json.dumps(figures, indent=2) + "\n")
    draw(figures, arguments.output / "bench.png")
    print(f"written: {arguments.output}/bench.json and bench.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
