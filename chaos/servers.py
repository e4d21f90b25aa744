"""The servers of a chaos run, each behind a proxy, and what can be done to them; who does it hears whether it hit."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from chaos.family import family, is_stopped, stopped
from tests.proxy import ASKED, Proxy
from tests.rabbitmq_server import RabbitMQ
from tests.servers import DiedError, MariaDB, PostgreSQL, Server, launch

_STARTS = 5
_PATIENCE = 30.0
_ENOUGH = 500  # connections: more than any of these servers lets in


class Served:
    """A server behind a proxy. What is done to it returns whether it was really hit."""

    #: How people call it.
    name = ""
    #: What a client sends before it takes something for durable.
    commit = b"COMMIT"

    def __init__(self, server: Server) -> None:
        self.server = server
        self.proxy = Proxy(server.port)

    def new_url(self) -> str:
        """The URL of a new database, through the proxy."""
        return self._through_proxy(self.server.empty_database())

    def _through_proxy(self, url: str) -> str:
        return url.replace(f":{self.server.port}/", f":{self.proxy.port}/", 1)

    def kill(self) -> bool:
        """Ends it by SIGKILL and starts it again over the same data; whether nobody answered in between."""
        self.server.stop(signal.SIGKILL)
        away = not answers(self.server.port)
        for left in reversed(range(_STARTS)):
            time.sleep(1)  # what the dead server's children hold, they hold a little longer
            try:
                self.server.start()
            except (RuntimeError, DiedError):
                if not left:
                    raise
                self.server.stop(signal.SIGKILL)
            else:
                break
        return away

    def freeze(self, seconds: float) -> bool:
        """It answers nobody for a while, and then goes on as if nothing had been; whether somebody asked meanwhile."""
        pid = self.pid
        with stopped(family(pid)):
            asked = self.proxy.counts[ASKED]
            time.sleep(seconds)
            return is_stopped(pid) and self.proxy.counts[ASKED] > asked

    def fill(self, seconds: float) -> bool:
        """All connections it allows are in other hands for a while; whether it turned another one away."""
        with ExitStack() as opened:
            full = self._occupy(opened)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                full = self._occupy(opened) or full
                time.sleep(0.05)
            return full

    def _occupy(self, opened: ExitStack) -> bool:
        """Ends the connections of others and takes what is free; whether in the end none was free."""
        self._end_others()
        for _ in range(_ENOUGH):
            try:
                opened.enter_context(self._connect())
            except (psycopg.OperationalError, pymysql.err.OperationalError):
                return answers(self.server.port)
        return False

    def _connect(self) -> Any:
        raise NotImplementedError

    def _end_others(self) -> None:
        raise NotImplementedError

    @property
    def pid(self) -> int:
        assert self.server._process is not None  # noqa: SLF001
        return self.server._process.pid  # noqa: SLF001

    def close(self) -> None:
        self.proxy.close()
        self.server.remove()


class ServedPostgreSQL(Served):
    """A primary, and a standby that has everything the primary has accepted: it commits when both have it."""

    name = "PostgreSQL"
    server: PostgreSQL

    def __init__(self) -> None:
        super().__init__(launch(PostgreSQL(["wal_retrieve_retry_interval=200ms"])))
        self._standby: PostgreSQL | None = None

    def new_url(self) -> str:
        url = super().new_url()
        if self._standby is None:
            self._add_standby()
        return url

    def fail_over(self, seconds: float, is_refused: Callable[[], bool]) -> bool:
        """The primary dies; clients reach its standby, which takes no writes for a while and then becomes the primary.

        Whether it was asked to write meanwhile, which `is_refused` finds out, and took nothing.
        """
        old, new = self.server, self._standby
        assert new is not None
        old.stop(signal.SIGKILL)
        self.proxy.lead_to(new.port)
        until, refused = time.monotonic() + seconds, False
        while time.monotonic() < until or not (refused or time.monotonic() > until + _PATIENCE):
            refused = refused or (self._is_read_only(new) and is_refused())
            time.sleep(0.1)
        self._ask(new, "select pg_promote()")
        self.server, self._standby = new, None
        promoted = not self._is_read_only(new)
        old.remove()
        self._add_standby()
        return refused and promoted

    def _add_standby(self) -> None:
        """A copy of the server, which then commits only what the copy has written down too."""
        standby = PostgreSQL(self.server.settings)
        standby.as_user([])  # who owns the folder
        where = f"host=127.0.0.1 port={self.server.port} user=postgres application_name=standby"
        copy = [PostgreSQL._program("pg_basebackup"), "-D", f"{standby.folder}/data", "-d", where]  # noqa: SLF001
        standby.run([*copy, "-X", "stream", "-R", "-c", "fast"])
        with (standby.folder / "data" / "postgresql.auto.conf").open("a") as settings:
            settings.write("synchronous_standby_names = ''\n")  # the copy has no copy
        standby.start()
        self._standby = standby
        self._ask(self.server, "alter system set synchronous_standby_names = 'standby'", "select pg_reload_conf()")
        until = time.monotonic() + _PATIENCE
        while not self._ask(self.server, "select 1 from pg_stat_replication where sync_state = 'sync'"):
            if time.monotonic() > until:
                raise TimeoutError("the standby does not follow")
            time.sleep(0.1)

    def _is_read_only(self, server: PostgreSQL) -> bool:
        return self._ask(server, "select pg_is_in_recovery()") == [(True,)]

    @staticmethod
    def _ask(server: PostgreSQL, *statements: str) -> list[Any]:
        where = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres connect_timeout=10"
        found: list[Any] = []
        with psycopg.connect(where, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                found = cursor.fetchall() if cursor.description else []
        return found

    def _connect(self) -> Any:
        where = f"host=127.0.0.1 port={self.server.port} user=postgres dbname=postgres connect_timeout=5"
        return _closing(psycopg.connect(where, autocommit=True, application_name="nemesis"))

    def _end_others(self) -> None:
        with suppress(psycopg.OperationalError):
            self._ask(
                self.server,
                "select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'client backend' "
                "and application_name != 'nemesis' and pid != pg_backend_pid()",
            )

    def close(self) -> None:
        if self._standby is not None:
            self._standby.remove()
        super().close()


class ServedMariaDB(Served):
    name = "MariaDB"

    def __init__(self) -> None:
        super().__init__(launch(MariaDB(["max-connections=60"])))

    def _connect(self) -> Any:
        return _closing(pymysql.connect(host="127.0.0.1", port=self.server.port, user="homing", connect_timeout=5))

    def _end_others(self) -> None:
        # Of those who are let in when it is full there is one more, for the administrator: it is taken by then.
        with suppress(pymysql.err.OperationalError), self._connect() as connection:
            cursor = connection.cursor()
            cursor.execute("select id from information_schema.processlist where db is not null")
            for (number,) in cursor.fetchall():
                with suppress(pymysql.err.MySQLError):
                    cursor.execute(f"kill {int(number)}")


class ServedRabbitMQ(Served):
    """A broker that writes down its queues at once: see "RabbitMQ, killed" in docs/chaos.md."""

    name = "RabbitMQ"
    commit = b"\x00\x3c\x00\x28"  # basic.publish, which the broker confirms
    server: RabbitMQ

    def __init__(self) -> None:
        super().__init__(launch(_PromptRabbitMQ()))

    def new_url(self) -> str:
        return self._through_proxy(self.server.url)

    def fill(self, seconds: float) -> bool:
        """No more connections are let in, and those there were are closed."""
        self.server.control("set_vhost_limits", '{"max-connections": 0}')
        try:
            self.server.control("close_all_connections", "chaos")
            refused = not self._lets_in()
            time.sleep(seconds)
        finally:
            self.server.control("clear_vhost_limits")
        return refused

    def missed_heartbeats(self) -> int:
        """How often it has given a client up that gave no sign of life."""
        logs = [self.server.folder / "log", *self.server.folder.glob("logs/*")]
        return sum(path.read_text(errors="replace").count("missed heartbeats") for path in logs if path.is_file())

    def _lets_in(self) -> bool:
        import pika

        try:
            pika.BlockingConnection(pika.URLParameters(self.server.url)).close()
        except (pika.exceptions.AMQPError, OSError):
            return False
        return True

    @property
    def pid(self) -> int:
        return int((self.server.folder / "broker.pid").read_text())


class _PromptRabbitMQ(RabbitMQ):
    def prepare(self) -> None:
        super().prepare()
        # By default it is three minutes after a crash before it sends on what found its next queue not up yet.
        (self.folder / "advanced.config").write_text(
            "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 5000}]}].\n"
        )


@contextmanager
def _closing(connection: Any) -> Iterator[Any]:
    try:
        yield connection
    finally:
        with suppress(Exception):
            connection.close()


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            return True
    except OSError:
        return False


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system that is easily filled; None, and a plain folder, where only root may make one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)
