"""BulkStore: a store for which to store one message is to store many."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from homing.message import Headers
from homing.store import TRANSACTIONS, Store
from homing.stores.validation import as_message


class BulkStore(Store):
    """What the stores that come with Homing have in common."""

    def store(
        self,
        content: Any,
        *,
        id: str | None = None,
        headers: Headers | None = None,
        scheduled_at: datetime | None = None,
        transaction: Any = None,
    ) -> str:
        return self.store_many([as_message(content, id, headers, scheduled_at)], transaction=transaction)[0]

    def _refuse_transaction(self, transaction: Any) -> None:
        """Raises UnsupportedError for a caller's transaction; for stores that take part in none."""
        if transaction is not None:
            raise self._lacks(TRANSACTIONS)
