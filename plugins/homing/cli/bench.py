"""bench-claim: measures how fast a database claims."""

from __future__ import annotations

import time
from argparse import Namespace

from homing.cli.command import EXIT_OK
from homing.cli.context import CommandContext
from homing.constraints import AtLeastOne, check
from homing.errors import ConfigurationError
from homing.pipeline_store import is_pipeline_store
from homing.store import Store

STORE = "bench"


def bench_claim(arguments: Namespace, context: CommandContext) -> int:
    """Stores, claims and acknowledges messages in the store `bench` of the same database, which is empty before and
    after."""
    check("--messages", arguments.messages, AtLeastOne)
    check("--batch-size", arguments.batch_size, AtLeastOne)
    with context.open(arguments.store) as named:
        if not is_pipeline_store(named):
            raise ConfigurationError(f"store {named.name!r} is not in a database: bench-claim needs an SQL store")
        with named.sibling(STORE) as store:
            if arguments.dry_run:
                context.tell(f"would store, claim and acknowledge {arguments.messages} messages in {store.name!r}")
                return EXIT_OK
            if there := sum(store.count().values()):
                raise ConfigurationError(
                    f"store {STORE!r} holds {there} messages, and measuring would remove them: let them be "
                    "delivered first; what an interrupted bench-claim left are rows of its table, to be removed"
                )
            context.show(_measure(store, arguments.messages, arguments.batch_size), arguments)
    return EXIT_OK


def _measure(store: Store, messages: int, batch_size: int) -> dict[str, object]:
    began = time.perf_counter()
    store.store_many([{"number": number} for number in range(messages)])
    stored = time.perf_counter()
    claims = _drain(store, batch_size)
    seconds = sorted(claims)
    store.purge(0)
    return {
        "messages": messages,
        "stored_per_second": round(messages / (stored - began)),
        "claimed_per_second": round(messages / sum(seconds)) if seconds else 0,
        "claim_milliseconds_median": round(1000 * seconds[len(seconds) // 2], 2) if seconds else 0,
        "claim_milliseconds_longest": round(1000 * seconds[-1], 2) if seconds else 0,
    }


def _drain(store: Store, batch_size: int) -> list[float]:
    """Claims and acknowledges every message; returns the seconds that each claim took."""
    claims: list[float] = []
    while True:
        began = time.perf_counter()
        claimed = store.claim(batch_size)
        took = time.perf_counter() - began
        if not claimed:
            return claims
        claims.append(took)
        store.settle(claimed)
