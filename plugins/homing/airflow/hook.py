"""StoreHook: a store behind an Airflow connection."""

from __future__ import annotations

import re
from typing import TypeGuard

from airflow.sdk import BaseHook, Connection

from homing.errors import ConfigurationError, HomingError
from homing.store import Store
from homing.stores import open_store, resolve_url

_SERVICE_BUS = "azure_service_bus"
_CONNECTION_ID = re.compile(r"[A-Za-z0-9_.-]{1,250}")


class StoreHook(BaseHook):
    """Opens the store of a connection of type `homing`, whose password field holds the store URL.

    A connection of the Microsoft provider, of type `azure_service_bus`, is a store too when its extra names a queue.
    """

    conn_name_attr = "homing_conn_id"
    default_conn_name = "homing_default"
    conn_type = "homing"
    hook_name = "Homing store"

    def __init__(self, homing_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.homing_conn_id = homing_conn_id

    def get_url(self) -> str:
        """The store URL. A secret: never log it."""
        connection = self.get_connection(self.homing_conn_id)
        if connection.conn_type == _SERVICE_BUS:
            return _service_bus_url(connection)
        url = connection.password
        if not url:
            raise ConfigurationError(f"the connection {self.homing_conn_id!r} has no store URL: set its password field")
        return resolve_url(url)

    def get_conn(self) -> Store:
        """The store, not yet connected; the caller closes it."""
        return open_store(self.get_url())

    def test_connection(self) -> tuple[bool, str]:
        """What the connection form's Test button shows."""
        try:
            with self.get_conn() as store:
                return True, f"Store {store.name!r}: {store.count()}"
        except HomingError as error:
            return False, str(error)


def _service_bus_url(connection: Connection) -> str:
    """The store of a connection of the Microsoft provider, which keeps the connection string in the schema field."""
    from homing.stores.servicebus.options import url_of

    extra = connection.extra_dejson
    queue = extra.get("queue") or extra.get("topic")
    if not connection.schema or not queue:
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} of type {_SERVICE_BUS} needs its connection string, and in its "
            'extra the queue to open as a store: {"queue": "orders"}, or {"topic": "orders", "subscription": "billing"}'
        )
    return url_of(connection.schema, queue, extra.get("subscription"))


def is_url(reference: object) -> TypeGuard[str]:
    """Whether a store was named by a URL or `env:NAME`, rather than by the id of an Airflow connection.

    Raises ConfigurationError for what is neither.
    """
    if not isinstance(reference, str) or not reference:
        raise ConfigurationError(f"a store is named by a URL, env:NAME or the id of a connection, not by {reference!r}")
    if "://" in reference or reference.startswith("env:"):
        return True
    if not _CONNECTION_ID.fullmatch(reference):
        raise ConfigurationError(
            f"{reference!r} is neither a store URL, such as sqlite:////data/x.db, nor a connection id"
        )
    return False


def find_url(reference: str) -> str:
    """The store URL that an author named: by URL, by `env:NAME`, or by the id of an Airflow connection."""
    return resolve_url(reference) if is_url(reference) else StoreHook(reference).get_url()
