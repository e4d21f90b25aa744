"""TLS towards a server: who it has to be, who we are, and what it means when that fails.

A server that cannot prove who it is, or does not speak TLS where it must, is not a server that is away: the same fails
again until people change a setting or a certificate. So it is a TlsError, which says what is wrong.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

from homing.errors import ConfigurationError

# What a server says to a client whose certificate it does not take: OpenSSL's names for TLS's alerts.
_ALERTS = ("ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "ALERT_CERTIFICATE", "ALERT_ACCESS_DENIED")


def client_context(
    *,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    verify: bool = True,
    check_hostname: bool = True,
) -> ssl.SSLContext:
    """How a client speaks TLS: it trusts `ca_file`, or the system's authorities, and shows a certificate if it has one.

    Raises ConfigurationError for a file that cannot be read, and for a private key that others can read.
    """
    if key_file is not None and cert_file is None:
        raise ConfigurationError("a private key for TLS needs its certificate too")
    for path in filter(None, (ca_file, cert_file, key_file)):
        _require_readable(path)
    if cert_file is not None:
        _refuse_shared(key_file or cert_file)
    try:
        context = ssl.create_default_context(cafile=ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = verify and check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
        if cert_file is not None:
            # An empty passphrase: no one is there to type one.
            context.load_cert_chain(cert_file, key_file, password="")
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise ConfigurationError(f"the files for TLS cannot be used: {error}") from error
    return context


def find_handshake_fault(error: BaseException | None) -> str | None:
    """What is wrong with a certificate, if that is what this error is about; None if it is about something else."""
    for each in _within(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            return each.verify_message
        # By its text: what comes after the handshake is only told by a text.
        alert = next((alert for alert in _ALERTS if alert in str(each)), None)
        if alert is not None:
            return f"the server did not take this client's certificate, or asks for one: {alert}"
        if isinstance(each, ssl.SSLError) and each.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
            return "the server does not speak TLS on this port"
    return None


def _within(error: BaseException | None, depth: int = 5) -> Iterator[BaseException]:
    """The error, its cause, and those that drivers put into its arguments or beside it."""
    if error is None or depth == 0:
        return
    yield error
    beside = (getattr(error, name, None) for name in ("original_exception", "exception", "exceptions"))
    for inner in (error.__cause__, *beside, *error.args):
        for each in inner if isinstance(inner, tuple | list) else (inner,):
            if isinstance(each, BaseException):
                yield from _within(each, depth - 1)


def _require_readable(path: str) -> None:
    if not os.access(path, os.R_OK) or not Path(path).is_file():
        raise ConfigurationError(f"the file {path!r} for TLS is not there, or cannot be read by this user")


def _refuse_shared(path: str) -> None:
    """Raises ConfigurationError for a private key that others can read: as PostgreSQL's own client has it, of 0600 or
    less, or root's and of 0640 or less."""
    found = Path(path).stat()
    others = stat.S_IRWXO | (stat.S_IXGRP | stat.S_IWGRP if found.st_uid == 0 else stat.S_IRWXG)
    if found.st_mode & others:
        raise ConfigurationError(f"the private key {path!r} can be read by others than its owner: chmod 600 it")
