"""The stand-in for Spark does what Spark does, where the other simulations lean on it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.simulation.frames import Frame, Functions, Observed, Part, Session, SparkError
from tests.simulation.hub import GO, KILL, STALL, Hub, Process
from tests.simulation.virtual import Here

ROWS = pa.schema([("id", pa.string())])


class Cluster:
    """A driver, and executors that meet something at the first steps named here."""

    def __init__(self, meets: dict[str, str] | None = None) -> None:
        self.meets = meets or {}
        self.here = Here()
        self.here.hub = self.hub = Hub(self.here.clock, random.Random(0), self._decide, lambda _: None)  # noqa: S311
        self.made: list[str] = []

    def frame(self, *names: str, attempts: int = 1) -> Frame:
        def make(name: str) -> Any:
            self.here.pause(name)
            self.made.append(name)
            yield pa.RecordBatch.from_pylist([{"id": name}], schema=ROWS)

        return Frame(Session(self.here, attempts), [Part(lambda name=name: make(name)) for name in names], ROWS)

    def run(self, work: Callable[[], Any]) -> Any:
        """What it comes to in the driver."""
        strand = self.hub.start(Process("driver"), work)
        self.hub.run()
        if strand.error is not None:
            raise strand.error
        return strand.result

    def _decide(self, process: Process, what: str) -> str:
        decision = self.meets.pop(what, GO)
        process.stalled = decision == STALL
        return decision


def test_what_is_cached_is_made_once_and_forgotten_when_it_is_told_to() -> None:
    cluster = Cluster()
    frame = cluster.frame("a", "b").cache()

    assert cluster.run(frame.count) == cluster.run(frame.count) == 2
    assert sorted(cluster.made) == ["a", "b"]

    frame.unpersist()
    cluster.run(frame.count)
    assert sorted(cluster.made) == ["a", "a", "b", "b"]


def test_a_plan_made_before_its_source_was_cached_uses_the_cache() -> None:
    cluster = Cluster()
    source = cluster.frame("a")
    ids = source.select("id")
    source.cache()

    cluster.run(ids.count)
    cluster.run(source.count)
    assert cluster.made == ["a"]


def test_what_an_executor_has_made_outlives_another_that_dies() -> None:
    cluster = Cluster({"a": KILL})
    frame = cluster.frame("a", "b").cache()

    with pytest.raises(SparkError, match="Python worker exited unexpectedly"):
        cluster.run(frame.count)
    assert cluster.made == ["b"]
    assert cluster.run(frame.collect) == [{"id": "a"}, {"id": "b"}]
    assert cluster.made == ["b", "a"]


def test_a_part_whose_executor_dies_is_tried_again_in_a_cluster_and_counted_once() -> None:
    cluster, observed, functions = Cluster({"a": KILL}), Observed(), Functions()
    number = functions.count(functions.lit(1)).alias("rows")
    frame = cluster.frame("a", "b", attempts=2).observe(observed, number)

    assert cluster.run(frame.count) == 2
    assert observed.get == {"rows": 2}


def test_an_executor_that_is_not_heard_of_goes_on_beside_the_one_that_took_its_part() -> None:
    cluster = Cluster({"a": STALL})
    frame = cluster.frame("a", attempts=2)

    assert cluster.run(frame.collect) == [{"id": "a"}]
    assert cluster.made == ["a", "a"]
