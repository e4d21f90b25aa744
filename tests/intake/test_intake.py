"""Intake: durable in the pipeline's store before the broker hears of it, whatever dies in between."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from homing import Message, bus, open_store
from homing.delivery import intake
from homing.delivery.intake import take_in
from homing.errors import SourceUnavailableError, StoreUnavailableError
from homing.store import BROWSE, Store
from homing.stores.sql import SqlStore
from tests.servers import PostgreSQL
from tests.servicebus.broker import Settings
from tests.servicebus.server import ServiceBusServer

_WORKER = Path(__file__).with_name("workers.py")
_SHARED = ["rabbitmq", "servicebus"]  # sources that several processes can open


@pytest.fixture
def source_url(request: pytest.FixtureRequest) -> str:
    name = f"t{uuid.uuid4().hex[:12]}"
    if request.param == "memory":
        return f"memory://?store={name}"
    server = request.getfixturevalue(request.param)
    if request.param == "servicebus":
        server.call(lambda: server.broker.make_queue(name, Settings(lock_duration=5.0)))
    return f"{server.url}?store={name}"


@pytest.fixture
def source(source_url: str) -> Iterator[Store]:
    with open_store(source_url) as opened:
        yield opened


@pytest.fixture
def target_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/target.db?store=orders"


@pytest.fixture
def target(target_url: str) -> Iterator[Store]:
    with open_store(target_url) as opened:
        yield opened


every_source = pytest.mark.parametrize("source_url", ["memory", *_SHARED], indirect=True)
every_shared_source = pytest.mark.parametrize("source_url", _SHARED, indirect=True)


def take_all(source: Store, target: Store, count: int, limit: int = 1000) -> int:
    """Takes in until so many came: a broker needs a moment to hand out what was stored."""
    deadline, new = time.monotonic() + 30, 0
    while new < count:
        new += take_in(source, target, limit)
        assert time.monotonic() < deadline, f"only {new} of {count} came"
    return new


@every_source
def test_what_the_source_holds_is_in_the_target_and_finished_at_the_source(source: Store, target: Store) -> None:
    source.store(Message("m0", {"n": 0}, headers={"trace": "x"}, correlation_id="c", partition_key="p", subject="sub"))
    source.store_many([Message(f"m{n}", {"n": n}) for n in range(1, 250)])

    assert take_all(source, target, 250) == 250

    held = target.browse(1000)
    assert {message.id: message.content for message in held} == {f"m{n}": {"n": n} for n in range(250)}
    first = next(message for message in held if message.id == "m0")
    written = (first.headers, first.correlation_id, first.partition_key, first.subject)
    assert written == ({"trace": "x"}, "c", "p", "sub")
    assert (first.delivery_count, first.state) == (0, "available")
    assert source.retrieve() is None
    assert take_in(source, target, 10) == 0


@every_source
def test_no_more_than_the_limit_is_taken_in(source: Store, target: Store) -> None:
    source.store_many(list(range(10)))

    assert take_all(source, target, 4, limit=4) == 4

    assert len(target.browse(100)) == 4
    assert take_all(source, target, 6) == 6


@every_source
def test_a_message_that_comes_again_is_not_new(source: Store, target: Store) -> None:
    target.store("done", id="m1")
    source.store_many([Message("m1", "done"), Message("m2", "new")])

    assert take_all(source, target, 1) == 1

    assert sorted(message.id for message in target.browse(10)) == ["m1", "m2"]
    assert source.retrieve() is None, "the duplicate is finished at the source too"


FULL = Message(
    "full", {"n": [1.5, None, "ü"]}, content_type="application/json", headers={"h": [1, {"k": None}], "a": "b"},
    correlation_id="c", partition_key="s", subject="sub", to="t", reply_to="r",
)  # fmt: skip


@every_source
def test_a_message_that_comes_again_with_all_that_is_written_on_it_is_not_new(source: Store, target: Store) -> None:
    for new in (1, 0):
        source.store_many([FULL, Message(f"after-{new}", new)])
        assert take_all(source, target, 1 + new) == 1 + new

    assert [message.id for message in target.browse(10)] == ["full", "after-1", "after-0"]


@every_shared_source
def test_another_message_of_a_known_id_is_stored_beside_it(source: Store, target: Store) -> None:
    """Brokers let two messages have the same id; memory, which does not, is left out."""
    source.store_many([Message("same", "first"), Message("same", "second")])
    assert take_all(source, target, 2) == 2
    source.store_many([Message("same", "third"), Message("same", "first", headers={"other": 1})])
    assert take_all(source, target, 2) == 2

    held = target.browse(10)
    assert sorted(message.content for message in held) == ["first", "first", "second", "third"]
    assert len({message.id for message in held}) == 4
    assert all(message.id.partition("~")[0] == "same" for message in held)

    # As after a kill between commit and acknowledgement: each comes again, in another order.
    source.store_many([Message("same", "third"), Message("same", "second"), Message("new", 1)])
    assert take_all(source, target, 1) == 1
    assert len(target.browse(10)) == 5
    assert source.retrieve() is None


@pytest.mark.parametrize("source_url", ["rabbitmq"], indirect=True)
def test_another_message_of_a_known_id_that_has_no_room_beside_it_is_stored(source: Store, target: Store) -> None:
    """Service Bus, whose ids are shorter, always has room."""
    one, other = (f"{'x' * 254}{end}" for end in "ab")
    for content in ("first", "second"):
        source.store_many([Message(one, content), Message(other, content)])
    assert take_all(source, target, 4) == 4

    held = target.browse(10)
    assert sorted(message.content for message in held) == ["first", "first", "second", "second"]
    assert len({message.id for message in held}) == 4

    # As after a kill between commit and acknowledgement.
    source.store_many([Message(other, "second"), Message("new", 1)])
    assert take_all(source, target, 1) == 1
    assert len(target.browse(10)) == 5


@every_shared_source
def test_a_message_whose_other_id_somebody_worked_out_before_is_stored_all_the_same(
    source: Store, target: Store
) -> None:
    mine = Message("order-1", {"pay": 7})
    source.store_many([Message("order-1", "rubbish"), Message(intake._other_id(mine), "rubbish"), mine])
    assert take_all(source, target, 3) == 3
    assert [message.content for message in target.browse(10)].count({"pay": 7}) == 1


@every_shared_source
def test_two_intakes_at_once_that_hold_messages_of_one_id_lose_neither(
    source: Store, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.store("mine", id="same")
    store_many = target.store_many

    def after_the_other(contents: Iterable[Any], **options: Any) -> list[str]:
        if not target.browse(1):
            store_many([Message("same", "theirs")])
        return store_many(contents, **options)

    monkeypatch.setattr(target, "store_many", after_the_other)
    take_all(source, target, 1)

    assert sorted(message.content for message in target.browse(10)) == ["mine", "theirs"]


@pytest.mark.parametrize("source_url", ["servicebus"], indirect=True)
def test_what_a_sender_of_the_bus_wrote_on_a_message_is_taken_in(
    source: Store, target: Store, servicebus: ServiceBusServer
) -> None:
    with bus.MessageSender(servicebus.connection_string, queue=source.name) as sender:
        sender.send(bus.Message(body="a", application_properties={"tenant": "x", "n": 7}))

    assert take_all(source, target, 1) == 1

    (held,) = target.browse(10)
    assert (held.content, held.headers) == ("a", {"tenant": "x", "n": 7})


@every_source
def test_nothing_is_acknowledged_that_the_target_did_not_commit(
    source: Store, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.store("a", id="m1")

    def away(*_arguments: object, **_options: object) -> list[str]:
        raise StoreUnavailableError("the database is away")

    with monkeypatch.context() as broken:
        broken.setattr(target, "store_many", away)
        broken.setattr(intake, "_PAUSES", (0.01,))
        with pytest.raises(StoreUnavailableError):
            take_all(source, target, 1)

    assert take_all(source, target, 1) == 1
    assert target.browse(10)[0].id == "m1"


@every_source
def test_messages_in_hand_wait_for_a_target_that_is_away_for_a_moment(
    source: Store, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.store("a", id="m1")
    store_many, calls = target.store_many, []

    def away_once(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        if len(calls) == 1:
            raise StoreUnavailableError("the database is away")
        return store_many(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(target, "store_many", away_once)
    monkeypatch.setattr(type(source), "acknowledge", _only_with_success(type(source).acknowledge))
    assert take_all(source, target, 1) == 1
    assert len(calls) == 2


@every_source
def test_what_is_in_hand_when_the_taking_is_interrupted_is_released(
    source: Store, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a task's time runs out, for example: a lease that runs out would count as a crash."""
    source.store_many([Message("m1", "a"), Message("m2", "b")])
    retrieve, taken, released = source.retrieve, list[Message](), list[str]()

    def interrupted() -> Message:
        if taken:
            raise KeyboardInterrupt
        taken.append(eventually(retrieve))
        return taken[0]

    acknowledge = source.acknowledge

    def note(message: Message, success: bool = True) -> None:
        acknowledge(message, success)
        released.extend([] if success else [message.id])

    with monkeypatch.context() as patch:
        patch.setattr(source, "retrieve", interrupted)
        patch.setattr(source, "acknowledge", note)
        with pytest.raises(KeyboardInterrupt):
            take_in(source, target, 10)

    assert released == ["m1"]
    assert take_all(source, target, 2) == 2


