"""`airflow homing …`: the commands of `homing`, with stores found by the id of an Airflow connection too.

Imported on every `airflow` call: keep it light.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

from homing.cli.command import Argument, Command
from homing.cli.commands import COMMANDS


def get_cli_commands() -> list[GroupCommand]:
    """What the provider adds to Airflow's command line."""
    commands = [
        ActionCommand(command.name, command.help, _action(command), [_arg(each) for each in command.arguments])
        for command in COMMANDS
    ]
    help_text = "Guaranteed message delivery: look into stores, replay, prove the books"
    return [GroupCommand(name="homing", help=help_text, subcommands=commands)]


def _arg(argument: Argument) -> Arg:
    return Arg(argument.flags, **argument.options)


def _action(command: Command) -> Callable[[Namespace], None]:
    def act(arguments: Namespace) -> None:
        from airflow import settings

        from homing.airflow.hooks.handler_connections import find_connections_on_server
        from homing.airflow.hooks.store import find_url_on_server
        from homing.cli.context import VARIABLES, CommandContext
        from homing.cli.main import run

        sys.path.append(settings.DAGS_FOLDER)  # where the chains are
        context = CommandContext(
            find_url_on_server,
            lambda: [*VARIABLES, *_connections()],
            via="airflow homing",
            find_connections=find_connections_on_server,
        )
        raise SystemExit(run(command, arguments, context))

    return act


def _connections() -> Sequence[str]:
    """The ids of the connections that name a store."""
    from airflow.models import Connection
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        ours = select(Connection.conn_id).where(Connection.conn_type == "homing").order_by(Connection.conn_id)
        return [str(conn_id) for conn_id in session.scalars(ours)]
