"""The embedded bus on every database, and what is left of it when processes die in the middle."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from homing.bus import Administrator, Message, MessageReceiver, MessageSender, RetryOptions, Rule, SqlFilter
from homing.bus.embedded.broker import EmbeddedBroker
from homing.bus.entities import Subscription
from homing.errors import ConfigurationError, LeaseLostError, StoreError, StoreUnavailableError
from homing.stores.sql import SqlStore
from homing.stores.sql.dialects import with_driver
from tests.bus.conftest import AT_ONCE, Bus, get, nothing
from tests.clocks import let_all_time_pass


def test_the_bus_works_on_every_database(database: str) -> None:
    bus = Bus(database)
    try:
        end = bus.queue(requires_duplicate_detection=True)
        topic = bus.topic("all", "red")
        bus.admin.create_rule(topic, "red", "r", filter=SqlFilter("colour = 'red'"))
        bus.admin.delete_rule(topic, "red", "$Default")
        bus.admin.create_subscription(topic, "passed-on", forward_to=end)
        sessions = bus.queue(requires_session=True)
        sender = bus.sender(topic=topic)
        sender.send(Message(body="red", message_id="1", application_properties={"colour": "red"}))
        sender.send(Message(body="blue", message_id="2", application_properties={"colour": "blue"}))
        bus.sender(queue=end).send(Message(body="again", message_id="1"))
        bus.sender(queue=sessions).send_batch([Message(body=n, session_id="ü") for n in range(3)])

        red, everything = (bus.receiver(topic=topic, subscription=name) for name in ("red", "all"))
        message = get(red)
        assert (message.body, message.delivery_count) == ("red", 1)
        red.dead_letter(message, reason="bad")
        assert get(red, dead_lettered=True).dead_letter_reason == "bad"
        assert [get(everything).body for _ in range(2)] == ["red", "blue"]
        forwarded = bus.receiver(queue=end)
        assert sorted(get(forwarded).body for _ in range(2)) == ["blue", "red"]
        assert nothing(forwarded), "the duplicate was not taken"
        batch = bus.receiver(queue=sessions, session_id="ü").receive_batch(5, server_wait_time=20)
        assert batch is not None
        assert [one.body for one in batch.messages] == [0, 1, 2]
        bus.admin.delete_topic(topic)
        with pytest.raises(ConfigurationError):
            sender.send_payload("gone")
    finally:
        bus.close()


def test_a_rule_that_cannot_be_read_is_refused_with_the_place(tmp_path: Path) -> None:
    with Administrator(f"sqlite:///{tmp_path}/bus.db") as admin:
        admin.create_topic("t")
        admin.create_subscription("t", "s")
        with pytest.raises(ConfigurationError, match="character 5"):
            admin.create_rule("t", "s", "r", filter=SqlFilter("a = = 1"))
        with pytest.raises(ConfigurationError, match="cannot be changed"):
            admin.update_rule("t", "s", Rule("$Default", action="SET sys.SequenceNumber = 1"))


def test_forwarding_in_a_circle_or_to_nowhere_is_refused(tmp_path: Path) -> None:
    with Administrator(f"sqlite:///{tmp_path}/bus.db") as admin:
        with pytest.raises(ConfigurationError, match="nowhere"):
            admin.create_queue("a", forward_to="nowhere")
        first = admin.create_queue("a")
        admin.create_queue("b", forward_to="a")
        admin.create_topic("t")
        admin.create_subscription("t", "s", forward_to="b")
        for target in ("a", "b", "t"):
            with pytest.raises(ConfigurationError, match="circle"):
                admin.update_queue(replace(first, forward_to=target))


def test_forwarding_back_into_ones_own_topic_or_too_far_is_refused(tmp_path: Path) -> None:
    with Administrator(f"sqlite:///{tmp_path}/bus.db") as admin:
        admin.create_topic("t")
        admin.create_queue("back", forward_to="t")
        with pytest.raises(ConfigurationError, match="circle"):
            admin.create_subscription("t", "s", forward_to="back")
        queues = [admin.create_queue(f"q{n}") for n in range(6)]
        for n in range(4):
            admin.update_queue(replace(queues[n], forward_to=f"q{n + 1}"))
        with pytest.raises(ConfigurationError, match="more than 4 steps"):
            admin.update_queue(replace(queues[4], forward_to="q5"))


def test_a_circle_that_came_about_all_the_same_ends_in_dead_letters(tmp_path: Path) -> None:
    bus = Bus(f"sqlite:///{tmp_path}/bus.db")
    try:
        topic = bus.topic("seen")
        back = bus.queue(forward_to=topic)
        # Behind the check's back, as by two administrators at the same time.
        EmbeddedBroker(sa.make_url(bus.connection)).catalog.create(
            Subscription(name="round", topic=topic, forward_to=back)
        )
        with ThreadPoolExecutor() as pool:
            pool.submit(bus.sender(topic=topic).send_payload, "a").result(20)

        seen = bus.receiver(topic=topic, subscription="seen")
        assert [get(seen).body for _ in range(3)] == ["a"] * 3, "sent, and twice around"
        assert nothing(seen)
        dead = get(bus.receiver(topic=topic, subscription="round"), dead_lettered=True)
        assert dead.dead_letter_reason == "MaxTransferHopCountExceeded"
    finally:
        bus.close()


def test_a_forward_target_that_is_gone_makes_dead_letters(tmp_path: Path) -> None:
    bus = Bus(f"sqlite:///{tmp_path}/bus.db")
    try:
        end = bus.queue()
        start = bus.queue(forward_to=end)
        bus.admin.delete_queue(end)
        bus.sender(queue=start).send_payload("a")

        dead = get(bus.receiver(queue=start), dead_lettered=True)

        assert (dead.body, dead.dead_letter_reason) == ("a", "ForwardTargetNotFound")
    finally:
        bus.close()


def test_a_fan_out_that_breaks_half_way_reaches_nobody_and_then_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = Bus(f"sqlite:///{tmp_path}/bus.db")
    try:
        topic = bus.topic("a", "b", "c")
        sender = bus.sender(topic=topic)
        store_many, calls = SqlStore.store_many, []

        def break_at_the_third(self: SqlStore, contents: Any, *, transaction: Any = None) -> list[str]:
            calls.extend([self.name] if transaction is not None else [])
            if len(calls) == 3:
                raise StoreError("broken half-way")
            return store_many(self, contents, transaction=transaction)

        with monkeypatch.context() as broken:
            broken.setattr(SqlStore, "store_many", break_at_the_third)
            sender.send_payload("x")  # durable in the topic's store, which is what sending promises
        assert len(set(calls)) == 3, "two copies were written before it broke"
        engine = sa.create_engine(bus.connection)
        with engine.connect() as connection:
            names = sa.inspect(connection).get_table_names()
            copies = [
                connection.execute(sa.select(sa.func.count()).select_from(sa.table(name))).scalar_one()
                for name in names
                if name.startswith("homing_bus_t_") and any(f"_{letter}_x" in name for letter in "abc")
            ]
        engine.dispose()
        assert sum(copies) == 0, "the first two copies were undone with the third"

        # Whoever receives behind the topic passes it on.
        for name in "abc":
            receiver = bus.receiver(topic=topic, subscription=name)
            # Well before whoever could not pass it on has to let go of it.
            assert get(receiver).body == "x"
            assert nothing(receiver)
    finally:
        bus.close()


def test_a_message_whose_rule_fails_is_a_dead_letter_and_holds_up_nobody(tmp_path: Path) -> None:
    bus = Bus(f"sqlite:///{tmp_path}/bus.db")
    try:
        topic = bus.topic("plain", "acting")
        bus.admin.create_rule(topic, "acting", "r", action="SET huge = n * 1e308; SET sys.Label = text")
        bus.admin.delete_rule(topic, "acting", "$Default")
        sender = bus.sender(topic=topic)
        sender.send(Message(body="too large a number", application_properties={"n": 10, "text": "t"}))
        sender.send(Message(body="too long a text", application_properties={"n": 1, "text": "t" * 300}))
        sender.send(Message(body="fine", application_properties={"n": 1, "text": "t"}))

        acting, plain = (bus.receiver(topic=topic, subscription=name) for name in ("acting", "plain"))

        assert get(acting).body == "fine"
        dead = [get(acting, dead_lettered=True) for _ in range(2)]
        assert {message.dead_letter_reason for message in dead} == {"FilterEvaluationException"}
        assert "huge" not in dead[0].application_properties
        assert len([get(plain) for _ in range(3)]) == 3
    finally:
        bus.close()


def test_what_the_target_refuses_is_a_dead_letter_and_holds_up_nobody(database: str) -> None:
    bus = Bus(database)
    try:
        end = bus.queue(requires_duplicate_detection=True)
        topic = bus.topic("plain")
        bus.admin.create_subscription(topic, "sessions", requires_session=True)
        bus.admin.create_subscription(topic, "forwarded", forward_to=end)
        for name, action in (("sessions", "SET sys.SessionId = v"), ("forwarded", "SET sys.MessageId = v")):
            bus.admin.create_rule(topic, name, "r", action=action)
            bus.admin.delete_rule(topic, name, "$Default")
        sender = bus.sender(topic=topic)
        for value in ("x" * 300, "a\0b", "fine"):
            sender.send(Message(body=value, application_properties={"v": value}))

        plain, sessions = (
            bus.receiver(topic=topic, subscription=name, session_id=session)
            for name, session in (("plain", None), ("sessions", "fine"))
        )
        assert [get(plain).body for _ in range(3)] == ["x" * 300, "a\0b", "fine"]
        assert get(sessions).body == "fine"
        forwarded = bus.receiver(queue=end)
        assert get(forwarded).body == "fine"
        for receiver in (sessions, forwarded):
            dead = [get(receiver, dead_lettered=True) for _ in range(2)]
            assert {message.body for message in dead} == {"x" * 300, "a\0b"}
            assert {message.dead_letter_reason for message in dead} <= {"MessageRefusedByTarget"}
    finally:
        bus.close()


def locked(database: str, queue: str) -> sa.Connection:
    """A connection that keeps everybody else from the queue's table until it is closed."""
    connection = sa.create_engine(with_driver(sa.make_url(database)), poolclass=sa.NullPool).connect()
    (table,) = [name for name in sa.inspect(connection).get_table_names() if queue.replace("-", "_") in name]
    statement = {
        "sqlite": "begin immediate",
        "postgresql": f"lock table {table} in access exclusive mode",
        "mysql": f"lock tables {table} write",
    }[connection.dialect.name]
    connection.exec_driver_sql(statement)
    return connection


