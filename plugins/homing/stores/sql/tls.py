"""TLS to a database: turns what a URL says into options of the driver, and tells which errors are about TLS."""

from __future__ import annotations

import socket
import ssl
import struct
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from homing.errors import ConfigurationError
from homing.stores.options import option_names, read_options
from homing.stores.tls import client_context, find_handshake_fault

# libpq's modes in which nothing is ever sent in plain text.
_SAFE_MODES = ("require", "verify-ca", "verify-full")
# What libpq says when TLS is what failed. It is not translated, and not said of a connection that merely broke.
_LIBPQ = (
    "certificate verify failed", "does not match host name", "does not support SSL", "root certificate",
    "certificate file", "private key", "valid client certificate", "alert unknown ca", "alert bad certificate",
    "alert certificate", "could not get server's host name", "self-signed certificate",
)  # fmt: skip
_VERIFY_FAILED = "certificate verify failed"
_MYSQL_TLS = 2026  # "SSL is required but the server doesn't support it", and the like
_SSL_REQUEST = struct.pack("!ii", 8, 80877103)
_PROBE = 5.0  # seconds


@dataclass(frozen=True)
class MysqlTls:
    """TLS to MariaDB or MySQL, as a URL asks for it. Without `ssl_ca`, the URL has to ask for checks, too."""

    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None
    ssl_disabled: bool = False
    ssl_verify_cert: bool | None = None
    ssl_verify_identity: bool | None = None


def refuse_plain_text(url: URL) -> None:
    """Raises ConfigurationError for a URL by which something could be sent in plain text. Connects to nothing."""
    backend = url.get_backend_name()
    if backend == "sqlite":
        raise ConfigurationError("require_tls is for stores on a server: a SQLite store is a file")
    if "unix_socket" in url.query or any(not place or place.startswith(("/", "@")) for place in _hosts(url)):
        raise ConfigurationError("require_tls needs a host in the store's URL: a local socket has no TLS")
    mode = url.query.get("sslmode", _SAFE_MODES[0])
    if backend != "mysql" and mode not in _SAFE_MODES:
        raise ConfigurationError(f"require_tls needs sslmode={', '.join(_SAFE_MODES)}, got {mode!r:.60}")
    if read_options(MysqlTls, url.query).ssl_disabled:
        raise ConfigurationError("require_tls and ssl_disabled=true contradict each other")


def _hosts(url: URL) -> list[str]:
    """All the hosts that may be connected to: libpq takes several, and one that is a local socket speaks no TLS."""
    said = url.query.get("host") or url.host or ""
    return [place.strip() for text in ([said] if isinstance(said, str) else said) for place in text.split(",")]


def driver_settings(url: URL, *, required: bool) -> tuple[URL, dict[str, Any]]:
    """The URL, and what the driver is told besides it, so that TLS is as the URL says.

    MariaDB's driver gets a context of ours: between SQLAlchemy and it, `ssl_verify_cert` would lose the authority of
    `ssl_ca`, and `false` be taken for true.
    """
    if required:
        refuse_plain_text(url)
    if url.get_backend_name() == "postgresql" and required:
        # Said outright: the environment of the process has a say in what is left out.
        mode = str(url.query.get("sslmode", _SAFE_MODES[0]))
        return url.update_query_dict({"sslmode": mode}), {"gssencmode": "disable"}
    if url.get_backend_name() != "mysql":
        return url, {}
    tls, said = read_options(MysqlTls, url.query), url.query.keys() & set(option_names(MysqlTls)) - {"ssl_disabled"}
    url = url.difference_update_query(option_names(MysqlTls))
    if tls.ssl_disabled:
        return url, {"ssl_disabled": True}
    return url, {"ssl": _mysql_context(tls)} if said or required else {}


def _mysql_context(tls: MysqlTls) -> ssl.SSLContext:
    known = tls.ssl_ca is not None
    identity = known if tls.ssl_verify_identity is None else tls.ssl_verify_identity
    verify = identity or (known if tls.ssl_verify_cert is None else tls.ssl_verify_cert)
    return client_context(
        ca_file=tls.ssl_ca, cert_file=tls.ssl_cert, key_file=tls.ssl_key, verify=verify, check_hostname=identity
    )


def tls_fault(error: SQLAlchemyError, url: URL) -> str | None:
    """What is wrong with TLS, if that is why connecting failed; otherwise None."""
    original: Any = error.orig if isinstance(error, DBAPIError) else None
    if original is None:
        return None
    if url.get_backend_name() == "mysql":
        first = original.args[0] if original.args else None
        return find_handshake_fault(original) or (str(original.args[-1]) if first == _MYSQL_TLS else None)
    text = str(original)
    if getattr(original, "sqlstate", None) is not None or not any(words in text for words in _LIBPQ):
        return None
    why = _ask_why(url) if _VERIFY_FAILED in text else None
    return f"{text.strip()} ({why})" if why else text.strip()


def _ask_why(url: URL) -> str | None:
    """What libpq does not tell: why the certificate is not believed. Nothing is sent but the wish to speak TLS."""
    root = str(url.query.get("sslrootcert", ""))
    try:
        context = ssl.create_default_context(cafile=None if root in ("", "system") else root)
        context.check_hostname = False
        with socket.create_connection((str(url.host), url.port or 5432), timeout=_PROBE) as plain:
            plain.sendall(_SSL_REQUEST)
            if plain.recv(1) != b"S":
                return None
            with context.wrap_socket(plain):
                return None
    except (OSError, ValueError) as error:
        return find_handshake_fault(error)
