"""Tells from the URL of a Spark master whether Spark runs on this machine, and what its executors can open."""

from __future__ import annotations

from homing.errors import ConfigurationError
from homing.store_ref import StoreRef


def is_local(master: str) -> bool:
    """Whether this master runs everything on the machine it is started on."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def settings_of(master: str) -> dict[str, str]:
    """What Spark is told unless somebody says otherwise. Where all of it is one process, it makes up a secret, so that
    nobody on the network can ask it for blocks of messages."""
    alone = is_local(master) and not master.startswith("local-cluster[")
    return {"spark.authenticate": "true"} if alone else {}


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
