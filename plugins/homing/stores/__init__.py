"""Opening a store by its URL."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, cast

from homing.arguments import nearest
from homing.custom_store import as_store
from homing.errors import ConfigurationError, UnknownStoreError, UnsupportedError
from homing.store import STORE_KINDS, Store
from homing.store_ref import StoreRef

#: The group of entry points by which a package brings a store: `scheme = "module:function"`, which takes the URL.
ENTRY_POINTS = "homing.stores"

_OPENERS = {scheme: kind.opener for kind in STORE_KINDS.values() for scheme in kind.schemes}
_SQL = STORE_KINDS["sql"].schemes
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}")


def open_store(url: str | StoreRef, *, read_only: bool = False) -> Store:
    """Opens the store this URL names, without connecting yet.

    `read_only` is for SQL stores: the database then refuses whatever would write, and no table is made.

    `env:NAME` stands for the URL in the environment variable NAME, so that a password need not be written anywhere
    else. Raises UnknownStoreError for an unknown scheme, ConfigurationError for a malformed URL, or for a package's
    store that cannot be loaded.
    """
    url = StoreRef(url).resolve()
    check_scheme(url)
    scheme = _scheme(url)
    if read_only and scheme not in _SQL:
        raise UnsupportedError(f"a store of {scheme}:// cannot be opened read-only; SQL stores can")
    how = {"read_only": True} if read_only else {}
    return as_store(_opener(scheme)(url, **how), f"what opens {scheme}://")


def check_scheme(url: str) -> None:
    """Raises UnknownStoreError, with a suggestion, for a URL that no store answers to. Opens nothing."""
    scheme = _scheme(url)
    if scheme in _OPENERS:
        return
    added = {found.name for found in entry_points(group=ENTRY_POINTS)}
    if scheme in added:
        return
    # The error text never repeats the URL, which may hold a password.
    schemes = sorted({*_OPENERS, *added})
    known = ", ".join(f"{name}://" for name in schemes)
    if "://" not in url or not _SCHEME.fullmatch(scheme):
        raise UnknownStoreError(f"a store URL starts with its scheme, one of {known}")
    guess = nearest(scheme.lower(), schemes, cutoff=0.5)
    hint = f"did you mean {guess}://? " if guess else ""
    raise UnknownStoreError(f"no store answers to {scheme}://; {hint}known: {known}")


def _opener(scheme: str) -> Callable[..., Any]:
    """What opens a URL of this scheme: ours first, so that no package can take one of our schemes over."""
    if scheme in _OPENERS:
        module, _, function = _OPENERS[scheme].partition(":")
        return cast("Callable[..., Any]", getattr(import_module(module), function))
    found = {point.value: point for point in entry_points(group=ENTRY_POINTS, name=scheme)}
    if len(found) > 1:
        raise ConfigurationError(
            f"{len(found)} packages bring a store for {scheme}://: {', '.join(sorted(found))}. Uninstall all but one"
        )
    ((reference, point),) = found.items()
    try:
        return cast("Callable[..., Any]", point.load())
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"the store for {scheme}://, {reference}, cannot be loaded: {error}") from error


def _scheme(url: str) -> str:
    """The scheme without its driver: `postgresql+psycopg` is a postgresql."""
    scheme, separator, _ = url.partition("://")
    return scheme.partition("+")[0] if separator else ""
