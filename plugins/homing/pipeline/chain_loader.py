"""Imports a chain by its "module:attribute" name, as the DAG factory, Spark jobs and unpickling do."""

from __future__ import annotations

import copyreg
import importlib
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from homing.arguments import nearest
from homing.errors import ChainImportError
from homing.invocation.error_info import text_of
from homing.pipeline.chain import HandlerChain, building_by_reference

_PLACES_SHOWN = 6


def load_chain(reference: str) -> HandlerChain:
    """The chain that `reference` ("module:attribute") names; imports its module if need be.

    A chain built by that import never starts a replay listener. Raises ChainImportError, which says what is
    missing and keeps the cause, for everything that can go wrong.
    """
    module_name, attribute = _split(reference)
    with building_by_reference():
        module = _import(module_name, reference)
    try:
        chain = getattr(module, attribute)
    except AttributeError as error:
        raise ChainImportError(_missing(module, attribute, reference)) from error
    if not isinstance(chain, HandlerChain):
        raise ChainImportError(f"{reference!r} is a {type(chain).__qualname__}, not a HandlerChain")
    if chain.reference is None:
        chain.reference = reference
    return chain


def _split(reference: object) -> tuple[str, str]:
    module_name, colon, attribute = reference.partition(":") if isinstance(reference, str) else ("", "", "")
    named = all(part.isidentifier() for part in module_name.split("."))
    if not (colon and named and attribute.isidentifier()):
        raise ChainImportError(
            f'{reference!r} does not name a chain; write "module:attribute", for example "orders_chain:chain"'
        )
    return module_name, attribute


def _import(module_name: str, reference: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _broken(module_name, reference, error) from error
        raise ChainImportError(
            f"module {error.name!r} of the chain {reference!r} not found; looked in {_places()}. "
            "Put the directory it is in on PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:
        raise _broken(module_name, reference, error) from error


def _broken(module_name: str, reference: str, error: BaseException) -> ChainImportError:
    return ChainImportError(
        f"importing {module_name!r} for the chain {reference!r} failed: {type(error).__qualname__}: {text_of(error)}"
    )


def _missing(module: ModuleType, attribute: str, reference: str) -> str:
    there = vars(module)
    chains = sorted(name for name, value in there.items() if isinstance(value, HandlerChain))
    close = nearest(attribute, chains, cutoff=0.6) or nearest(attribute, there, cutoff=0.6)
    hint = f"; did you mean {close!r}?" if close else f"; its chains are: {', '.join(chains) or 'none'}"
    return f"module {module.__name__!r} has no {attribute!r} for the chain {reference!r}{hint}"


def _places() -> str:
    folders = [str(Path(entry)) for entry in sys.path if Path(entry or ".").is_dir()]
    more = len(folders) - _PLACES_SHOWN
    shown = ", ".join(folders[:_PLACES_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown


def _reduce(chain: HandlerChain) -> tuple[Any, ...]:
    if chain.reference is None:
        raise pickle.PicklingError(
            f'chain {chain.name!r} is pickled by reference: get it with load_chain("module:attribute")'
        )
    return load_chain, (chain.reference,)


copyreg.pickle(HandlerChain, _reduce)
