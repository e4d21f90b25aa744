"""PacedClaims: claims, no faster than the store's rate. Before and after, what is due in the store is put in order."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace

from sqlalchemy import Table

from homing.invocation.rate_limit import RateLimiter
from homing.message import ACKNOWLEDGED
from homing.row import NANOSECONDS
from homing.stores.sql.batches import Batches
from homing.stores.sql.claim_query import ClaimQuery, ClaimRequest
from homing.stores.sql.claim_result import Claimed
from homing.stores.sql.claims import Claims
from homing.stores.sql.database import Database
from homing.stores.sql.future_times import Strays
from homing.stores.sql.properties import LiveProperties, SqlOptions
from homing.stores.sql.queries import SqlView
from homing.stores.sql.schema import registry_table

_PURGE_EVERY = 60.0  # seconds


class PacedClaims:
    """The claims of one consumer of a store."""

    def __init__(
        self,
        database: Database,
        table: Table,
        options: SqlOptions,
        live: LiveProperties,
        *,
        finder: ClaimQuery,
        view: SqlView,
        batches: Batches,
    ) -> None:
        self._database = database
        self._options = options
        self._live = live
        self._claims = Claims(database, table, options.name, registry_table(), finder)
        self._view = view
        self._batches = batches
        self._strays = Strays(database, table, options.name)
        self._pace: RateLimiter | None = None
        self._purged = time.monotonic()

    def start_over(self) -> None:
        """In a forked process."""
        self._pace = None

    def claim(self, wanted: ClaimRequest) -> Claimed:
        """Claims as much of this as the rate allows by now."""
        properties = self._live.current()
        self.bring_back_strays()
        pace = self._pace_of(properties.rate) if wanted.ids is None else None
        allowed, claimed = wanted.limit if pace is None else pace.take(wanted.limit), Claimed("")
        # What a batch has already is not new, and finding none of it would mean that the batch is complete.
        if allowed < 1 and not (wanted.batch_id is not None and self._batches.knows(wanted.batch_id)):
            return claimed
        order = replace(wanted, limit=max(1, allowed), properties=properties)
        try:
            claimed = self._database.write(lambda connection: self._claims.claim(connection, order))
        finally:
            if pace is not None:
                pace.give_back(allowed - (claimed.size - claimed.again))
        if properties.purge_after and time.monotonic() - self._purged > _PURGE_EVERY:
            self._purged = time.monotonic()
            self._view.purge(properties.kept_for, ACKNOWLEDGED)
        return claimed

    def expire(self) -> int:
        """As in the contract."""
        return self._database.write(self._claims.expire)

    def next_due(self, share: Collection[int] | None) -> int | None:
        """When this consumer can claim something of its share, or could; None when nothing waits."""
        self.bring_back_strays()
        due, pace = self._view.next_due(share, self._options.partitions), self._pace_of(self._live.current().rate)
        pause = 0.0 if pace is None else pace.pause()
        return due if due is None or not pause else max(due, self._database.now() + int(pause * NANOSECONDS))

    def bring_back_strays(self) -> None:
        if not self._options.read_only:
            self._strays.bring_back(self._live.current())

    def _pace_of(self, rate: float) -> RateLimiter | None:
        """The pace of this consumer; another rate, which may be configured at any time, is another pace."""
        if not rate:
            return None
        if self._pace is None or self._pace.per_second != rate:
            self._pace = RateLimiter(rate, burst=1.0)
        return self._pace
