"""Tasks that Spark itself tries again, or runs twice at once: one row per message in the ledger, and few duplicates."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from homing.delivery import Batch, run_audit
from homing.delivery.recorder import ENTRIES_PER_FLUSH
from homing.ledger import DELIVERED
from tests.spark.conftest import Numbers
from tests.spark.test_applications import submit

MESSAGES = 500
DEADLY = 450


def tries(output: Path) -> dict[int, list[int]]:
    """Message -> the tries of a task that delivered it."""
    lines = [line.split() for path in output.glob("shop-*") for line in path.read_text().splitlines()]
    made: dict[int, list[int]] = {}
    for n, attempt in lines:
        made.setdefault(int(n), []).append(int(attempt))
    return made


def test_a_task_that_spark_tries_again_goes_on_where_the_ledger_ends(numbers: Numbers, output: Path) -> None:
    numbers.stores.store.store_many([{"n": n, "exit": n == DEADLY} for n in range(MESSAGES)])
    batch = Batch(numbers.stores, "run", ["shop"], chain="tried")
    assert batch.claim(MESSAGES) == MESSAGES

    done = submit(
        numbers, output, "deliver.py", "--chain", "tried_chain:chain", "--run-id", "run", "--flow", "shop",
        "--work-dir", numbers.work, master="local[2,4]",
    )  # fmt: skip

    assert done.returncode == 0, done.stdout
    assert "one message at a time" not in done.stdout  # Spark's own retry was enough
    made = tries(output)
    assert made.keys() == set(range(MESSAGES))
    assert sorted(made[DEADLY]) == [0, 1]
    # Only what the first try had delivered and not yet recorded when it died.
    assert sum(map(len, made.values())) - MESSAGES <= ENTRIES_PER_FLUSH
    entries = numbers.stores.ledger.entries([name for name, _, _ in numbers.stores.store.view.states()])
    found = [(entry.state, entry.attempts, entry.deliveries) for flows in entries.values() for entry in flows.values()]
    assert Counter(found) == {(DELIVERED, 1, 1): MESSAGES}
    assert batch.settle().acknowledged == MESSAGES
    assert run_audit(numbers.stores, ["shop"]).balanced
