"""Tells from the URL of a Spark master whether Spark runs on this machine, and what its executors can open."""

from __future__ import annotations

from homing.errors import ConfigurationError
from homing.store_ref import StoreRef


def is_local(master: str) -> bool:
    """Whether this master runs everything on the machine it is started on."""
    return is_alone(master) or master.startswith("local-cluster[")


def is_alone(master: str) -> bool:
    """Whether this master is a Spark in one process: no other process is to join it."""
    return master == "local" or master.startswith("local[")


def is_connect(master: str) -> bool:
    """Whether this is a Spark Connect server, whose driver is its own: a job is a client of it."""
    return master.startswith("sc://")


def without_token(master: str) -> str:
    """The master as it can be shown: what follows "/;" may be a token."""
    return master.partition("/;")[0]


def refuse_unreachable(master: str, *urls: str) -> None:
    """Raises ConfigurationError for a database that executors on other machines cannot open."""
    if not is_local(master) and any(StoreRef(url).resolve().startswith("sqlite") for url in urls):
        raise ConfigurationError(
            f"SQLite is a file on one machine, and the executors of {master} may run on others: "
            "use a PostgreSQL or MariaDB store, or a local master"
        )
