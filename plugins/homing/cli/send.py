"""send: stores messages."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from homing.cli.command import EXIT_OK
from homing.cli.context import CommandContext
from homing.errors import ConfigurationError
from homing.ids import new_id
from homing.message import Message, encode
from homing.store import BULK, Store
from homing.times import parse_time


def send_messages(arguments: Namespace, context: CommandContext) -> int:
    """Stores the messages (all or none if the store supports bulk) and shows their ids."""
    messages = list(_messages(arguments))
    if arguments.id and len(messages) > 1:
        raise ConfigurationError(f"--id works for one message only, got {len(messages)}")
    with context.open(arguments.store) as store:
        if not arguments.dry_run:
            _store(store, messages)
    context.tell(f"{'would store' if arguments.dry_run else 'stored'} {len(messages)} messages in {store.name!r}")
    context.show([{"id": message.id, "due": message.scheduled_at} for message in messages], arguments)
    return EXIT_OK


def _store(store: Store, messages: list[Message]) -> None:
    if BULK in store.features:
        store.store_many(messages)
        return
    for message in messages:
        store.store(message)


def _messages(arguments: Namespace) -> Iterator[Message]:
    headers = dict(_header(text) for text in arguments.header)
    due = parse_time(arguments.at) if arguments.at else None
    texts = [*arguments.contents, *(_lines(arguments.file) if arguments.file else ())]
    if not texts:
        raise ConfigurationError("no messages given: give contents, or --file")
    for number, text in enumerate(texts, 1):
        content = text if arguments.text else _json(text, number)
        encode(content)  # refuse invalid content before anything is stored
        yield Message(
            arguments.id or new_id(),
            content,
            headers=headers,
            scheduled_at=due,
            priority=arguments.priority,
            correlation_id=arguments.correlation_id,
            session_id=arguments.session_id,
        )


def _lines(path: str) -> list[str]:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error
    return [line for line in text.splitlines() if line.strip()]


def _json(text: str, number: int) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"message {number} is not JSON: {error}; use --text to send plain text") from error


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigurationError(f"invalid header {text!r}: write NAME=VALUE")
    return name, value
