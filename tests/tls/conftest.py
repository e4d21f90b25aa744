"""Servers that speak TLS, with certificates that the tests made."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from demo.ports import free_port
from homing import open_store
from homing.errors import StoreUnavailableError, TlsError
from tests.certificates import Authority
from tests.rabbitmq_server import RabbitMQ
from tests.servers import MariaDB, PostgreSQL, Server, launch

PASSWORD = "hunter2hunter2"  # noqa: S105
HOSTS = ("127.0.0.1", "localhost")


class Trust:
    """One authority that clients believe, and one that they do not."""

    def __init__(self, folder: Path) -> None:
        self.ours, self.other = Authority(folder / "ours", "ca"), Authority(folder / "other", "ca")
        self.servers = {
            "right": self.ours.issue("right", *HOSTS),
            "wrong host": self.ours.issue("elsewhere", "elsewhere.example"),
            "expired": self.ours.issue("expired", *HOSTS, expired=True),
            "other authority": self.other.issue("right", *HOSTS),
        }
        self.client, self.client_key = self.ours.issue("homing")
        self.strange_client, self.strange_key = self.other.issue("homing")

    @property
    def ca(self) -> str:
        return str(self.ours.file)


def install(server: Server, trust: Trust, which: str) -> None:
    """The server's certificate from now on; its user alone can read the key."""
    for source, name in zip(
        (*trust.servers[which], trust.ours.file), ("server.pem", "server.key", "ca.pem"), strict=True
    ):
        path = server.folder / name
        shutil.copyfile(source, path)
        path.chmod(0o600)
        if os.geteuid() == 0 and server.user:
            account = pwd.getpwnam(server.user)
            os.chown(path, account.pw_uid, account.pw_gid)


class TlsPostgreSQL(PostgreSQL):
    """Lets people in by password, and only by TLS; who comes as `certified` has to show a certificate."""

    def __init__(self, trust: Trust) -> None:
        super().__init__(in_memory=True)
        self.trust = trust
        files = {"ssl_cert_file": "server.pem", "ssl_key_file": "server.key", "ssl_ca_file": "ca.pem"}
        self.settings = ["ssl=on", *(f"{name}={self.folder}/{file}" for name, file in files.items())]

    def prepare(self) -> None:
        super().prepare()
        install(self, self.trust, "right")
        (self.folder / "data" / "pg_hba.conf").write_text(
            "local all postgres trust\n"
            "hostssl all certified 127.0.0.1/32 trust clientcert=verify-ca\n"
            "hostssl all homing 127.0.0.1/32 scram-sha-256\n"
        )

    def create_database(self) -> None:
        import psycopg

        where = f"host={self.folder} port={self.port} user=postgres dbname=postgres"
        with psycopg.connect(where, autocommit=True, connect_timeout=5) as connection:
            if connection.execute("select 1 from pg_roles where rolname = 'homing'").fetchone() is None:
                connection.execute(f"create role homing login password '{PASSWORD}'")
                connection.execute("create role certified login in role homing")
                connection.execute("create database homing owner homing")

    def show(self, which: str) -> None:
        import psycopg

        install(self, self.trust, which)
        where = f"host={self.folder} port={self.port} user=postgres dbname=postgres"
        with psycopg.connect(where, autocommit=True) as connection:
            connection.execute("select pg_reload_conf()")


class TlsMariaDB(MariaDB):
    """Speaks TLS to those who ask for it; `homing` is let in by it alone, `certified` with a certificate."""

    def __init__(self, trust: Trust) -> None:
        super().__init__(in_memory=True)
        self.trust = trust
        files = {"ssl-cert": "server.pem", "ssl-key": "server.key", "ssl-ca": "ca.pem"}
        self.settings = [
            "innodb-buffer-pool-size=64M",
            *(f"{name}={self.folder}/{file}" for name, file in files.items()),
        ]

    def prepare(self) -> None:
        super().prepare()
        install(self, self.trust, "right")

    def create_database(self) -> None:
        super().create_database()
        self._administer(
            f"create user if not exists secure@'127.0.0.1' identified by '{PASSWORD}' require ssl",
            f"create user if not exists certified@'127.0.0.1' identified by '{PASSWORD}' require x509",
            "grant all on homing.* to secure@'127.0.0.1'",
            "grant all on homing.* to certified@'127.0.0.1'",
        )

    def show(self, which: str) -> None:
        install(self, self.trust, which)
        self._administer("flush ssl")

    def _administer(self, *statements: str) -> None:
        import pymysql

        with pymysql.connect(unix_socket=f"{self.folder}/socket", user="root") as connection:
            for statement in statements:
                connection.cursor().execute(statement)


class TlsRabbitMQ(RabbitMQ):
    """Speaks TLS on `tls_port`, to those who show a certificate of the authority."""

    def __init__(self, trust: Trust) -> None:
        super().__init__()
        self.tls_port = free_port()
        self.trust = trust

    def prepare(self) -> None:
        super().prepare()
        install(self, self.trust, "right")
        with (self.folder / "rabbitmq.conf").open("a") as settings:
            settings.write(f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}\n")
            for name, file in (("cacertfile", "ca.pem"), ("certfile", "server.pem"), ("keyfile", "server.key")):
                settings.write(f"ssl_options.{name} = {self.folder}/{file}\n")
            settings.write("ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true\n")


@pytest.fixture(scope="session")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return Trust(tmp_path_factory.mktemp("trust"))


@pytest.fixture(scope="session")
def tls_postgresql(trust: Trust) -> Iterator[TlsPostgreSQL]:
    server = TlsPostgreSQL(trust)
    launch(server)
    yield server
    server.remove()


@pytest.fixture(scope="session")
def tls_mariadb(trust: Trust) -> Iterator[TlsMariaDB]:
    server = TlsMariaDB(trust)
    launch(server)
    yield server
    server.remove()


@pytest.fixture(scope="session")
def tls_rabbitmq(trust: Trust) -> Iterator[TlsRabbitMQ]:
    server = TlsRabbitMQ(trust)
    launch(server)
    yield server
    server.remove()


class Impostor:
    """Stands between a client and a server: `answer` is called for each client, `heard` is all it was told."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self.heard = bytearray()
        self.clients = 0
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.clients += 1
                client.settimeout(10)
                with client, suppress(OSError):
                    self._answer(client)
                    while chunk := client.recv(65_536):
                        self.heard += chunk

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(15)

    def __enter__(self) -> Impostor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_refused(url: str, words: str) -> None:
    with open_store(url) as store, pytest.raises(TlsError) as caught:
        store.store("secret")
    assert not isinstance(caught.value, StoreUnavailableError), "nobody waits for a certificate"
    assert words.lower() in str(caught.value).lower()
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
