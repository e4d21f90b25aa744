"""The connection type `homing`: how its form becomes a store URL.

Either the password field holds the whole URL, or `scheme` is set and the URL is put together from the fields.

A connection of the Microsoft provider, of type `azure_service_bus`, is a namespace with many stores. Which one is said
behind its id, `bus?queue=orders`, because the provider's form has no place for it; or in its extra.
"""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import quote, urlencode

from homing.errors import ConfigurationError
from homing.store import STORE_KINDS
from homing.store_ref import ENVIRONMENT, StoreRef
from homing.stores import check_scheme
from homing.stores.options import split_query

#: The schemes the form offers: of all stores but those in memory, which no two processes share.
SCHEMES = tuple(scheme for kind, known in STORE_KINDS.items() if kind != "memory" for scheme in known.schemes)

#: The type of connection that is a store of ours.
OURS = "homing"

_SERVICE_BUS = "azure_service_bus"


class ConnectionFields(Protocol):
    """What of an Airflow connection is looked at; both of Airflow's own Connection classes have it."""

    conn_id: Any
    conn_type: Any
    host: Any
    login: Any
    password: Any
    schema: Any
    port: Any

    @property
    def extra_dejson(self) -> Any: ...


def connection_url(connection: ConnectionFields, options: str = "", *, in_environment: bool = True) -> str:
    """The store URL of a connection, with what stood behind its id. A secret: never log it.

    Without `in_environment`, as in the API server, a connection that says `env:NAME` names none: who may write
    connections would learn of what is in the environment of that process, and have it opened.
    Raises ConfigurationError when its fields make none.
    """
    fields = dict(connection.extra_dejson or {})
    if connection.conn_type == _SERVICE_BUS:
        return _service_bus_url(connection, fields, split_query(options))
    if connection.conn_type != OURS:
        # The password of a connection of another type is not a store's URL, and must not be read.
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} is of type {connection.conn_type!r}: a store is named by one of "
            f"type {OURS!r} or {_SERVICE_BUS!r}"
        )
    if options:
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} names its store itself: only one of type {_SERVICE_BUS} has "
            "?queue= behind its id"
        )
    if fields.get("scheme"):
        url = _put_together(connection, fields)
        check_scheme(url)
        return url
    if not connection.password:
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} names no store: put its URL into the password field, or set scheme"
        )
    reference = StoreRef(connection.password)
    if reference.kind == ENVIRONMENT and not in_environment:
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} names its store by env:NAME, which only tasks look up: put its URL "
            "into the password field to have it opened here"
        )
    return reference.resolve()


def connection_bus(connection: ConnectionFields) -> str:
    """What the classes of `homing.bus` connect by: a connection string, or the URL of a database. A secret too.

    Raises ConfigurationError when its fields make none.
    """
    if connection.conn_type == _SERVICE_BUS:
        return _connection_string(connection)
    where, _, query = connection_url(connection).partition("?")
    options = urlencode({name: value for name, value in split_query(query).items() if name != "store"})
    return f"{where}?{options}" if options else where


def _connection_string(connection: ConnectionFields) -> str:
    """The Microsoft provider keeps it in the schema field."""
    if not connection.schema:
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} of type {_SERVICE_BUS} has no connection string; to log in by "
            "identity, as its other fields would, is not offered"
        )
    return str(connection.schema)


def _service_bus_url(connection: ConnectionFields, fields: dict[str, Any], options: dict[str, str]) -> str:
    from homing.stores.servicebus.options import servicebus_url

    connection_string = _connection_string(connection)
    places = {"queue", "topic", "subscription"}
    named = options if places & options.keys() else fields
    queue = named.get("queue") or named.get("topic")
    if not queue:
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} of type {_SERVICE_BUS} is a store by the name of a queue, as in "
            f"{connection.conn_id}?queue=orders or {connection.conn_id}?topic=orders&subscription=billing"
        )
    more = urlencode({name: value for name, value in options.items() if name not in places})
    return servicebus_url(connection_string, queue, named.get("subscription")) + (f"&{more}" if more else "")


def _put_together(connection: ConnectionFields, fields: dict[str, Any]) -> str:
    scheme, path = str(fields["scheme"]), connection.schema or ""
    query = "&".join(
        filter(None, [urlencode({"store": fields["store"]}) if fields.get("store") else "", _options(fields)])
    )
    if scheme.partition("+")[0] == "sqlite":
        where = f"/{path or connection.host or ''}"
    else:
        if not connection.host:
            raise ConfigurationError(f"the connection {connection.conn_id!r} has no host")
        where = f"{_credentials(connection)}{connection.host}{f':{connection.port}' if connection.port else ''}"
        where += f"/{quote(path, safe='')}" if path else ""
    return f"{scheme}://{where}{'?' if query else ''}{query}"


def _credentials(connection: ConnectionFields) -> str:
    if not connection.login and not connection.password:
        return ""
    password = f":{quote(connection.password, safe='')}" if connection.password else ""
    return f"{quote(connection.login or '', safe='')}{password}@"


def _options(fields: dict[str, Any]) -> str:
    return str(fields.get("options") or "").lstrip("?&")
