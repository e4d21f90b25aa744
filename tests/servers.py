"""Real database servers for the tests: each on a free port, in a folder of its own, stopped at the end by its pid."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest
import sqlalchemy as sa

from demo.ports import free_port
from tests import memory_folders

_START_TIMEOUT = 60.0
#: How many of `empty_database` are kept: more than one test, or the fixtures of one file, ever make.
_KEPT = 30


class DiedError(Exception):
    """A server ended, or was not there in time."""


class Server:
    """One server: `start`, `stop` and `restart` keep its data and its port."""

    #: What people install to have it.
    package = ""
    #: The system user it runs as when the tests run as root, which servers refuse.
    user = ""
    #: The signal that ends it at once, in good order.
    stop_signal = signal.SIGTERM
    #: The statement that removes a database, also one that is in use.
    drop_database = "drop database {}"

    def __init__(self, settings: Sequence[str] = (), *, in_memory: bool = False) -> None:
        self.settings = list(settings)
        self.port = free_port()
        prefix = f"homing-{self.package}-"
        self.folder = memory_folders.make(prefix) if in_memory else Path(tempfile.mkdtemp(prefix=prefix))
        self._databases: deque[str] = deque()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of an empty database."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Makes the data folder, once."""
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def create_database(self) -> None:
        """Makes the database of `url`, once, on the running server."""
        raise NotImplementedError

    def empty_database(self) -> str:
        """The URL of one more database, with nothing in it. The oldest go: each takes some 9 MB, mostly of memory."""
        self._databases.append(name := f"t{uuid.uuid4().hex[:12]}")
        engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"create database {name}")
            if len(self._databases) > _KEPT:
                connection.exec_driver_sql(self.drop_database.format(self._databases.popleft()))
        engine.dispose()
        return self.url.rpartition("/")[0] + f"/{name}"

    def start(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            try:
                self._launch()
                self._wait_until_ready(deadline)
            except DiedError:
                # The children of a killed server may outlive it for a moment, and keep its successor from starting.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    def _launch(self) -> None:
        # The kernel ends the server with the tests, however they end.
        guard = ["setpriv", f"--pdeathsig={self.stop_signal.name}"] if shutil.which("setpriv") else []
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([*guard, *self.as_user(self.command())], stdout=log, stderr=log)

    def stop(self, how: signal.Signals | None = None) -> None:
        if self._process is None:
            return
        self._process.send_signal(how or self.stop_signal)
        self._process.wait(60)
        self._process = None

    def restart(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Kills the server and starts it again on the same port with the same data."""
        self.stop(how)
        self.start()

    def remove(self) -> None:
        self.stop()
        memory_folders.remove(self.folder)

    def run(self, command: list[str]) -> None:
        done = subprocess.run(self.as_user(command), capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")

    def as_user(self, command: list[str]) -> list[str]:
        if os.geteuid() != 0:
            return command
        account = pwd.getpwnam(self.user)
        shutil.chown(self.folder, account.pw_uid, account.pw_gid)
        return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", *command]

    def _wait_until_ready(self, deadline: float) -> None:
        while True:
            try:
                self.create_database()
            except Exception as error:
                dead = self._process is not None and self._process.poll() is not None
                if dead or time.monotonic() > deadline:
                    text = (self.folder / "log").read_text(errors="replace")[-2000:]
                    raise DiedError(f"{self.package} did not start: {error}\n{text}") from error
                time.sleep(0.05)
            else:
                return


class PostgreSQL(Server):
    package = "postgresql"
    user = "postgres"
    stop_signal = signal.SIGINT  # fast shutdown: does not wait for clients to leave
    drop_database = "drop database {} with (force)"

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/homing"

    def prepare(self) -> None:
        self.run([self._program("initdb"), "-D", str(self.folder / "data"), "-U", "postgres", "-A", "trust", "-N"])

    def command(self) -> list[str]:
        options = [
            "listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}", "max_connections=100",
            "min_wal_size=32MB", "max_wal_size=128MB",  # of memory, mostly
        ]  # fmt: skip
        flags = [part for option in (*options, *self.settings) for part in ("-c", option)]
        return [self._program("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), *flags]

    def create_database(self) -> None:
        import psycopg

        where = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"
        with psycopg.connect(where, autocommit=True, connect_timeout=5) as connection:
            if connection.execute("select 1 from pg_database where datname = 'homing'").fetchone() is None:
                connection.execute("create database homing")

    @staticmethod
    def _program(name: str) -> str:
        # Debian keeps them out of the PATH.
        found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
        path = str(found[-1]) if found else shutil.which(name)
        if path is None:
            missing(PostgreSQL.package)
        return path


class MariaDB(Server):
    package = "mariadb-server"
    user = "mysql"

    @property
    def url(self) -> str:
        return f"mysql+pymysql://homing@127.0.0.1:{self.port}/homing"

    def prepare(self) -> None:
        self._program("mariadbd")
        installer = shutil.which("mariadb-install-db") or shutil.which("mysql_install_db")
        if installer is None:
            missing(self.package)
        # Not in the folder of all programs: each of these servers removes the temporary tables it finds there.
        self.run(["mkdir", f"{self.folder}/temporary"])
        self.run(
            [installer, "--no-defaults", f"--datadir={self.folder}/data", "--auth-root-authentication-method=normal",
             f"--tmpdir={self.folder}/temporary"]
        )  # fmt: skip

    def command(self) -> list[str]:
        options = [
            f"--datadir={self.folder}/data", f"--port={self.port}", "--bind-address=127.0.0.1",
            f"--socket={self.folder}/socket", f"--pid-file={self.folder}/pid", "--skip-name-resolve",
            f"--tmpdir={self.folder}/temporary", *(f"--{option}" for option in self.settings),
        ]  # fmt: skip
        return [self._program("mariadbd"), "--no-defaults", *options]

    def create_database(self) -> None:
        import pymysql

        with pymysql.connect(unix_socket=f"{self.folder}/socket", user="root", connect_timeout=5) as connection:
            cursor = connection.cursor()
            cursor.execute("create database if not exists homing")
            cursor.execute("create user if not exists homing@'127.0.0.1'")
            cursor.execute("grant all on *.* to homing@'127.0.0.1'")

    @staticmethod
    def _program(name: str) -> str:
        path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin") or shutil.which("mysqld")
        if path is None:
            missing(MariaDB.package)
        return path


def launch(server: Server) -> Server:
    """Starts a fresh server."""
    try:
        server.prepare()
        server.start()
    except BaseException:
        server.remove()
        raise
    return server


def missing(package: str) -> NoReturn:
    """A server that is not installed: skips at home, fails where CI=true."""
    text = f"{package} is not installed: scripts/setup.sh --services installs it"
    if os.environ.get("CI") == "true":
        pytest.fail(text)
    pytest.skip(text)
