"""Every error Homing raises on purpose.

HomingError
├── ConfigurationError          something was set up wrongly; nothing was read or written
│   ├── UnknownStoreError       a store URL whose scheme no store answers to
│   ├── MissingExtraError       an optional package is not installed
│   ├── NoSuchEntityError       a queue, topic, subscription or rule that does not exist
│   ├── EntityExistsError       one that exists already
│   ├── NotPermittedError       a database that does not let its user do this (also a StoreError)
│   ├── TlsError                (a StoreError too) a server that cannot prove who it is, or does not speak TLS
│   ├── MissingConnectionError  a connection that a handler asks for is not there, or cannot be read
│   ├── ChainError              a HandlerChain that cannot be built
│   └── ChainImportError        a chain that cannot be imported by its "module:attribute" name
├── ContentError                about one message's content
│   ├── UnstorableContentError  refused at store(): not JSON, str or bytes
│   │   └── TooLargeError       refused at store(): larger than the store takes
│   ├── UnreadableMessageError  what the store holds cannot be decoded
│   └── BindingError            the content does not fit the type a handler asks for
├── StoreError                  a store did not do what it was asked; the message is where it was
│   ├── StoreUnavailableError   the store cannot be reached: try again later
│   │   ├── PartlyStoredError   the store went away while it was storing many
│   │   └── SourceUnavailableError  what an intake takes from cannot be reached; its target can
│   ├── NotInFlightError        settling a message that was not retrieved, or is finished
│   ├── LeaseLostError          the lease ran out or passed to another consumer; nothing was changed
│   ├── StillHeldError          a message cannot be removed while it is leased
│   ├── NoSuchMessageError      no message waits under this sequence number
│   ├── SessionHeldError        another receiver holds the session
│   └── UnsupportedError        this store does not have that ability
├── WorkDirError                the work directory of a pipeline cannot be reached
├── LakeError                   a lake cannot be reached, or what was written to it cannot be read there
├── CircuitOpenError            a destination is not called for a while, because it has failed too often
├── HandlerError                one handler of a chain failed on one message
└── HandlersFailedError         one or more handlers failed
    └── ExecutionError          a chain could not carry a message all the way (homing.pipeline.outcome)

Signals that steer a chain without being failures, such as Drop, are not part of this tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homing.printable import printable


class HomingError(Exception):
    """Root of the tree: `except HomingError` catches everything Homing raises on purpose.

    Its text is one printable line, because it may repeat ids that others chose, and every traceback shows it.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigurationError(HomingError, ValueError):
    """Something was set up wrongly; the text says what and how to mend it."""


class UnknownStoreError(ConfigurationError):
    """No store answers to the scheme of this URL."""


class MissingExtraError(ConfigurationError, ImportError):
    """An optional package is missing; the text names the extra to install."""


class NoSuchEntityError(ConfigurationError):
    """A queue, topic, subscription or rule that does not exist."""


class EntityExistsError(ConfigurationError):
    """A queue, topic, subscription or rule that exists already."""


class ChainError(ConfigurationError):
    """A HandlerChain that cannot be built."""


class ChainImportError(ConfigurationError, ImportError):
    """A chain that cannot be imported by its "module:attribute" name."""


class MissingConnectionError(ConfigurationError):
    """A connection that a handler asks for is not there, or cannot be read: no handler has run, and no message failed.

    The text says which handler asks for it and how to define it.
    """


class ContentError(HomingError):
    """About the content of one message."""


class UnstorableContentError(ContentError, TypeError):
    """The content is not JSON, str or bytes; nothing was stored."""


class TooLargeError(UnstorableContentError):
    """The message, or the batch, is larger than the store takes; nothing was stored."""


class UnreadableMessageError(ContentError):
    """What the store holds for a message cannot be decoded."""


class BindingError(ContentError):
    """The content does not fit the type a handler asks for."""


class StoreError(HomingError):
    """A store did not do what it was asked; the message is where it was."""


class NotPermittedError(ConfigurationError, StoreError):
    """The database refuses its user this one thing: waiting does not help, and no message is to blame.

    The text says what to grant.
    """


class StoreUnavailableError(StoreError):
    """The store cannot be reached; nothing is known to have changed."""


class TableMissingError(StoreError):
    """A table of the store is gone from its database: it was dropped or renamed. Waiting does not bring it back."""


class PartlyStoredError(StoreUnavailableError):
    """The store went away while it was storing many: `stored` of all `ids` are durable, of the rest it is not known.

    Store the same messages again under the same ids: a receiver recognises a duplicate by its id.
    """

    def __init__(self, text: str, *, ids: Sequence[str], stored: Sequence[str]) -> None:
        super().__init__(text)
        self.ids = list(ids)
        self.stored = list(stored)


class SourceUnavailableError(StoreUnavailableError):
    """The store that an intake takes messages from cannot be reached: what its target holds is not concerned."""


class NotInFlightError(StoreError):
    """Settling a message that is unknown, finished or was never retrieved."""


class LeaseLostError(StoreError):
    """The lease ran out or passed to another consumer; nothing was changed."""


class StillHeldError(StoreError):
    """A process works on the message, or may: it is not removed before that ends. The text says when."""


class NoSuchMessageError(StoreError):
    """No message is scheduled or deferred under this sequence number; nothing was changed."""


class SessionHeldError(StoreError):
    """Another receiver holds the session: try again later, or take another."""


class TlsError(ConfigurationError, StoreError):
    """A store's server cannot prove who it is, does not take this client's certificate, or does not speak TLS where it
    must. Nothing was sent to it. Waiting does not mend it."""


class UnsupportedError(StoreError):
    """This store does not have that ability."""


class WorkDirError(HomingError):
    """The file system that a pipeline's work directory lies in cannot be reached, or did not do what it was asked."""


class JobError(HomingError):
    """A Spark job failed: its own output says why."""


class LakeError(HomingError):
    """The file system that a lake lies in did not do what it was asked: nothing counts as delivered."""


class CircuitOpenError(HomingError):
    """A destination that failed too often is left alone for a while: the call was not made."""


class HandlerError(HomingError):
    """One handler failed on one message, after all the attempts its retry policy allows.

    `handler` is its name, of a destination flow's own processor with its destination ("european of crm"), `attempts`
    how often it was tried, `snapshot` the context as a record at the point of failure; `__cause__` is the exception the
    handler raised.
    """

    def __init__(self, text: str, handler: str = "", attempts: int = 1, snapshot: dict[str, Any] | None = None) -> None:
        super().__init__(text)
        self.handler = handler
        self.attempts = attempts
        self.snapshot: dict[str, Any] = {} if snapshot is None else snapshot


class HandlersFailedError(HomingError):
    """Handlers of a chain failed on one message: `errors` has the HandlerError of each, until it is pickled."""

    def __init__(self, text: str, errors: Sequence[HandlerError] = ()) -> None:
        super().__init__(text)
        self.errors = tuple(errors)


def causes_of(error: BaseException) -> tuple[BaseException, ...]:
    """What was really raised: by the handlers that this error only reports on, else the error itself."""
    reported = error.errors if isinstance(error, HandlersFailedError) and error.errors else (error,)
    return tuple((isinstance(each, HandlerError) and each.__cause__) or each for each in reported)
