"""Whatever is given as a message: it comes back equal, or is refused and its neighbours are none the worse."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from homing import Message, open_store
from homing.errors import HomingError
from homing.message import DEAD, SCHEDULED
from homing.store import Store
from tests.fuzz.profile import ANYTHING, JSON_VALUES, TEXTS, examples


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder: Path = tmp_path_factory.mktemp("fuzz")
    name = f"f{uuid.uuid4().hex[:8]}"
    url = f"memory://{name}" if request.param == "memory" else f"sqlite:///{folder}/store.db?store={name}"
    with open_store(url) as opened:
        yield opened


def comes_back_or_is_refused(store: Store, message: Any) -> Message | None:
    """The message as it came back, between two neighbours that came back too; None when it was refused."""
    store.store("before")
    try:
        message_id = store.store(message)
    except HomingError:
        message_id = None
    store.store("after")
    seen = []
    while (found := store.retrieve()) is not None:
        seen.append(found)
        store.acknowledge(found)
    assert [one.content for one in seen if one.id != message_id] == ["before", "after"]
    mine = [one for one in seen if one.id == message_id]
    assert len(mine) == (message_id is not None)
    return mine[0] if mine else None


@examples(70)
@given(content=ANYTHING)
@example(content={"a": {"b": float("nan")}})
@example(content=2**64)
@example(content="\ud800")
@example(content="\0")
@example(content=True)
@example(content=1.0)
def test_a_content_comes_back_equal_and_of_its_type_or_is_refused(store: Store, content: Any) -> None:
    message = comes_back_or_is_refused(store, content)

    if message is not None:
        assert message.content == content
        assert type(message.content) is type(content)


@examples(40)
@given(headers=st.dictionaries(TEXTS, JSON_VALUES, max_size=3) | ANYTHING)
def test_headers_come_back_equal_or_are_refused(store: Store, headers: Any) -> None:
    message = comes_back_or_is_refused(store, Message(uuid.uuid4().hex, "x", headers=headers))

    if message is not None and headers:
        assert message.headers == headers


_AHEAD = st.timedeltas(min_value=timedelta(days=1))


@examples(70)
@given(
    properties=st.fixed_dictionaries(
        {},
        optional={
            "content_type": TEXTS | ANYTHING,
            "correlation_id": TEXTS | ANYTHING,
            "subject": TEXTS | ANYTHING,
            "to": TEXTS | ANYTHING,
            "reply_to": TEXTS | ANYTHING,
            "partition_key": TEXTS | ANYTHING,
            "session_id": TEXTS | ANYTHING,
            "priority": st.integers(-5, 5) | ANYTHING,
            "time_to_live": _AHEAD | ANYTHING,
            "scheduled_at": st.just(datetime(2020, 1, 1)) | ANYTHING,  # noqa: DTZ001
            "dead_letter_reason": TEXTS | ANYTHING,
        },
    )
)
def test_what_is_written_on_a_message_comes_back_or_is_refused(store: Store, properties: dict[str, Any]) -> None:
    try:
        message = Message(uuid.uuid4().hex, "x", **properties)
    except HomingError:
        return
    seen = in_any_order(store, message)

    if seen is not None:
        for name in properties.keys() - {"scheduled_at", "time_to_live"}:
            assert getattr(seen, name) == properties[name]


def in_any_order(store: Store, message: Message) -> Message | None:
    """As above, for a message that may be due before its neighbours, or much later, or expire."""
    try:
        store.store(message)
    except HomingError:
        comes_back_or_is_refused(store, "another")  # the store goes on
        return None
    store.store("neighbour")
    seen = {}
    while (found := store.retrieve()) is not None:
        seen[found.content] = found
        store.acknowledge(found)
    assert "neighbour" in seen
    if "x" not in seen:
        [waiting] = store.browse(ids=[message.id])
        assert (message.scheduled_at and waiting.state == SCHEDULED) or (message.time_to_live and waiting.state == DEAD)
    return seen.get("x")


#: The ids that a store has had: one that comes again may be its message again.
_STORED: dict[str, set[str]] = {}


@examples(40)
@given(message_id=TEXTS | ANYTHING)
def test_an_id_is_kept_or_refused(store: Store, message_id: Any) -> None:
    try:
        stored = store.store("x", id=message_id)
    except HomingError:
        assert store.retrieve() is None
        return
    assert message_id in (None, stored)
    seen = []
    while (found := store.retrieve()) is not None:
        seen.append(found.id)
        store.acknowledge(found)
    known = _STORED.setdefault(store.name, set())
    assert seen == [stored] or (seen == [] and stored in known)
    known.add(stored)