def test_an_attempt_ends_in_its_time_and_the_next_one_sends_once(database: str) -> None:
    bus = Bus(database)
    try:
        queue = bus.queue()
        bus.sender(queue=queue).send_payload("makes the table")
        receiver = bus.receiver(queue=queue)
        receiver.complete(get(receiver))
        impatient = RetryOptions(max_retries=0, delay=0.1, try_timeout=1)
        patient = bus.sender(queue=queue, retry=RetryOptions(max_retries=100, delay=0.1, try_timeout=0.5))
        with ThreadPoolExecutor() as pool, locked(database, queue):
            began = time.monotonic()
            with pytest.raises(StoreUnavailableError):
                bus.sender(queue=queue, retry=impatient).send_payload("never")
            assert 0.5 < time.monotonic() - began < 10, "neither at once nor as long as the database would wait"
            sending = pool.submit(patient.send_payload, "once")
            time.sleep(1.5)  # two attempts and more
            assert not sending.done()
            released = time.monotonic()
        sending.result(30)
        assert time.monotonic() - released < 10

        assert get(receiver).body == "once"
        assert nothing(receiver)
    finally:
        bus.close()


_KILLED = """
import os, signal, sys
from homing.bus import MessageSender
from homing.bus.embedded.broker import EmbeddedBroker
EmbeddedBroker.pass_on = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
MessageSender(sys.argv[1], topic=sys.argv[2]).send_payload("durable")
"""


