"""A command: a name, its arguments, and the function that runs it. The function's module is imported when it runs.

Imports little: Airflow reads the commands' arguments on every `airflow` call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import Namespace

    from homing.cli.context import CommandContext

# Exit codes. Scripts rely on these.
EXIT_OK = 0
EXIT_FAILED = 1  # not found, does not balance, or still fails
EXIT_MISCONFIGURED = 2  # wrong usage or configuration: running it again will not help
EXIT_UNAVAILABLE = 3  # a store cannot be reached: try again later


@dataclass(frozen=True)
class Argument:
    """One argument, as `ArgumentParser.add_argument` takes it."""

    flags: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """`target` is "module:function"; the function takes (arguments, context) and returns the exit code."""

    name: str
    help: str
    target: str
    arguments: tuple[Argument, ...] = ()

    def run(self, arguments: Namespace, context: CommandContext) -> int:
        module, _, function = self.target.partition(":")
        return int(getattr(import_module(module), function)(arguments, context))


def argument(*flags: str, **options: Any) -> Argument:
    return Argument(flags, options)
