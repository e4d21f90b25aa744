"""Creates, changes and removes the entities of the service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus import management as sdk

from homing.bus.broker import Administration
from homing.bus.entities import Entity, Queue, Subscription, Topic
from homing.bus.rules import CorrelationFilter, FalseFilter, Filter, Rule, SqlFilter, TrueFilter
from homing.errors import (
    ConfigurationError,
    EntityExistsError,
    HomingError,
    NoSuchEntityError,
    StoreError,
    StoreUnavailableError,
)

_CONFLICT, _UNAUTHORISED, _NOT_FOUND = 409, 401, 404
_FOREVER = timedelta(days=10_000)  # the service's value for "no limit" is longer
_DEFAULT_SIZE = Queue(name="x").max_message_size
_TEXTS = ("correlation_id", "message_id", "to", "reply_to", "label", "session_id", "reply_to_session_id",
          "content_type")  # fmt: skip


class _WithoutTls(RequestsTransport):  # type: ignore[misc]
    """For emulators: the SDK would use TLS with them."""

    def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **options)


class ServiceAdministration(Administration):
    def __init__(self, connection_string: str) -> None:
        options = {"transport": _WithoutTls()} if "usedevelopmentemulator=true" in connection_string.lower() else {}
        self._client = sdk.ServiceBusAdministrationClient.from_connection_string(connection_string, **options)

    def create(self, entity: Entity) -> None:
        with _translated(f"create {entity.path!r}"):
            if isinstance(entity, Queue):
                self._client.create_queue(entity.name, **_properties(entity))
            elif isinstance(entity, Topic):
                self._client.create_topic(entity.name, **_properties(entity))
            else:
                self._client.create_subscription(entity.topic, entity.name, **_properties(entity))

    def get(self, kind: type[Entity], path: str) -> Entity:
        with _translated(f"find the {kind.__name__.lower()} {path!r}"):
            return self._entity(kind, self._described(kind, path), path)

    def update(self, entity: Entity) -> None:
        with _translated(f"update {entity.path!r}"):
            described = self._described(type(entity), entity.path)
            for name, value in _properties(entity).items():
                setattr(described, name, value)
            if isinstance(entity, Queue):
                self._client.update_queue(described)
            elif isinstance(entity, Topic):
                self._client.update_topic(described)
            else:
                self._client.update_subscription(entity.topic, described)

    def delete(self, path: str) -> None:
        topic, separator, name = path.partition("/subscriptions/")
        with _translated(f"delete {path!r}"):
            if separator:
                self._client.delete_subscription(topic, name)
            else:
                # The same request removes a queue or a topic.
                self._client.delete_queue(path)

    def entities(self, kind: type[Entity], topic: str | None = None) -> list[Entity]:
        with _translated(f"list the entities of kind {kind.__name__.lower()}"):
            if kind is Queue:
                return [self._entity(kind, found, found.name) for found in self._client.list_queues()]
            if kind is Topic:
                return [self._entity(kind, found, found.name) for found in self._client.list_topics()]
            listed = self._client.list_subscriptions(str(topic))
            return [self._entity(kind, found, f"{topic}/subscriptions/{found.name}") for found in listed]

    # -- rules -------------------------------------------------------------------------------------------------

    def rules(self, subscription: str) -> list[Rule]:
        with _translated(f"list the rules of {subscription!r}"):
            return [_to_rule(found) for found in self._client.list_rules(*_parts(subscription))]

    def create_rule(self, subscription: str, rule: Rule) -> None:
        options = {"filter": _to_filter(rule.filter)}
        if rule.action is not None:
            options["action"] = sdk.SqlRuleAction(rule.action)
        with _translated(f"create the rule {rule.name!r} of {subscription!r}"):
            self._client.create_rule(*_parts(subscription), rule.name, **options)

    def update_rule(self, subscription: str, rule: Rule) -> None:
        with _translated(f"update the rule {rule.name!r} of {subscription!r}"):
            described = self._client.get_rule(*_parts(subscription), rule.name)
            described.filter = _to_filter(rule.filter)
            described.action = None if rule.action is None else sdk.SqlRuleAction(rule.action)
            self._client.update_rule(*_parts(subscription), described)

    def delete_rule(self, subscription: str, name: str) -> None:
        with _translated(f"delete the rule {name!r} of {subscription!r}"):
            self._client.delete_rule(*_parts(subscription), name)

    def close(self) -> None:
        self._client.close()

    # -- inside ------------------------------------------------------------------------------------------------

    def _described(self, kind: type[Entity], path: str) -> Any:
        if kind is Queue:
            return self._client.get_queue(path)
        if kind is Topic:
            return self._client.get_topic(path)
        return self._client.get_subscription(*_parts(path))

    def _entity(self, kind: type[Entity], described: Any, path: str) -> Entity:
        """The SDK's description as an entity of ours; a duration that means "for ever" becomes None."""
        known: dict[str, Any] = {"name": described.name}
        life = described.default_message_time_to_live
        known["default_message_time_to_live"] = None if _is_forever(life) else _seconds(life)
        if kind is not Topic:
            known["lock_duration"] = _seconds(described.lock_duration)
            for name in ("max_delivery_count", "dead_lettering_on_message_expiration", "requires_session"):
                known[name] = getattr(described, name)
            known["forward_to"] = _name_of(described.forward_to)
        if kind is not Subscription:
            known["requires_duplicate_detection"] = described.requires_duplicate_detection
            known["duplicate_detection_window"] = _seconds(described.duplicate_detection_history_time_window)
            kilobytes = described.max_message_size_in_kilobytes
            known["max_message_size"] = kilobytes * 1024 if kilobytes else None
        else:
            known["topic"] = path.partition("/subscriptions/")[0]
        return kind(**{name: value for name, value in known.items() if value is not None})


