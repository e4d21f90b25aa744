"""The benchmark of a chain runs, and its figures can be read by a program."""

from __future__ import annotations

import pytest

from bench.figures import FAILED, table
from bench.parts.chain import LIMIT, chain
from bench.scale import QUICK
from bench.services import Services


def test_bench_prints_a_table_and_figures() -> None:
    with Services(QUICK) as services:
        rows = list(chain(QUICK, services))

    # The verdict of so short a run on a busy machine says nothing.
    assert [row.what for row in rows] == ["execute, two destinations", "execute, one destination"]
    assert "the functions alone" in table(rows)
    for figures in (row.figures() for row in rows):
        assert figures["verdict"] != FAILED
        assert figures["rounds"] == QUICK.rounds
        assert figures["ours_seconds"] > figures["theirs_seconds"] > 0
        floor = figures["theirs_seconds"]
        assert figures["bar"] == pytest.approx((floor + LIMIT) / floor)
