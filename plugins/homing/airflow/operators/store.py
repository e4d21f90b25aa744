"""StoreMessagesOperator: an author's DAG produces messages."""

from __future__ import annotations

import hashlib
from typing import Any

from airflow.sdk import BaseOperator

from homing.airflow import metrics
from homing.airflow.hooks.store import find_url
from homing.errors import ConfigurationError
from homing.message import Message, encode
from homing.store import BULK
from homing.store_ref import StoreRef
from homing.stores import open_store
from homing.times import parse_time


class StoreMessagesOperator(BaseOperator):
    """Stores `contents`, a list of messages, and returns their ids, only when they are durable.

    A retry, and a run that is cleared, stores the same contents under the same ids, which a store with deduplication
    keeps once; other contents are other messages. `contents`, `headers`, which every message gets, and `scheduled_at`,
    a time as people write it, may be templates or XComs.
    """

    template_fields = ("contents", "headers", "scheduled_at")

    def __init__(
        self,
        *,
        store: str,
        contents: Any,
        headers: dict[str, Any] | None = None,
        scheduled_at: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.store = StoreRef(store)
        self.contents = contents
        self.headers = headers
        self.scheduled_at = scheduled_at

    def execute(self, context: Any) -> list[str]:
        if not isinstance(self.contents, list | tuple):
            raise ConfigurationError(f"contents must be a list of messages, got a {type(self.contents).__name__}")
        due = parse_time(self.scheduled_at) if self.scheduled_at else None
        messages = [
            Message(_message_id(context, number, content), content, headers=self.headers or {}, scheduled_at=due)
            for number, content in enumerate(self.contents)
        ]
        with open_store(find_url(self.store)) as store:
            if BULK in store.features:
                store.store_many(messages)
            else:
                for message in messages:
                    store.store(message)
        self.log.info("stored %d messages in store %s", len(messages), store.name)
        metrics.count_messages("accepted", len(messages), store=store.name)
        return [message.id for message in messages]


def _message_id(context: Any, number: int, content: Any) -> str:
    """Returns an id for a message. Every try of the task that finds the same content gets the same id."""
    ti, written = context["ti"], encode(content)
    key = f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}/{written.encoding}/{written.body}"
    return f"{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}-{number}"
