"""The options that a URL may pass to a database's driver: those for reaching a server, and for doing so safely.

All others are refused. With some options of drivers, a false server could read files of this machine (`local_infile`);
others run statements, or load settings from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping

_POSTGRESQL_TLS = (
    "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "ssl_min_protocol_version", "channel_binding",
)  # fmt: skip
_POSTGRESQL = (
    "application_name", "connect_timeout", "host", "hostaddr", "keepalives", "keepalives_count", "keepalives_idle",
    "keepalives_interval", "load_balance_hosts", "port", "target_session_attrs", "tcp_user_timeout",
)  # fmt: skip
_MYSQL_TLS = (
    "ssl_ca", "ssl_cert", "ssl_key", "ssl_disabled", "ssl_verify_cert", "ssl_verify_identity",
)  # fmt: skip
_MYSQL = ("connect_timeout", "read_timeout", "unix_socket", "write_timeout")

#: What may stand in the URL of each database, by the names its driver has for it.
ALLOWED: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("postgresql", "postgres"), frozenset((*_POSTGRESQL, *_POSTGRESQL_TLS))),
    **dict.fromkeys(("mysql", "mariadb"), frozenset((*_MYSQL, *_MYSQL_TLS))),
    "sqlite": frozenset(),
}
