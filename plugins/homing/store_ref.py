"""StoreRef: what names a store, for an author, an operator of the command line or a task.

Imported by every Airflow process: it imports little.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from urllib.parse import urlsplit

from homing.errors import ConfigurationError, UnknownStoreError

URL, ENVIRONMENT, CONNECTION = "url", "environment", "connection"

_IN_ENVIRONMENT = "env:"
_CONNECTION_ID = re.compile(r"[A-Za-z0-9_.-]{1,250}(\?\S+)?")
# A file has no password, and the options that its URL may have are no secrets.
_FILE_SCHEMES = frozenset({"sqlite", "sqlite+pysqlite"})
_DATABASES = frozenset({"mariadb", "mysql", "postgres", "postgresql"})
# Also where the password has characters that a URL has to escape: then it is no URL, and can be read all the same.
_WITH_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^:@/]*:.+@", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}(?=://)")


class StoreRef:
    """A store's URL, `env:NAME` for the URL in that environment variable, or the id of an Airflow connection, behind
    which there may be options: `bus?queue=orders`.

    A value: immutable and comparable. Neither its repr nor its text shows a URL, which may hold a password. Raises
    ConfigurationError, which repeats nothing, for a text that is none of the three.
    """

    __slots__ = ("_text", "kind")

    def __init__(self, reference: object) -> None:
        if isinstance(reference, StoreRef):
            reference = reference.text
        if not isinstance(reference, str) or not reference:
            raise ConfigurationError(
                "a store must be named by a URL such as sqlite:///inbox.db?store=orders, by env:NAME or by the id of a "
                f"connection, got a {type(reference).__name__}"
            )
        self._text = reference
        #: URL, ENVIRONMENT or CONNECTION.
        self.kind = _kind_of(reference)

    @property
    def text(self) -> str:
        """The reference as it was written. It may be a URL with a password: never log it."""
        return self._text

    @property
    def is_public(self) -> bool:
        """Whether its text may be shown to everybody: the id of a connection, or the URL of a file. What `env:NAME`
        stands for differs from machine to machine."""
        if self.kind != URL:
            return self.kind == CONNECTION
        try:
            url = urlsplit(self._text)
        except ValueError:
            return False
        return url.scheme in _FILE_SCHEMES and not url.netloc

    def resolve(self, find_connection: Callable[[str], str] | None = None) -> str:
        """The URL. A secret: never log it. `find_connection` tells the URL of a connection's id, where there are any.

        Raises ConfigurationError for an environment variable that is not set, and for a URL that cannot be taken apart,
        of which it repeats nothing; UnknownStoreError for a connection where there are none.
        """
        if self.kind == CONNECTION:
            if find_connection is None:
                raise UnknownStoreError(
                    "a store URL starts with its scheme, as sqlite:///inbox.db?store=orders does; only Airflow knows "
                    "the ids of connections"
                )
            url = find_connection(self._text)
        elif self.kind == URL:
            url = self._text
        else:
            variable = self._text.removeprefix(_IN_ENVIRONMENT)
            url = os.environ.get(variable, "")
            if not url:
                raise ConfigurationError(
                    f"the environment variable {variable}, which is to hold a store's URL, is not set"
                )
        _check_parts(url)
        return url

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreRef) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        if self.kind != URL:
            return self._text
        scheme = _SCHEME.match(self._text)
        return f"{scheme[0] if scheme else ''}://…"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


def shows_password(text: str) -> bool:
    """Whether this text, which names a store, is a URL with a password in it."""
    return _WITH_PASSWORD.match(text) is not None


def _kind_of(text: str) -> str:
    if text.startswith(_IN_ENVIRONMENT):
        return ENVIRONMENT
    if "://" in text:
        return URL
    if _CONNECTION_ID.fullmatch(text):
        return CONNECTION
    # Not repeated: it may be a URL with a password in it, and a typing error.
    raise ConfigurationError(
        "invalid name of a store: give a URL such as sqlite:////data/x.db, env:NAME or the id of a connection"
    )


def _check_parts(url: str) -> None:
    """Raises ConfigurationError, which repeats nothing, for a URL that others would take apart in the wrong place: they
    would call a part of the password a port or an option, and say so."""
    scheme, separator, rest = url.partition("://")
    scheme = scheme.partition("+")[0]
    if not separator or not _SCHEME.match(url):
        return  # a connection string, or nothing that has parts
    place, *behind_host = re.split(r"[/?#]", rest, maxsplit=1)
    # A database's password ends at the first @, a broker's at the last.
    misread = place.count("@") > 1 and scheme in _DATABASES
    try:
        urlsplit(url)
    except ValueError:
        misread = True
    # Of a file, what follows is a path.
    if misread or (scheme != "sqlite" and any("@" in part for part in behind_host)):
        raise ConfigurationError(
            "this store URL cannot be read: its host must be the name of a host, and in its user name, password and "
            "options the characters @ : / ? # [ ] % are written as %40 %3A %2F %3F %23 %5B %5D %25"
        )
