"""Topics, subscriptions, rules that really filter, forwarding, sessions, and their administration."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from homing.bus import (
    NEXT_SESSION,
    CorrelationFilter,
    FalseFilter,
    Message,
    MessageReceiver,
    MessageSender,
    Queue,
    Rule,
    SqlFilter,
    TrueFilter,
)
from homing.errors import (
    ConfigurationError,
    EntityExistsError,
    HomingError,
    LeaseLostError,
    NoSuchEntityError,
    NoSuchMessageError,
    SessionHeldError,
)
from tests.bus.conftest import AT_ONCE, Bus, get, nothing


def only(bus: Bus, topic: str, subscription: str, name: str, **rule: object) -> None:
    """Makes this the one rule of the subscription."""
    bus.admin.create_rule(topic, subscription, name, **rule)  # type: ignore[arg-type]
    bus.admin.delete_rule(topic, subscription, "$Default")


def test_every_subscription_gets_its_copy(bus: Bus) -> None:
    topic = bus.topic("billing", "audit")
    bus.sender(topic=topic).send(Message(body={"n": 1}, message_id="m1"))
    billing = bus.receiver(topic=topic, subscription="billing")
    audit = bus.receiver(topic=topic, subscription="audit")

    first, second = get(billing), get(audit)

    assert (first.body, first.message_id) == (second.body, second.message_id) == ({"n": 1}, "m1")
    billing.complete(first)
    audit.abandon(second)
    assert get(audit).delivery_count == 2
    assert nothing(billing)


def test_sql_and_correlation_filters_really_filter(bus: Bus) -> None:
    topic = bus.topic("red", "labelled", "none")
    only(bus, topic, "red", "big-red", filter=SqlFilter("colour = 'red' AND size > 3 OR sys.Label LIKE 'urgent%'"))
    only(bus, topic, "labelled", "eu", filter=CorrelationFilter(label="eu", properties={"size": 5}))
    only(bus, topic, "none", "nothing", filter=FalseFilter())
    bus.sender(topic=topic).send_batch(
        [
            Message(body="big red", application_properties={"colour": "red", "size": 5}),
            Message(body="small red", application_properties={"colour": "red", "size": 1}),
            Message(body="eu", label="eu", application_properties={"size": 5}),
            Message(body="urgent", label="urgent today"),
        ]
    )
    red, labelled = (bus.receiver(topic=topic, subscription=name) for name in ("red", "labelled"))

    assert [get(red).body for _ in range(2)] == ["big red", "urgent"]
    assert get(labelled).body == "eu"
    assert nothing(red)
    assert nothing(labelled)
    assert nothing(bus.receiver(topic=topic, subscription="none"))


def test_an_action_changes_the_copy_and_not_the_others(bus: Bus) -> None:
    topic = bus.topic("plain", "marked")
    only(bus, topic, "marked", "mark", action="SET price = price * 2; SET sys.Label = 'dear'; REMOVE colour")
    bus.sender(topic=topic).send(
        Message(body="a", label="l", application_properties={"price": 21, "colour": "red", "size": 1})
    )

    marked = get(bus.receiver(topic=topic, subscription="marked"))
    plain = get(bus.receiver(topic=topic, subscription="plain"))

    assert (marked.label, marked.application_properties) == ("dear", {"price": 42, "size": 1, "RuleName": "mark"})
    assert (plain.label, plain.application_properties) == ("l", {"price": 21, "colour": "red", "size": 1})


def test_a_dead_letter_of_a_subscription_stays_with_it(bus: Bus) -> None:
    topic = bus.topic("a", "b")
    bus.sender(topic=topic).send_payload("x")
    first, second = (bus.receiver(topic=topic, subscription=name) for name in ("a", "b"))
    first.dead_letter(get(first), reason="bad")

    assert get(first, dead_lettered=True).dead_letter_reason == "bad"
    assert get(second).body == "x"
    assert nothing(second, dead_lettered=True)


def test_a_message_scheduled_on_a_topic_reaches_its_subscriptions_when_due_unless_cancelled(bus: Bus) -> None:
    topic = bus.topic("a")
    sender, receiver = bus.sender(topic=topic), bus.receiver(topic=topic, subscription="a")
    soon = datetime.now(timezone.utc) + timedelta(seconds=1)
    sender.schedule(Message(body="soon"), soon)
    number = sender.schedule(Message(body="never"), soon + timedelta(hours=1))
    sender.cancel(number)
    with pytest.raises(NoSuchMessageError):
        sender.cancel(number)

    assert get(receiver).body == "soon"
    assert datetime.now(timezone.utc) >= soon
    assert nothing(receiver)


def test_a_queue_forwards_to_another_and_a_subscription_too(bus: Bus) -> None:
    end = bus.queue()
    start = bus.queue(forward_to=end)
    topic = bus.topic()
    bus.admin.create_subscription(topic, "forwarding", forward_to=end)
    bus.sender(queue=start).send(Message(body="by queue", correlation_id="c"))
    bus.sender(topic=topic).send_payload("by topic")

    receiver = bus.receiver(queue=end)
    received = {message.body: message for message in (get(receiver), get(receiver))}

    assert set(received) == {"by queue", "by topic"}
    assert received["by queue"].correlation_id == "c"
    with pytest.raises(HomingError):
        bus.receiver(queue=start).receive(server_wait_time=0.2)


def test_duplicate_detection_of_a_topic_counts_before_its_subscriptions(bus: Bus) -> None:
    topic = bus.topic("a", requires_duplicate_detection=True)
    sender, receiver = bus.sender(topic=topic), bus.receiver(topic=topic, subscription="a")
    for body in ("first", "again"):
        sender.send(Message(body=body, message_id="m1"))

    assert get(receiver).body == "first"
    assert nothing(receiver)


# -- sessions ---------------------------------------------------------------------------------------------------


def send_sessions(bus: Bus, queue: str) -> None:
    bus.sender(queue=queue).send_batch(
        [Message(body=f"{session}{number}", session_id=session) for number in (1, 2) for session in ("a", "b")]
    )


def test_a_session_is_received_in_order_by_whoever_holds_it(bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    send_sessions(bus, queue)
    holder = bus.receiver(queue=queue, session_id="a")

    batch = holder.receive_batch(2, server_wait_time=20)

    assert batch is not None
    assert [message.body for message in batch.messages] == ["a1", "a2"]
    assert {message.session_id for message in batch.messages} == {"a"}
    with pytest.raises(SessionHeldError, match="a"):
        bus.receiver(queue=queue, session_id="a").receive(server_wait_time=1)
    for message in batch.messages:
        holder.complete(message)
    assert nothing(holder)


def test_the_next_session_is_one_that_nobody_holds(bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    send_sessions(bus, queue)
    first, second = (bus.receiver(queue=queue, session_id=NEXT_SESSION) for _ in range(2))

    sessions = {get(first).session_id, get(second).session_id}

    assert sessions == {"a", "b"}


def test_a_session_is_free_again_when_its_receiver_is_closed(bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    send_sessions(bus, queue)
    first = bus.receiver(queue=queue, session_id="a")
    first.complete(get(first))
    first.close()

    assert get(bus.receiver(queue=queue, session_id="a")).body == "a2"


def test_sessions_are_asked_for_where_they_are_required_and_only_there(bus: Bus) -> None:
    with_sessions, without = bus.queue(requires_session=True), bus.queue()
    send_sessions(bus, with_sessions)

    with pytest.raises(HomingError, match="session"):
        bus.sender(queue=with_sessions).send_payload("no session")
    with pytest.raises(HomingError, match="session"):
        bus.receiver(queue=with_sessions).receive(server_wait_time=0.2)
    with pytest.raises(HomingError, match="session"):
        bus.receiver(queue=without, session_id="a").receive(server_wait_time=0.2)


# -- administration ---------------------------------------------------------------------------------------------


def test_a_queue_is_made_changed_listed_and_removed(bus: Bus) -> None:
    made = bus.admin.create_queue("Orders.eu", max_delivery_count=3, lock_duration=30)
    assert bus.admin.get_queue("Orders.eu") == made
    with pytest.raises(EntityExistsError, match=r"(?i)orders\.eu"):
        bus.admin.create_queue("Orders.eu")

    bus.admin.update_queue(replace(made, max_delivery_count=7, default_message_time_to_live=3600.0))

    changed = bus.admin.get_queue("Orders.eu")
    assert (changed.max_delivery_count, changed.default_message_time_to_live) == (7, 3600.0)
    assert "Orders.eu" in [queue.name for queue in bus.admin.list_queues()]
    bus.admin.delete_queue("Orders.eu")
    assert not bus.admin.queue_exists("Orders.eu")
    for call in (bus.admin.get_queue, bus.admin.delete_queue):
        with pytest.raises(NoSuchEntityError, match=r"(?i)orders\.eu"):
            call("Orders.eu")
    with pytest.raises(NoSuchEntityError):
        bus.admin.update_queue(made)


def test_a_topic_its_subscriptions_and_rules_are_made_changed_listed_and_removed(bus: Bus) -> None:
    topic = bus.topic()
    subscription = bus.admin.create_subscription(topic, "s", max_delivery_count=4)
    with pytest.raises(EntityExistsError):
        bus.admin.create_subscription(topic, "s")
    assert bus.admin.get_subscription(topic, "s") == subscription
    bus.admin.update_subscription(replace(subscription, lock_duration=15.0))
    assert [found.lock_duration for found in bus.admin.list_subscriptions(topic)] == [15.0]

    assert bus.admin.list_rules(topic, "s") == [Rule("$Default", TrueFilter())]
    rule = bus.admin.create_rule(topic, "s", "r", filter=SqlFilter("a = 1"), action="SET b = 2")
    assert bus.admin.get_rule(topic, "s", "r") == rule
    with pytest.raises(EntityExistsError):
        bus.admin.create_rule(topic, "s", "r")
    correlation = Rule("r", CorrelationFilter(correlation_id="c", properties={"n": 1, "t": "x", "b": True}))
    bus.admin.update_rule(topic, "s", correlation)
    assert bus.admin.get_rule(topic, "s", "r") == correlation
    bus.admin.delete_rule(topic, "s", "r")
    assert not bus.admin.rule_exists(topic, "s", "r")
    with pytest.raises(NoSuchEntityError):
        bus.admin.delete_rule(topic, "s", "r")

    bus.admin.update_topic(replace(bus.admin.get_topic(topic), default_message_time_to_live=60.0))
    assert bus.admin.get_topic(topic).default_message_time_to_live == 60.0
    bus.admin.delete_subscription(topic, "s")
    assert not bus.admin.subscription_exists(topic, "s")
    bus.admin.delete_topic(topic)
    assert not bus.admin.topic_exists(topic)
    assert topic not in [found.name for found in bus.admin.list_topics()]
    with pytest.raises(NoSuchEntityError):
        bus.admin.create_subscription(topic, "s")


def test_a_queue_made_again_does_not_find_old_messages(bus: Bus) -> None:
    queue = bus.queue()
    bus.sender(queue=queue).send_payload("old")
    bus.admin.delete_queue(queue)

    bus.admin.create_queue(queue)

    assert nothing(bus.receiver(queue=queue))


def test_a_missing_entity_is_named_by_sender_and_receiver(bus: Bus) -> None:
    with pytest.raises(NoSuchEntityError, match="missing-queue"):
        bus.sender(queue="missing-queue").send_payload("a")
    with pytest.raises(NoSuchEntityError, match="missing-queue"):
        bus.receiver(queue="missing-queue").receive(server_wait_time=0.2)
    topic = bus.topic()
    with pytest.raises(NoSuchEntityError, match="missing-sub"):
        bus.receiver(topic=topic, subscription="missing-sub").receive(server_wait_time=0.2)


def test_what_is_set_up_wrongly_is_refused_before_anything_is_done(bus: Bus) -> None:
    with pytest.raises(ConfigurationError, match="unknown queue property 'lock'"):
        bus.admin.create_queue("q", lock=1)
    with pytest.raises(ConfigurationError, match="lock_duration"):
        Queue(name="q", lock_duration=1000)
    with pytest.raises(ConfigurationError, match="max_delivery_count"):
        Queue(name="q", max_delivery_count=0)
    with pytest.raises(ConfigurationError, match="name"):
        Queue(name="no spaces")
    with pytest.raises(ConfigurationError, match="either a queue or a topic"):
        MessageSender(bus.connection)
    with pytest.raises(ConfigurationError, match="subscriptions"):
        MessageReceiver(bus.connection, topic="t")


def test_a_lost_session_lock_settles_nothing(bus: Bus) -> None:
    queue = bus.queue(requires_session=True, lock_duration=1.5)
    send_sessions(bus, queue)
    slow = bus.receiver(queue=queue, session_id="a", max_auto_lock_renew_duration=0)
    late = get(slow)
    quick = MessageReceiver(bus.connection, queue=queue, session_id=NEXT_SESSION, retry=AT_ONCE)
    other = get(quick)
    quick.close()
    assert other.session_id == "b"
    time.sleep(1.7)

    with pytest.raises(LeaseLostError):
        slow.complete(late)

    assert get(bus.receiver(queue=queue, session_id="a")).body == "a1"


def test_who_lost_a_session_does_not_let_it_go_for_its_holder(bus: Bus) -> None:
    queue = bus.queue(requires_session=True, lock_duration=1.5)
    send_sessions(bus, queue)
    slow = bus.receiver(queue=queue, session_id="a", max_auto_lock_renew_duration=0)
    get(slow)
    time.sleep(1.7)
    get(bus.receiver(queue=queue, session_id="a"))

    slow.close()

    with pytest.raises(SessionHeldError):
        bus.receiver(queue=queue, session_id="a").receive(server_wait_time=0.3)
