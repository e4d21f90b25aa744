"""Opening a store by its URL."""

from __future__ import annotations

import difflib
import re
from importlib import import_module

from homing.errors import UnknownStoreError, UnsupportedError
from homing.store import Store
from homing.store_ref import StoreRef

# scheme -> "module:function" taking the URL; a store's module is imported only when it is asked for.
_OPENERS = {
    "amqp": "homing.stores.rabbitmq:open_rabbitmq_store",
    "amqps": "homing.stores.rabbitmq:open_rabbitmq_store",
    "memory": "homing.stores.memory:open_memory_store",
    "mariadb": "homing.stores.sql:open_sql_store",
    "mysql": "homing.stores.sql:open_sql_store",
    "postgres": "homing.stores.sql:open_sql_store",
    "postgresql": "homing.stores.sql:open_sql_store",
    "servicebus": "homing.stores.servicebus:open_servicebus_store",
    "sqlite": "homing.stores.sql:open_sql_store",
}


_SQL = "homing.stores.sql"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}")


def open_store(url: str | StoreRef, *, read_only: bool = False) -> Store:
    """Opens the store this URL names, without connecting yet.

    `read_only` is for SQL stores: the database then refuses whatever would write, and no table is made.

    `env:NAME` stands for the URL in the environment variable NAME, so that a password need not be written anywhere
    else. Raises UnknownStoreError for an unknown scheme, ConfigurationError for a malformed URL.
    """
    url = StoreRef(url).resolve()
    check_scheme(url)
    module, _, function = _OPENERS[_scheme(url)].partition(":")
    if read_only and module != _SQL:
        raise UnsupportedError(f"a store of {_scheme(url)}:// cannot be opened read-only; SQL stores can")
    how = {"read_only": True} if read_only else {}
    opened = getattr(import_module(module), function)(url, **how)
    assert isinstance(opened, Store)
    return opened


def check_scheme(url: str) -> None:
    """Raises UnknownStoreError, with a suggestion, for a URL that no store answers to. Opens nothing."""
    if _scheme(url) in _OPENERS:
        return
    # The error text never repeats the URL, which may hold a password.
    known = ", ".join(f"{name}://" for name in sorted(_OPENERS))
    if "://" not in url:
        raise UnknownStoreError(f"a store URL starts with its scheme, one of {known}")
    if not _SCHEME.fullmatch(_scheme(url)):
        raise UnknownStoreError(f"a store URL starts with its scheme, one of {known}")
    guess = difflib.get_close_matches(_scheme(url).lower(), _OPENERS, n=1, cutoff=0.5)
    hint = f"did you mean {guess[0]}://? " if guess else ""
    raise UnknownStoreError(f"no store answers to {_scheme(url)}://; {hint}known: {known}")


def _scheme(url: str) -> str:
    """The scheme without its driver: `postgresql+psycopg` is a postgresql."""
    scheme, separator, _ = url.partition("://")
    return scheme.partition("+")[0] if separator else ""