def _only_with_success(acknowledge: Callable[..., None]) -> Callable[..., None]:
    def wrapped(store: Store, message: object, success: bool = True, **options: object) -> None:
        assert success, "it was released"
        acknowledge(store, message, success, **options)

    return wrapped


@pytest.mark.services
@pytest.mark.parametrize("source_url", ["rabbitmq"], indirect=True)
@pytest.mark.parametrize("notices", ["before", "after"])
def test_an_outage_of_the_target_uses_up_no_deliveries_of_the_source(
    source_url: str, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch, notices: str
) -> None:
    """`notices`: whether the target is known to be read-only before or after messages were taken."""
    database = postgresql.empty_database()
    name, admin = sa.make_url(database).database, sa.create_engine(postgresql.url, isolation_level="AUTOCOMMIT")
    target_url = f"{database}?store=orders"

    def set_read_only(value: str) -> None:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"alter database {name} set default_transaction_read_only = {value}")

    with open_store(source_url) as source, open_store(target_url) as target:
        source.store_many([Message(f"m{n}", {"n": n}) for n in range(250)])
        target.count()  # which makes its tables
    set_read_only("on")
    with monkeypatch.context() as patch:
        patch.setattr(intake, "_PAUSES", (0.01,))
        if notices == "after":
            patch.setattr(SqlStore, "require_writable", lambda _: None)
        for _ in range(8):
            with open_store(source_url) as source, open_store(target_url) as target:
                if notices == "before":
                    patch.setattr(type(source), "retrieve", lambda _: pytest.fail("something was taken"))
                with pytest.raises(StoreUnavailableError, match="read-only") as caught:
                    take_in(source, target, 1000)
                assert not isinstance(caught.value, SourceUnavailableError)
    set_read_only("off")
    admin.dispose()

    with open_store(source_url) as source, open_store(target_url) as target:
        assert take_all(source, target, 250) == 250
        assert source.lengths()["dead"] == 0  # type: ignore[attr-defined]
        assert {message.id for message in target.browse(1000)} == {f"m{n}" for n in range(250)}


