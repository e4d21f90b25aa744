"""`airflow homing …`: the commands of `homing`, with stores found by the id of an Airflow connection too.

Imported on every `airflow` call: keep it light.
"""

from __future__ import annotations

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
        from homing.cli.desk import VARIABLES, Desk
        from homing.cli.main import run

        raise SystemExit(run(command, arguments, Desk(_find_url, lambda: [*VARIABLES, *_connections()])))

    return act


def _find_url(reference: str) -> str:
    """As `homing.airflow.hook.find_url`, which asks as a task does: here, Airflow's own database is asked too."""
    from airflow.models import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    from homing.airflow.connection import url_of
    from homing.airflow.hook import is_url
    from homing.errors import ConfigurationError
    from homing.stores import resolve_url

    if is_url(reference):
        return resolve_url(reference)
    connection_id, _, options = reference.partition("?")
    try:
        return url_of(Connection.get_connection_from_secrets(connection_id), options)
    except AirflowNotFoundException as error:
        raise ConfigurationError(f"there is no Airflow connection {connection_id!r} for a store") from error


def _connections() -> Sequence[str]:
    """The ids of the connections that name a store."""
    from airflow.models import Connection
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        ours = select(Connection.conn_id).where(Connection.conn_type == "homing").order_by(Connection.conn_id)
        return [str(conn_id) for conn_id in session.scalars(ours)]
