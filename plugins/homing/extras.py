"""Extras: packages that only parts of Homing need, and the error that names the extra when one is not installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from homing.errors import MissingExtraError


@contextmanager
def needs(what: str, extra: str, *packages: str) -> Iterator[None]:
    """Raises MissingExtraError when an import inside the block fails because one of `packages` is not installed, or has
    not what is imported: it is of another version."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in packages:
            raise
        missing = isinstance(error, ModuleNotFoundError)
        need = f"needs the package {error.name}" if missing else f"does not work with this version of {package}"
        raise MissingExtraError(f'{what} {need}: pip install "homing[{extra}]"') from error


def load_name(where: str, modules: Mapping[str, str], name: str, *, extra: str, packages: Sequence[str]) -> Any:
    """The public name of a package of ours whose modules are imported on first use.

    Raises AttributeError for a name it does not have, MissingExtraError when one of `packages` is not installed.
    """
    if name not in modules:
        raise AttributeError(f"module {where!r} has no attribute {name!r}")
    with needs(where, extra, *packages):
        return getattr(import_module(f"{where}.{modules[name]}"), name)
