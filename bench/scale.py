"""How much is measured: all of it, or a smaller round of everything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """`rounds` is for what takes milliseconds; what takes longer has rounds of its own."""

    rounds: int
    #: How many messages are taken in a round, 1,000 at a time. A broker sends a prefetch before the clock starts.
    taken: int
    #: How many messages wait where there are many, and how many lie beside them in other states.
    waiting: int
    beside: int
    claims: int
    #: For the Spark jobs, and for the delivery loop of one task.
    spark_messages: int
    ledger_messages: int
    spark_rounds: int
    submits: int
    pipeline_messages: int
    pipeline_batch: int
    latency_rounds: int


FULL = Scale(
    rounds=20,
    taken=10_000,
    waiting=1_000_000,
    beside=100_000,
    claims=60,
    spark_messages=200_000,
    ledger_messages=50_000,
    spark_rounds=7,
    submits=3,
    pipeline_messages=200_000,
    pipeline_batch=50_000,
    latency_rounds=5,
)
QUICK = Scale(
    rounds=3,
    taken=1_000,
    waiting=100_000,
    beside=10_000,
    claims=20,
    spark_messages=20_000,
    ledger_messages=5_000,
    spark_rounds=1,
    submits=1,
    pipeline_messages=3_000,
    pipeline_batch=3_000,
    latency_rounds=1,
)
