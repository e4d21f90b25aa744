"""`homing …` without Airflow."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from homing.arguments import nearest
from homing.cli.command import EXIT_FAILED, EXIT_MISCONFIGURED, EXIT_OK, EXIT_UNAVAILABLE, Command
from homing.cli.commands import COMMANDS
from homing.cli.context import CommandContext
from homing.errors import ConfigurationError, HomingError, StoreUnavailableError, UnsupportedError
from homing.printable import printable
from homing.store_ref import shows_password

_URL = re.compile(r"(?<=://)[^\s,'\"]+")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code: see homing.cli.command."""
    logging.basicConfig(level=logging.WARNING, handlers=[_terminal()])
    arguments = _parse(sys.argv[1:] if argv is None else argv)
    return run(arguments.command, arguments, CommandContext())


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """The arguments; for what no command has, argparse's own exit, with what was meant."""
    parser = build_parser()
    if words and not words[0].startswith("-"):
        _refuse_unknown(parser, words[0], [command.name for command in COMMANDS], "there is no command")
    arguments, rest = parser.parse_known_args(words)
    flags = [flag for each in arguments.command.arguments for flag in each.flags]
    for word in rest:
        if word.startswith("-"):
            # Without its value, which may be a store's URL.
            _refuse_unknown(parser, word.partition("=")[0], flags, f"{arguments.command.name} has no option")
    if rest:
        parser.error(f"{arguments.command.name} takes fewer arguments: {len(rest)} are left over")
    return arguments


def _refuse_unknown(parser: argparse.ArgumentParser, word: str, known: Sequence[str], what: str) -> None:
    if word in known:
        return
    guess = nearest(word, known)
    parser.error(f"{what} {word!r:.80}; {f'did you mean {guess}?' if guess else 'there are: ' + ', '.join(known)}")


class _PrintableFormatter(logging.Formatter):
    """Keeps a log record on one line, whatever characters the ids in it have."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging calls
        record.message = printable(record.message)
        return super().formatMessage(record)


def _terminal() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(_PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
    return handler


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Says what is wrong, without the URL that was put in the wrong place: it may hold a password."""
        super().error(printable(_URL.sub("…", message)))


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="homing", description="Guaranteed message delivery.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        sub = commands.add_parser(command.name, help=command.help, description=command.help)
        sub.set_defaults(command=command)
        for each in command.arguments:
            sub.add_argument(*each.flags, **each.options)
    return parser


def run(command: Command, arguments: argparse.Namespace, context: CommandContext) -> int:
    """Runs a command; an error becomes one line on standard error, never a traceback."""
    if any(map(shows_password, _references(arguments))):
        context.tell(
            "homing: a password is in the arguments, where everybody on this machine can read it; put the URL into an "
            "environment variable, and name the store by env:NAME"
        )
    try:
        return command.run(arguments, context)
    except (ConfigurationError, UnsupportedError) as error:
        return _complain(error, EXIT_MISCONFIGURED)
    except StoreUnavailableError as error:
        return _complain(error, EXIT_UNAVAILABLE)
    except HomingError as error:
        return _complain(error, EXIT_FAILED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has ended; stops Python from reporting it at exit
        return EXIT_OK


def _references(arguments: argparse.Namespace) -> list[str]:
    """The stores that were named, or left to the environment."""
    return [
        *(getattr(arguments, name, "") for name in ("store", "dead_letter_store")),
        *getattr(arguments, "stores", ()),
    ]


def _complain(error: HomingError, code: int) -> int:
    sys.stderr.write(f"homing: {error}\n")
    return code
