"""TLS towards PostgreSQL and MariaDB: only who the URL means is spoken to, and never in plain text."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from homing import open_store
from homing.errors import ConfigurationError, StoreError, StoreUnavailableError
from homing.stores.sql import SqlStore
from tests.servers import MariaDB, PostgreSQL
from tests.tls.conftest import PASSWORD, Impostor, TlsMariaDB, TlsPostgreSQL, Trust, check_refused

pytestmark = pytest.mark.services


def pg_url(port: int, user: str = f"homing:{PASSWORD}", host: str = "127.0.0.1", **options: str) -> str:
    return f"postgresql://{user}@{host}:{port}/homing?{_query(options)}"


def my_url(port: int, user: str = f"secure:{PASSWORD}", host: str = "127.0.0.1", **options: str) -> str:
    return f"mysql://{user}@{host}:{port}/homing?{_query(options)}"


def _query(options: dict[str, str]) -> str:
    return "&".join(f"{name}={value}" for name, value in {"store": "orders", "timeout": "10", **options}.items())


def check_encrypted(url: str) -> None:
    """A message goes there and back, through the store and its ledger, on connections that are encrypted."""
    with open_store(url) as store:
        assert isinstance(store, SqlStore)
        message_id = store.store("secret")
        while (message := store.retrieve()) is not None:
            store.acknowledge(message)
            if message.id == message_id:
                break
        assert store.ledger()._database is store._database, "the ledger connects as the store does"
        asked = (
            "select ssl::text from pg_stat_ssl where pid = pg_backend_pid()"
            if "postgresql" in url
            else ("show session status like 'Ssl_cipher'")
        )
        answer: Any = store._database.read(lambda connection: connection.exec_driver_sql(asked).one())
    assert answer[-1] not in ("", "false"), "it went in plain text"


FAULTS = {
    "wrong host": ("does not match", "mismatch"),
    "expired": ("expired", "expired"),
    "other authority": ("unable to get local issuer", "unable to get local issuer"),
}


@contextmanager
def showing(server: TlsPostgreSQL | TlsMariaDB, which: str) -> Iterator[None]:
    server.show(which)
    try:
        yield
    finally:
        server.show("right")


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_postgresql_is_spoken_to_by_tls(tls_postgresql: TlsPostgreSQL, trust: Trust, mode: str) -> None:
    options = {} if mode == "require" else {"sslrootcert": trust.ca}
    check_encrypted(pg_url(tls_postgresql.port, sslmode=mode, require_tls="true", **options))


def test_postgresql_with_require_tls_alone_is_spoken_to_by_tls(
    tls_postgresql: TlsPostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSSLMODE", "disable")
    check_encrypted(pg_url(tls_postgresql.port, require_tls="true"))


@pytest.mark.parametrize("which", FAULTS)
def test_a_postgresql_that_cannot_prove_who_it_is_is_refused(
    tls_postgresql: TlsPostgreSQL, trust: Trust, which: str
) -> None:
    with showing(tls_postgresql, which):
        check_refused(pg_url(tls_postgresql.port, sslmode="verify-full", sslrootcert=trust.ca), FAULTS[which][0])


def test_a_client_certificate_lets_in_to_postgresql(tls_postgresql: TlsPostgreSQL, trust: Trust) -> None:
    files = {"sslcert": str(trust.client), "sslkey": str(trust.client_key)}
    secure = {"sslmode": "verify-full", "sslrootcert": trust.ca}
    check_encrypted(pg_url(tls_postgresql.port, "certified", **secure, **files))

    check_refused(pg_url(tls_postgresql.port, "certified", **secure), "certificate")
    strange = {"sslcert": str(trust.strange_client), "sslkey": str(trust.strange_key)}
    check_refused(pg_url(tls_postgresql.port, "certified", **secure, **strange), "unknown ca")


def test_a_key_that_others_can_read_is_refused(
    tls_postgresql: TlsPostgreSQL, tls_mariadb: TlsMariaDB, trust: Trust, tmp_path: Path
) -> None:
    key = tmp_path / "open.key"
    key.write_bytes(trust.client_key.read_bytes())
    key.chmod(0o644)
    check_refused(
        pg_url(tls_postgresql.port, sslmode="require", sslcert=str(trust.client), sslkey=str(key)),
        "group or world access",
    )
    with pytest.raises(ConfigurationError, match="chmod 600"):
        open_store(my_url(tls_mariadb.port, ssl_ca=trust.ca, ssl_cert=str(trust.client), ssl_key=str(key)))


@pytest.mark.parametrize("verified", ["identity", "certificate", "not at all"])
def test_mariadb_is_spoken_to_by_tls(tls_mariadb: TlsMariaDB, trust: Trust, verified: str) -> None:
    options = {
        "identity": {"ssl_ca": trust.ca},
        "certificate": {"ssl_ca": trust.ca, "ssl_verify_identity": "false"},
        "not at all": {},
    }[verified]
    check_encrypted(my_url(tls_mariadb.port, require_tls="true", **options))


@pytest.mark.parametrize("which", FAULTS)
def test_a_mariadb_that_cannot_prove_who_it_is_is_refused(tls_mariadb: TlsMariaDB, trust: Trust, which: str) -> None:
    with showing(tls_mariadb, which):
        check_refused(my_url(tls_mariadb.port, ssl_ca=trust.ca), FAULTS[which][1])
        check_refused(
            my_url(tls_mariadb.port, ssl_ca=trust.ca, ssl_verify_identity="true", ssl_verify_cert="true"),
            FAULTS[which][1],
        )


def test_a_client_certificate_lets_in_to_mariadb(tls_mariadb: TlsMariaDB, trust: Trust) -> None:
    user = f"certified:{PASSWORD}"
    files = {"ssl_cert": str(trust.client), "ssl_key": str(trust.client_key)}
    check_encrypted(my_url(tls_mariadb.port, user, ssl_ca=trust.ca, **files))

    with open_store(my_url(tls_mariadb.port, user, ssl_ca=trust.ca)) as store, pytest.raises(StoreError, match="1045"):
        store.store("secret")


def test_a_server_without_tls_is_refused(postgresql: PostgreSQL, mariadb: MariaDB) -> None:
    check_refused(pg_url(postgresql.port, f"postgres:{PASSWORD}", require_tls="true"), "does not support SSL")
    check_refused(my_url(mariadb.port, f"homing:{PASSWORD}", require_tls="true"), "server doesn't support it")


def test_who_takes_tls_away_from_postgresql_hears_nothing() -> None:
    def answer(client: socket.socket) -> None:
        assert client.recv(8) == struct.pack("!ii", 8, 80877103), "the wish to speak TLS, and nothing else"
        client.sendall(b"N")

    with Impostor(answer) as impostor:
        check_refused(pg_url(impostor.port, require_tls="true"), "does not support SSL")
        check_refused(pg_url(impostor.port, sslmode="verify-full", require_tls="true"), "SSL")
    assert impostor.clients
    assert impostor.heard == b""


def test_who_takes_tls_away_from_mariadb_hears_nothing(tls_mariadb: TlsMariaDB) -> None:
    ssl_bit = 0x0800

    def answer(client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", tls_mariadb.port)) as server:
            greeting = bytearray(server.recv(65_536))
        place = greeting.index(b"\0", 5) + 1 + 4 + 8 + 1  # behind the version, thread, first part of the salt, filler
        flags = int.from_bytes(greeting[place : place + 2], "little")
        assert flags & ssl_bit
        greeting[place : place + 2] = (flags & ~ssl_bit).to_bytes(2, "little")
        client.sendall(greeting)

    with Impostor(answer) as impostor:
        check_refused(my_url(impostor.port, require_tls="true"), "server doesn't support it")
    assert impostor.clients
    assert impostor.heard == b""


@pytest.mark.parametrize(
    "url",
    [
        *(pg_url(1, sslmode=mode, require_tls="true") for mode in ("disable", "allow", "prefer", "REQUIRE")),
        f"{pg_url(1, sslmode='require', require_tls='true')}&sslmode=disable",
        pg_url(1, host="", require_tls="true"),
        pg_url(1, require_tls="true").replace("127.0.0.1:1", "") + "&host=/var/run/postgresql",
        pg_url(1, require_tls="true").replace("127.0.0.1:1", "") + "&host=db,/var/run/postgresql",
        pg_url(1, require_tls="true").replace("127.0.0.1:1", "") + "&host=db&host=/var/run/postgresql",
        pg_url(1, require_tls="true").replace("127.0.0.1:1", "") + "&host=db,",
        my_url(1, ssl_disabled="true", require_tls="true"),
        my_url(1, unix_socket="/run/mysqld.sock", require_tls="true"),
        "sqlite:///inbox.db?require_tls=true",
        pg_url(1, require_tls="yes"),
        my_url(1, ssl_verify_cert="1"),
        my_url(1, ssl_ca="/no/such/file.pem"),
    ],
    ids=count(),
)
def test_a_url_that_contradicts_itself_is_refused_without_connecting(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("it connected"))
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert PASSWORD not in str(caught.value)


def test_an_outage_of_a_server_with_tls_is_still_an_outage(tls_postgresql: TlsPostgreSQL, trust: Trust) -> None:
    url = pg_url(tls_postgresql.port, sslmode="verify-full", sslrootcert=trust.ca, require_tls="true")
    with open_store(url) as store:
        store.store("before")
        tls_postgresql.stop()
        try:
            with pytest.raises(StoreUnavailableError):
                store.store("meanwhile")
        finally:
            tls_postgresql.start()
        store.store("after")


def test_a_hostssl_only_server_lets_nobody_in_by_plain_text(tls_postgresql: TlsPostgreSQL) -> None:
    with open_store(pg_url(tls_postgresql.port, sslmode="disable")) as store, pytest.raises(StoreError, match="pg_hba"):
        store.store("x")
