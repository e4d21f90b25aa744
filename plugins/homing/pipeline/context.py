"""MessageContext: everything the handlers of a chain know and share about one message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from homing.binding import bind
from homing.connection import Connection
from homing.declared_connections import DeclaredConnections
from homing.errors import BindingError, UnstorableContentError
from homing.invocation.content_copy import accept, clone, is_mutable
from homing.json_values import DEEPEST_PART, copy_json
from homing.message import Encoded, Message, encode, encode_accepted, encode_headers, encode_json

T = TypeVar("T")

_UNSET: Any = object()
_NO_CONNECTIONS = DeclaredConnections()


class MessageContext:
    """One message on its way: the original, its content and headers as they are now, and properties.

    What a handler gets from here is its own: changing a content, a header or a property value in place changes it for
    no other handler. Content changes by what a transformer returns, headers by `set_header`, properties by
    `set_property`. Not shared between threads: every destination gets a `copy()`.
    """

    __slots__ = ("_connections", "_content", "_headers", "_message", "_properties", "_shown_content", "_shown_message")

    def __init__(self, message: Message, properties: Mapping[str, Any] | None = None, *, content: Any = _UNSET) -> None:
        """`content` is the content as processed so far, where that is not the message's own."""
        self._message = message
        self._content = message.content if content is _UNSET else content
        # None as long as they are the message's own, as they are for most: so the others cost no copy.
        self._headers: dict[str, Any] | None = None
        self._properties: dict[str, Any] = clone(dict(properties)) if properties else {}
        self._shown_content: Any = _UNSET
        self._shown_message: Message | None = None
        self._connections = _NO_CONNECTIONS

    @property
    def message(self) -> Message:
        """The message as it entered the chain, whatever has been done to its content and headers since."""
        if self._shown_message is None:
            self._shown_message = _detached(self._message)
        return self._shown_message

    def get_content(self) -> Any:
        """The content as it is now: a copy of the caller's own, the same one throughout one handler call."""
        if self._shown_content is _UNSET:
            self._shown_content = clone(self._content)
        return self._shown_content

    def get_content_with_type(self, kind: type[T]) -> T:
        """The content as a `kind`; raises BindingError where it does not fit."""
        return cast("T", bind(kind)(self.get_content()))

    def get_id(self) -> str:
        return self._message.id

    def get_headers(self) -> dict[str, Any]:
        """A copy of the headers as they are now."""
        return cast("dict[str, Any]", clone(dict(self._current_headers)))

    def get_header(self, key: str, default: Any = _UNSET) -> Any:
        """A copy of a header, or `default` when there is none; without a default, that raises KeyError."""
        headers = self._current_headers
        if key in headers:
            return clone(headers[key])
        if default is _UNSET:
            raise self._has_no("header", key, headers)
        return default

    def set_header(self, key: str, value: Any) -> None:
        """Gives the message this header from here on; the failure record keeps the original ones for a replay.

        Raises UnstorableContentError for what no store takes as a header.
        """
        try:
            written = copy_json({key: value}, levels=DEEPEST_PART)
        except UnstorableContentError as error:
            raise UnstorableContentError(f"cannot set the header {key!r:.60}: {error}") from error
        self._headers = {**self._current_headers, **written}

    def remove_header(self, key: str) -> None:
        """Takes a header off the message; raises KeyError when there is none."""
        headers = self._current_headers
        if key not in headers:
            raise self._has_no("header", key, headers)
        self._headers = {name: value for name, value in headers.items() if name != key}

    def set_property(self, key: str, value: Any) -> None:
        """Keeps a copy of a JSON value for the handlers after this one.

        Raises UnstorableContentError for anything that is not JSON, because properties travel with the
        message.
        """
        if type(key) is not str:
            raise UnstorableContentError(f"the name of a property must be a str, got {key!r}")
        try:
            self._properties[key] = copy_json(value, levels=DEEPEST_PART)
        except UnstorableContentError as error:
            raise UnstorableContentError(f"cannot set the property {key!r}: {error}") from error

    def get_property(self, key: str, default: Any = _UNSET) -> Any:
        """A copy of a property, or `default` when it is not set; without a default, that raises KeyError."""
        if key in self._properties:
            return clone(self._properties[key])
        if default is _UNSET:
            raise self._has_no("property", key, self._properties)
        return default

    def get_property_with_type(self, key: str, kind: type[T]) -> T:
        """A property as a `kind`; raises KeyError when it is not set, BindingError where it does not fit."""
        value = self.get_property(key)
        try:
            return cast("T", bind(kind)(value))
        except BindingError as error:
            raise BindingError(f"property {key!r}: {error}") from error

    def has_property(self, key: str) -> bool:
        """Whether the property is set, be it to None."""
        return key in self._properties

    def remove_property(self, key: str) -> None:
        """Removes a property; raises KeyError when it is not set."""
        if self._properties.pop(key, _UNSET) is _UNSET:
            raise self._has_no("property", key, self._properties)

    def connection(self, conn_id: str) -> Connection:
        """A connection that the handler declares, by the id that it has in Airflow; looked up anew at every call.

        Raises ChainError for one that the handler does not declare, MissingConnectionError for one that is not there.
        """
        return self._connections[conn_id]

    def to_record(self) -> dict[str, Any]:
        """The context as a JSON object, to look at: id, content, headers, properties. Bytes become base64."""
        content = self._content
        if isinstance(content, bytes):
            written = encode(content)
            content = {"encoding": written.encoding, "body": written.body}
        return {
            "id": self._message.id,
            "content": clone(content),
            "headers": self.get_headers(),
            "properties": clone(self._properties),
        }

    def copy(self) -> MessageContext:
        """An independent context in the same state. Cheap: content is copied on first access."""
        twin = MessageContext(self._message, content=self._content)
        # The values of properties and headers are only ever replaced, never changed in place, so they are shared.
        twin._properties = self._properties.copy()
        twin._headers = self._headers
        return twin

    def begin_attempt(self) -> None:
        """Forgets what was handed out: the next handler gets copies of its own. Called by the flow."""
        self._shown_content = _UNSET
        self._shown_message = None
        self._connections = _NO_CONNECTIONS

    def lend(self, connections: DeclaredConnections) -> None:
        """Has `connection` find these, and no others. Called by the handler that is to run."""
        self._connections = connections

    def replace_content(self, content: Any) -> None:
        """Makes a copy of `content` the content from here on. Called by the flow, for a transformer.

        Raises UnstorableContentError, with the path of the offending value, for anything but JSON, str and
        bytes.
        """
        self._content = accept(content)
        self._shown_content = _UNSET

    def write_down(self) -> tuple[Encoded, str]:
        """Content and properties as they travel to another process; both were looked at when they came in here."""
        return encode_accepted(self._content), encode_json(self._properties) if self._properties else "{}"

    @property
    def has_new_headers(self) -> bool:
        """Whether a processor has changed the headers."""
        return self._headers is not None

    def write_headers(self) -> str | None:
        """The headers as they are now, as they travel to another process; None for none."""
        return encode_headers(self._current_headers)

    def processed_message(self) -> Message:
        """The message with the content and the headers as they are now."""
        return _with(self._message, self._content, self._current_headers)

    @property
    def _current_headers(self) -> Mapping[str, Any]:
        return self._message.headers if self._headers is None else self._headers

    def _has_no(self, what: str, key: str, there: Mapping[str, Any]) -> KeyError:
        names = ", ".join(sorted(there)) or "none"
        return KeyError(f"message {self._message.id} has no {what} {key!r}; set are: {names}")


def _detached(message: Message) -> Message:
    if not message.headers and not is_mutable(message.content):
        return message
    return _with(message, message.content, message.headers)


def _with(message: Message, content: Any, headers: Mapping[str, Any]) -> Message:
    # What dataclasses.replace does, at a tenth of its price, which every message pays.
    twin = object.__new__(Message)
    twin.__dict__.update(message.__dict__, content=clone(content), headers=clone(dict(headers)))
    return twin
