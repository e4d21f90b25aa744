"""Extras: packages that only parts of Homing need, and the error that names the extra when one is not installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from homing.errors import MissingExtraError


@contextmanager
def needs(what: str, extra: str, package: str) -> Iterator[None]:
    """Raises MissingExtraError when an import inside the block fails because `package` is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != package and not (error.name or "").startswith(f"{package}."):
            raise
        raise MissingExtraError(f'{what} needs the package {error.name}: pip install "homing[{extra}]"') from error


def load_name(where: str, modules: Mapping[str, str], name: str, *, extra: str, package: str) -> Any:
    """The public name of a package of ours whose modules are imported on first use. Raises AttributeError for a name it
    does not have, MissingExtraError when `package` is not installed."""
    if name not in modules:
        raise AttributeError(f"module {where!r} has no attribute {name!r}")
    with needs(where, extra, package):
        return getattr(import_module(f"{where}.{modules[name]}"), name)
