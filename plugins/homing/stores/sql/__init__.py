"""The SQL store: Vitess messaging on SQLAlchemy, one table per store, and the delivery ledger beside it."""

from homing.stores.sql.ledger import SqlLedger
from homing.stores.sql.store import SqlStore, open_sql_store

__all__ = ["SqlLedger", "SqlStore", "open_sql_store"]
