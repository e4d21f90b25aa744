"""The guards of TLS: who is spoken to, and that nothing is sent in plain text where that was said."""

from __future__ import annotations

from mutants.guard import guard

_SQL, _SHARED, _RABBITMQ = "stores/sql/tls.py", "stores/tls.py", "stores/rabbitmq/options.py"
_DATABASES, _BROKERS = "tests/tls/test_databases.py::", "tests/tls/test_brokers.py::"
_CONTRADICTS = "test_a_url_that_contradicts_itself_is_refused_without_connecting"

GUARDS = (
    guard(
        "where TLS is required, no mode is allowed that may go on without it",
        _SQL,
        'if backend != "mysql" and mode not in _SAFE_MODES:',
        'if backend != "mysql" and not mode:',
        f"{_DATABASES}{_CONTRADICTS}[2]",
    ),
    guard(
        "an option that is in a URL twice is refused",
        "stores/options.py",
        "        if times > 1:\n",
        "        if times > 9:\n",
        "tests/unit/stores/test_open_store.py::test_an_option_of_the_driver_that_is_there_twice_is_refused",
    ),
    guard(
        "the environment does not take TLS away",
        _SQL,
        'return url.update_query_dict({"sslmode": mode}), {"gssencmode": "disable"}',
        'return url, {"gssencmode": "disable"}',
        f"{_DATABASES}test_postgresql_with_require_tls_alone_is_spoken_to_by_tls",
    ),
    guard(
        "MariaDB's driver does not go on without TLS where it is required",
        _SQL,
        'return url, {"ssl": _mysql_context(tls)} if said or required else {}',
        'return url, {"ssl": _mysql_context(tls)} if said else {}',
        f"{_DATABASES}test_who_takes_tls_away_from_mariadb_hears_nothing",
    ),
    guard(
        "who is given an authority believes nobody else",
        _SQL,
        "known = tls.ssl_ca is not None",
        "known = False",
        f"{_DATABASES}test_a_mariadb_that_cannot_prove_who_it_is_is_refused[other authority]",
    ),
    guard(
        "a certificate of another host is not believed",
        _SHARED,
        "context.check_hostname = verify and check_hostname",
        "context.check_hostname = False",
        f"{_DATABASES}test_a_mariadb_that_cannot_prove_who_it_is_is_refused[wrong host]",
        f"{_BROKERS}test_who_cannot_prove_to_be_the_broker_hears_nothing[wrong host-mismatch]",
    ),
    guard(
        "a certificate that is not believed is not taken for a server that is away",
        "stores/sql/database.py",
        "            fault = tls_fault(error, self._url)\n",
        "            fault = None\n",
        f"{_DATABASES}test_a_postgresql_that_cannot_prove_who_it_is_is_refused[expired]",
    ),
    guard(
        "nor for a broker that is away",
        "stores/rabbitmq/connection.py",
        "        fault = find_handshake_fault(reason)\n",
        "        fault = None\n",
        f"{_BROKERS}test_who_cannot_prove_to_be_the_broker_hears_nothing[expired-expired]",
    ),
    guard(
        "where TLS is required, a broker is not spoken to without it",
        _RABBITMQ,
        '    if required:\n        raise ConfigurationError("require_tls needs an amqps:// URL',
        '    if required and not given:\n        raise ConfigurationError("require_tls needs an amqps:// URL',
        f"{_BROKERS}{_CONTRADICTS}[0]",
    ),
    guard(
        "a private key that others can read is not used",
        _SHARED,
        "    if found.st_mode & others:\n",
        "    if not found.st_mode:\n",
        f"{_BROKERS}test_a_key_that_others_can_read_is_refused",
    ),
)