@pytest.mark.chaos
def test_a_sender_killed_after_its_commit_is_passed_on_by_a_receiver(tmp_path: Path) -> None:
    bus = Bus(f"sqlite:///{tmp_path}/bus.db")
    try:
        topic = bus.topic("a", "b")
        killed = subprocess.run([sys.executable, "-c", _KILLED, bus.connection, topic], timeout=60, check=False)
        assert killed.returncode == -signal.SIGKILL

        for name in "ab":
            assert get(bus.receiver(topic=topic, subscription=name)).body == "durable"
    finally:
        bus.close()


def test_a_dead_letter_whose_lock_is_lost_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Bus(f"sqlite:///{tmp_path}/bus.db")
    try:
        queue = bus.queue(lock_duration=60)
        bus.sender(queue=queue).send_payload("a")
        with MessageReceiver(bus.connection, queue=queue, max_auto_lock_renew_duration=0, retry=AT_ONCE) as slow:
            late = get(slow)
            let_all_time_pass(monkeypatch, 61)
            receiver = bus.receiver(queue=queue)
            current = get(receiver)
            with pytest.raises(LeaseLostError):
                slow.dead_letter(late, reason="late")
        assert nothing(receiver, dead_lettered=True)
        receiver.complete(current)
    finally:
        bus.close()


