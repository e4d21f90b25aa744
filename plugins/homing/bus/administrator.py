"""Administrator."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from homing.bus.connection import open_broker
from homing.bus.entities import AnyEntity, Entity, Queue, Subscription, Topic, subscription_path, with_properties
from homing.bus.rules import Filter, Rule, TrueFilter
from homing.errors import NoSuchEntityError


class Administrator:
    """Makes, changes and removes queues, topics, subscriptions and rules.

    `create_…` raises EntityExistsError if it exists, the others NoSuchEntityError if it does not. Removing an
    entity removes its messages. Properties are the fields of Queue, Topic and Subscription.
    """

    def __init__(self, connection: str) -> None:
        self._broker = open_broker(connection)
        self._bus = self._broker.administration()
        self._closed = False

    # -- queues ------------------------------------------------------------------------------------------------

    def create_queue(self, name: str, **properties: Any) -> Queue:
        queue = with_properties(Queue(name=name), properties)
        self._bus.create(queue)
        return queue

    def get_queue(self, name: str) -> Queue:
        return self._get(Queue(name=name))

    def update_queue(self, queue: Queue) -> None:
        self._get(queue)
        self._bus.update(queue)

    def list_queues(self) -> list[Queue]:
        return [entity for entity in self._bus.entities(Queue) if isinstance(entity, Queue)]

    def delete_queue(self, name: str) -> None:
        self._bus.delete(self._get(Queue(name=name)).path)

    def queue_exists(self, name: str) -> bool:
        return self._exists(Queue(name=name))

    # -- topics ------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, **properties: Any) -> Topic:
        topic = with_properties(Topic(name=name), properties)
        self._bus.create(topic)
        return topic

    def get_topic(self, name: str) -> Topic:
        return self._get(Topic(name=name))

    def update_topic(self, topic: Topic) -> None:
        self._get(topic)
        self._bus.update(topic)

    def list_topics(self) -> list[Topic]:
        return [entity for entity in self._bus.entities(Topic) if isinstance(entity, Topic)]

    def delete_topic(self, name: str) -> None:
        """Removes the topic with its subscriptions."""
        self._bus.delete(self._get(Topic(name=name)).path)

    def topic_exists(self, name: str) -> bool:
        return self._exists(Topic(name=name))

    # -- subscriptions -----------------------------------------------------------------------------------------

    def create_subscription(self, topic: str, name: str, **properties: Any) -> Subscription:
        """A subscription that gets every message, by its rule $Default; remove that rule to let its other rules
        choose."""
        self._get(Topic(name=topic))
        subscription = with_properties(Subscription(topic=topic, name=name), properties)
        self._bus.create(subscription)
        return subscription

    def get_subscription(self, topic: str, name: str) -> Subscription:
        return self._get(Subscription(topic=topic, name=name))

    def update_subscription(self, subscription: Subscription) -> None:
        self._get(subscription)
        self._bus.update(subscription)

    def list_subscriptions(self, topic: str) -> list[Subscription]:
        found = self._bus.entities(Subscription, self._get(Topic(name=topic)).name)
        return [entity for entity in found if isinstance(entity, Subscription)]

    def delete_subscription(self, topic: str, name: str) -> None:
        self._bus.delete(self._get(Subscription(topic=topic, name=name)).path)

    def subscription_exists(self, topic: str, name: str) -> bool:
        return self._exists(Subscription(topic=topic, name=name))

    # -- rules -------------------------------------------------------------------------------------------------

    def create_rule(
        self, topic: str, subscription: str, name: str, *, filter: Filter | None = None, action: str | None = None
    ) -> Rule:
        """Raises ConfigurationError, with the position, for a filter or action that cannot be parsed."""
        rule = Rule(name, filter or TrueFilter(), action)
        self._bus.create_rule(subscription_path(topic, subscription), rule)
        return rule

    def get_rule(self, topic: str, subscription: str, name: str) -> Rule:
        for rule in self.list_rules(topic, subscription):
            if rule.name.lower() == name.lower():
                return rule
        raise NoSuchEntityError(f"the subscription {subscription!r} of {topic!r} has no rule {name!r}")

    def update_rule(self, topic: str, subscription: str, rule: Rule) -> None:
        self._bus.update_rule(subscription_path(topic, subscription), rule)

    def list_rules(self, topic: str, subscription: str) -> list[Rule]:
        return self._bus.rules(subscription_path(topic, subscription))

    def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        self._bus.delete_rule(subscription_path(topic, subscription), name)

    def rule_exists(self, topic: str, subscription: str, name: str) -> bool:
        return any(rule.name.lower() == name.lower() for rule in self.list_rules(topic, subscription))

    def close(self) -> None:
        """Closes the connections. Idempotent."""
        if not self._closed:
            self._closed = True
            self._bus.close()
            self._broker.close()

    # -- inside ------------------------------------------------------------------------------------------------

    def _get(self, wanted: AnyEntity) -> AnyEntity:
        found = self._bus.get(type(wanted), wanted.path)
        assert isinstance(found, type(wanted))
        return found

    def _exists(self, wanted: Entity) -> bool:
        try:
            self._bus.get(type(wanted), wanted.path)
        except NoSuchEntityError:
            return False
        return True

    def __enter__(self) -> Administrator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
