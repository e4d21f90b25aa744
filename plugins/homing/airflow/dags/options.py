"""The options of a factory are the fields of the configuration that they fill: declared there, and nowhere again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import MISSING, fields
from inspect import Parameter
from typing import Any, TypeVar

from homing.arguments import refuse_unknown

Function = TypeVar("Function", bound=Callable[..., Any])


def has_options_of(config: type, *, but: Collection[str] = ()) -> Callable[[Function], Function]:
    """Has `help`, editors and `inspect.signature` show the fields of this dataclass as keyword arguments of a function
    that takes them as `**options`. What it declares itself stays as it is."""

    def show(function: Function) -> Function:
        signature = inspect.signature(function)
        *own, rest = signature.parameters.values()
        left_out = {*but, *signature.parameters}
        options = [
            Parameter(
                each.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if each.default is MISSING else each.default,
                annotation=each.type,
            )
            for each in fields(config)
            if each.name not in left_out
        ]
        shown = [*own, *options, rest.replace(name="airflow_arguments")]
        about = inspect.cleandoc(config.__doc__ or "")
        function.__doc__ = (
            f"{inspect.cleandoc(function.__doc__ or '')}\n\nThe options, by {config.__name__}:\n\n{about}"
        )
        function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        return function

    return show


def split_options(
    config: type, options: dict[str, Any], airflow: type, what: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What fills this dataclass, and what is for this class of Airflow's. Raises ConfigurationError for what is
    neither, with what `what` was called with."""
    names = {each.name for each in fields(config) if each.init}
    known = names | set(inspect.signature(airflow).parameters)
    refuse_unknown(options, known, of=what, otherwise=f"help({what.partition('(')[0]}) shows those there are")
    ours = {name: value for name, value in options.items() if name in names}
    return ours, {name: value for name, value in options.items() if name not in names}