def _properties(entity: Entity) -> dict[str, Any]:
    """The entity as arguments of the SDK."""
    life = entity.default_message_time_to_live
    known: dict[str, Any] = {"default_message_time_to_live": None if life is None else timedelta(seconds=life)}
    if not isinstance(entity, Topic):
        known["lock_duration"] = timedelta(seconds=entity.lock_duration)
        for name in ("max_delivery_count", "dead_lettering_on_message_expiration", "requires_session", "forward_to"):
            known[name] = getattr(entity, name)
    if not isinstance(entity, Subscription):
        known["requires_duplicate_detection"] = entity.requires_duplicate_detection
        known["duplicate_detection_history_time_window"] = timedelta(seconds=entity.duplicate_detection_window)
        if entity.max_message_size != _DEFAULT_SIZE:
            known["max_message_size_in_kilobytes"] = entity.max_message_size // 1024
    return known


def _to_filter(wanted: Filter) -> Any:
    if isinstance(wanted, SqlFilter):
        return sdk.SqlRuleFilter(wanted.expression)
    if isinstance(wanted, CorrelationFilter):
        return sdk.CorrelationRuleFilter(**wanted.fields(), properties=dict(wanted.properties) or None)
    return sdk.TrueRuleFilter() if isinstance(wanted, TrueFilter) else sdk.FalseRuleFilter()


def _to_rule(described: Any) -> Rule:
    action = getattr(described.action, "sql_expression", None)
    return Rule(described.name, _from_filter(described.filter), action or None)


def _from_filter(described: Any) -> Filter:
    # True and false filters are SQL filters to the SDK: they come first.
    if isinstance(described, sdk.TrueRuleFilter):
        return TrueFilter()
    if isinstance(described, sdk.FalseRuleFilter):
        return FalseFilter()
    if isinstance(described, sdk.SqlRuleFilter):
        return SqlFilter(described.sql_expression or "1=1")
    texts = {name: getattr(described, name) for name in _TEXTS}
    return CorrelationFilter(**texts, properties=dict(described.properties or {}))


def _parts(path: str) -> tuple[str, str]:
    topic, _, name = path.partition("/subscriptions/")
    return topic, name


def _name_of(forward_to: str | None) -> str | None:
    """The service returns the whole address of the target."""
    return None if not forward_to else urlsplit(forward_to).path.strip("/") or forward_to


def _seconds(value: timedelta | str | None) -> float | None:
    return value.total_seconds() if isinstance(value, timedelta) else None


def _is_forever(value: timedelta | str | None) -> bool:
    return not isinstance(value, timedelta) or value > _FOREVER


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except HomingError:
        raise
    except AzureError as error:
        status = error.status_code if isinstance(error, HttpResponseError) else None
        text = f"cannot {doing}: {' '.join(str(error).split())[:300]}"
        if isinstance(error, ResourceExistsError) or status == _CONFLICT:
            raise EntityExistsError(text) from error
        if isinstance(error, ResourceNotFoundError) or status == _NOT_FOUND:
            raise NoSuchEntityError(text) from error
        if isinstance(error, ClientAuthenticationError) or status == _UNAUTHORISED:
            raise ConfigurationError(f"{text}; the service refuses the key of this connection string") from error
        if isinstance(error, (ServiceRequestError, ServiceResponseError)):
            raise StoreUnavailableError(text) from error
        raise StoreError(text) from error
