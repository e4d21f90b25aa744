"""Draws bench.json: `python -m bench.picture bench.json bench.png`, in the peers' environment, which has matplotlib."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter

_COLOURS = {"within": "tab:green", "ABOVE": "tab:red", "": "tab:blue"}


def draw(rows: list[dict[str, Any]], where: Path) -> None:
    figure, axes = plt.subplots(figsize=(13, 1.5 + len(rows) * 0.24), layout="constrained")
    places = range(len(rows))
    for place, row in zip(places, rows, strict=True):
        if "median" not in row:
            axes.text(1, place, " FAILED", color="tab:red", va="center", fontsize=8)
            continue
        colour = _COLOURS[row["verdict"]]
        axes.plot([row["least"], row["most"]], [place, place], color=colour, linewidth=2, alpha=0.5)
        axes.plot(row["median"], place, "o", color=colour, markersize=5)
        axes.annotate(f"{row['median']:.2g}", (row["most"], place), xytext=(5, -3), textcoords="offset points", size=7)
        if row["bar"] is not None:
            axes.plot([row["bar"]] * 2, [place - 0.4, place + 0.4], color="black", linewidth=2)
    axes.set_yticks(places, [f"{row['part']} · {row['what']}   ÷   {row['to']}" for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.axvline(1, color="grey", linewidth=1)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("time, Homing to the other (left of 1: Homing is faster); dot: median, line: range, black: bar")
    figure.savefig(where, dpi=110)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text())["rows"], Path(sys.argv[2]))
