"""StoreHook: a store behind an Airflow connection."""

from __future__ import annotations

from airflow.sdk import BaseHook

from homing.errors import ConfigurationError, HomingError
from homing.store import Store
from homing.stores import open_store, resolve_url


class StoreHook(BaseHook):
    """Opens the store of a connection of type `homing`, whose password field holds the store URL."""

    conn_name_attr = "homing_conn_id"
    default_conn_name = "homing_default"
    conn_type = "homing"
    hook_name = "Homing store"

    def __init__(self, homing_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.homing_conn_id = homing_conn_id

    def get_url(self) -> str:
        """The store URL. A secret: never log it."""
        url = self.get_connection(self.homing_conn_id).password
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


def find_url(reference: str) -> str:
    """The store URL that an author named: by URL, by `env:NAME`, or by the id of an Airflow connection."""
    if "://" in reference or reference.startswith("env:"):
        return resolve_url(reference)
    return StoreHook(reference).get_url()
