"""Connection: what an Airflow connection says, read from the two forms that Airflow reads: a URI, and JSON.

What handlers raise may quote its secrets, and is kept: `hide_secrets` takes them out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from homing.errors import MissingConnectionError

_TEXTS = ("conn_type", "host", "login", "password", "schema")
_FIELDS = frozenset({*_TEXTS, "port", "extra", "description"})
# What of an extra is a secret, by its name.
_SECRET = re.compile(r"pass|secret|token|key|credential|auth|private|signature", re.IGNORECASE)
# What is shorter may stand anywhere.
_SHORTEST = 5
_HIDDEN = "***"
_MOST_SCHEMES = 2


@dataclass(frozen=True)
class Connection:
    """An Airflow connection, or what stands for one. Its repr shows no secret."""

    conn_id: str
    conn_type: str | None = None
    host: str | None = None
    port: int | None = None
    schema: str | None = None
    login: str | None = None
    password: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extra", MappingProxyType(dict(self.extra)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.conn_id!r} of type {self.conn_type!r}>"

    def as_text(self) -> str:
        """The JSON of it. A secret. Raises TypeError or ValueError for an extra that JSON cannot hold."""
        return json.dumps({**{name: getattr(self, name) for name in (*_TEXTS, "port")}, "extra": dict(self.extra)})

    def __reduce__(self) -> Any:
        raise TypeError(f"the connection {self.conn_id!r} is not pickled: it holds secrets, and is looked up anew")


def variable_of(conn_id: str) -> str:
    """The environment variable of a connection, which is Airflow's own."""
    return f"AIRFLOW_CONN_{conn_id.upper()}"


def read_connection(conn_id: str, text: str) -> Connection:
    """The connection that a URI or JSON stands for. Raises MissingConnectionError, which repeats nothing of it."""
    try:
        fields = _read_json(text) if text.strip().startswith("{") else _read_uri(text.strip())
        found = _made(conn_id, fields)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, _UnreadableError) else "it is neither"
        # Without the cause: its text, and the lines that it shows, may have a part of the password in them.
        raise MissingConnectionError(
            f"the connection {conn_id!r} cannot be read as a URI or as JSON ({why}): write {variable_of(conn_id)} as "
            'crm://login:password@host:443/schema?option=1, or as {"conn_type": "http", "host": …}, or mend it in '
            "Airflow. No message has failed"
        ) from None
    _remember_secrets(found)
    return found


class _UnreadableError(ValueError):
    """Its text repeats nothing of what was read."""


def _read_json(text: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError:
        raise _UnreadableError("it is not valid JSON") from None
    unknown = sorted(fields.keys() - _FIELDS)
    if unknown:
        raise _UnreadableError(f"it has fields that a connection has not; it has {', '.join(sorted(_FIELDS))}")
    return dict(fields)


def _read_uri(uri: str) -> Mapping[str, Any]:
    kind, separator, rest = uri.partition("://")
    if not separator or uri.count("://") > _MOST_SCHEMES:
        raise _UnreadableError("it is neither")
    protocol, inner, place = rest.partition("://")
    if not inner:
        protocol, place = "", rest
    elif "@" in protocol or ":" in protocol:
        raise _UnreadableError("it has a second scheme in the wrong place")
    parts = urlsplit(f"//{place}")
    try:
        port = parts.port
    except ValueError:
        raise _UnreadableError("its port is no number, or a character of its password is not written as %XX") from None
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    host = _host_of(parts.netloc, parts.hostname)
    return {
        "conn_type": kind.lower(),
        "host": f"{protocol.lower()}://{host}" if protocol and host else host,
        "port": port,
        "schema": unquote(parts.path[1:]),
        "login": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "extra": query.get("__extra__", query),
    }


def _host_of(netloc: str, hostname: str | None) -> str:
    host = unquote(hostname or "")
    if "/" not in host:
        return host
    # The path of a socket, of which the case counts.
    return unquote(netloc.rpartition("@")[2].partition(":")[0])


def _made(conn_id: str, fields: Mapping[str, Any]) -> Connection:
    texts = {name: fields.get(name) or None for name in _TEXTS}
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise _UnreadableError(f"its {name} is no text")
    kind = texts.pop("conn_type")
    port = fields.get("port") or None
    if isinstance(port, bool) or not (port is None or str(port).isdecimal()):
        raise _UnreadableError("its port is no number")
    return Connection(
        conn_id,
        "postgres" if kind == "postgresql" else kind and kind.replace("-", "_"),
        port=None if port is None else int(port),
        extra=_extra(fields.get("extra")),
        **texts,
    )


def _extra(written: object) -> Mapping[str, Any]:
    if isinstance(written, str) and written:
        try:
            written = json.loads(written)
        except ValueError:
            written = None
        if not isinstance(written, dict):
            raise _UnreadableError("its extra is no JSON object")
    if written and not isinstance(written, Mapping):
        raise _UnreadableError("its extra is no JSON object")
    return written or {}  # type: ignore[return-value]


# -- keeping secrets out of what is kept ---------------------------------------------------------------------------

_secrets: set[str] = set()


def hide_secrets(text: str) -> str:
    """The text without the secrets of connections that this process has read: what handlers raise may quote them, and
    is kept."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text


def _remember_secrets(connection: Connection) -> None:
    for secret in filter(None, (connection.password, *_secrets_in(connection.extra))):
        if len(secret) >= _SHORTEST and secret not in _secrets:
            _secrets.update(_forms_of(secret))


def _forms_of(secret: str) -> set[str]:
    """As it is, and as it stands in a URL, in a repr and in JSON."""
    quoted = {quote(secret, safe=""), quote(secret), quote_plus(secret)}
    return {secret, *quoted, repr(secret)[1:-1], json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}


def _secrets_in(extra: object, *, named: bool = False) -> Iterator[str]:
    if isinstance(extra, str) and named:
        yield extra
    elif isinstance(extra, Mapping):
        for name, value in extra.items():
            yield from _secrets_in(value, named=named or _SECRET.search(str(name)) is not None)
    elif isinstance(extra, list):
        for value in extra:
            yield from _secrets_in(value, named=named)