@every_source
def test_what_the_target_refuses_is_a_dead_letter_of_the_source_and_holds_up_nothing(
    source: Store, target: Store
) -> None:
    source.store_many([Message("m1", "fine"), Message("bad", "b", subject="s" * 300), Message("m3", "fine")])

    assert take_all(source, target, 2) == 2

    assert sorted(message.id for message in target.browse(10)) == ["m1", "m3"]
    assert source.retrieve() is None
    if BROWSE in source.features:
        (dead,) = source.browse(state="dead")
        assert (dead.id, dead.dead_letter_reason) == ("bad", "unreadable")
        assert "subject" in (dead.dead_letter_description or "")


@pytest.mark.chaos
@every_shared_source
def test_an_intake_killed_between_commit_and_acknowledge_loses_and_doubles_nothing(
    source_url: str, source: Store, target_url: str, target: Store
) -> None:
    source.store_many([Message(f"m{n}", n) for n in range(20)])
    command = [sys.executable, str(_WORKER), source_url, target_url, "20"]

    killed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    committed = target.browse(100)
    assert len(committed) > 0, "it died after the commit"

    again = eventually(source.retrieve)  # the broker was told nothing: it hands them out again
    source.acknowledge(again, success=False)
    assert take_in(source, target, 100) == 20 - len(committed)

    assert source.retrieve() is None
    assert sorted(message.content for message in target.browse(100)) == list(range(20))
    assert {message.delivery_count for message in target.browse(100)} == {0}


def eventually(ask: Callable[[], Message | None], timeout: float = 30.0) -> Message:
    deadline = time.monotonic() + timeout
    while (answer := ask()) is None:
        assert time.monotonic() < deadline, f"nothing came within {timeout} s"
        time.sleep(0.02)
    return answer
