"""What a command is: a name, its arguments, and the function that runs it, which is imported only then.

Light on purpose: Airflow reads the commands' arguments on every `airflow` call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import Namespace

    from homing.cli.desk import Desk

# How a command ends. Scripts rely on these.
DONE = 0
NOT_SO = 1  # what was asked for is not there, does not balance, or still fails
SET_UP_WRONGLY = 2  # running it again will not help
UNAVAILABLE = 3  # a store is away: try again later


@dataclass(frozen=True)
class Argument:
    """One argument, in the words of `ArgumentParser.add_argument`."""

    flags: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """`target` is "module:function" of a function of (arguments, desk) that returns the exit code."""

    name: str
    help: str
    target: str
    arguments: tuple[Argument, ...] = ()

    def run(self, arguments: Namespace, desk: Desk) -> int:
        module, _, function = self.target.partition(":")
        return int(getattr(import_module(module), function)(arguments, desk))


def argument(*flags: str, **options: Any) -> Argument:
    return Argument(flags, options)