def test_who_lost_a_session_receives_nothing_more_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Bus(f"sqlite:///{tmp_path}/bus.db")
    try:
        queue = bus.queue(requires_session=True, lock_duration=60)
        bus.sender(queue=queue).send_batch([Message(body=n, session_id="a") for n in range(3)])
        slow = bus.receiver(queue=queue, session_id="a", max_auto_lock_renew_duration=0)
        assert get(slow).body == 0
        let_all_time_pass(monkeypatch, 61)
        holder = bus.receiver(queue=queue, session_id="a")
        assert get(holder).body == 0

        with pytest.raises(LeaseLostError, match="session 'a'"):
            slow.receive(server_wait_time=0)
    finally:
        bus.close()


@pytest.mark.parametrize("dies_in", ["store_many", "finish_dead"])
def test_collecting_the_dead_that_breaks_half_way_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_in: str
) -> None:
    bus = Bus(f"sqlite:///{tmp_path}/bus.db")
    try:
        queue = bus.queue()
        receiver = bus.receiver(queue=queue)
        bus.sender(queue=queue).send(Message(body="old", time_to_live=0.05))
        time.sleep(0.1)
        with monkeypatch.context() as broken:

            def away(*_: object, **__: object) -> None:
                raise StoreUnavailableError("broken half-way")

            broken.setattr(SqlStore, dies_in, away)
            with pytest.raises(StoreUnavailableError):
                receiver.receive(server_wait_time=1, dead_lettered=True)

        assert get(receiver, dead_lettered=True).body == "old"
        assert nothing(receiver, dead_lettered=True)
    finally:
        bus.close()


def test_a_message_id_comes_again_when_its_window_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Bus(f"sqlite:///{tmp_path}/bus.db")
    try:
        queue = bus.queue(requires_duplicate_detection=True, duplicate_detection_window=30)
        sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue)
        sender.send(Message(body="first", message_id="m"))
        let_all_time_pass(monkeypatch, 31)
        sender.send(Message(body="second, while the first still waits", message_id="m"))

        sender.send(Message(body="a duplicate of the second", message_id="m"))
        first, second = get(receiver), get(receiver)
        assert [first.body, second.body] == ["first", "second, while the first still waits"]
        assert nothing(receiver)
        receiver.complete(first)
        let_all_time_pass(monkeypatch, 31)
        sender.send_batch([Message(body=text, message_id="m") for text in ("third", "a duplicate of the third")])
        assert get(receiver).body == "third"
        assert nothing(receiver)
    finally:
        bus.close()


def test_what_is_in_the_tables_can_be_read_by_anybody(tmp_path: Path) -> None:
    connection = f"sqlite:///{tmp_path}/bus.db"
    with Administrator(connection) as admin, MessageSender(connection, queue="orders") as sender:
        admin.create_queue("orders")
        sender.send(Message(body="hello", label="l", application_properties={"k": 1}))
    engine = sa.create_engine(connection)
    with engine.connect() as reader:
        (table,) = [name for name in sa.inspect(reader).get_table_names() if name.startswith("homing_bus_orders_")]
        columns = [sa.column(name) for name in ("message", "subject", "headers")]
        row = reader.execute(sa.select(*columns).select_from(sa.table(table))).one()
    engine.dispose()
    assert (row[0], row[1]) == ("hello", "l")
    assert '"k":1' in row[2]
