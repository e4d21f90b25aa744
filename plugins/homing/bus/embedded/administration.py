"""Making, changing and removing the entities of the embedded bus."""

from __future__ import annotations

from dataclasses import replace

from homing.bus.broker import Administration
from homing.bus.embedded.catalog import Catalog, Entry
from homing.bus.entities import Entity, Topic
from homing.bus.rules import Rule
from homing.errors import ConfigurationError, EntityExistsError, NoSuchEntityError

_MAX_HOPS = 4


class EmbeddedAdministration(Administration):
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def create(self, entity: Entity) -> None:
        self._check_forwarding(entity)
        self._catalog.create(entity)

    def get(self, kind: type[Entity], path: str) -> Entity:
        entity = self._catalog.get(path).entity
        if not isinstance(entity, kind):
            raise NoSuchEntityError(f"{path!r} is a {type(entity).__name__.lower()}, not a {kind.__name__.lower()}")
        return entity

    def update(self, entity: Entity) -> None:
        self._check_forwarding(entity)
        self._catalog.update(entity)

    def delete(self, path: str) -> None:
        self._catalog.delete(path)

    def entities(self, kind: type[Entity], topic: str | None = None) -> list[Entity]:
        return [entry.entity for entry in self._catalog.all(kind, topic)]

    # -- rules -------------------------------------------------------------------------------------------------

    def rules(self, subscription: str) -> list[Rule]:
        return [*self._catalog.get(subscription).rules]

    def create_rule(self, subscription: str, rule: Rule) -> None:
        def add(entry: Entry) -> Entry:
            if any(_same(other.name, rule.name) for other in entry.rules):
                raise EntityExistsError(f"{subscription!r} has a rule {rule.name!r} already")
            return replace(entry, rules=(*entry.rules, rule))

        self._catalog.change(subscription, add)

    def update_rule(self, subscription: str, rule: Rule) -> None:
        def change(entry: Entry) -> Entry:
            _find(entry, rule.name, subscription)
            return replace(entry, rules=tuple(rule if _same(r.name, rule.name) else r for r in entry.rules))

        self._catalog.change(subscription, change)

    def delete_rule(self, subscription: str, name: str) -> None:
        def remove(entry: Entry) -> Entry:
            _find(entry, name, subscription)
            return replace(entry, rules=tuple(rule for rule in entry.rules if not _same(rule.name, name)))

        self._catalog.change(subscription, remove)

    def close(self) -> None:
        """Nothing is held."""

    # -- inside ------------------------------------------------------------------------------------------------

    def _check_forwarding(self, entity: Entity) -> None:
        """Refuses to forward to nowhere, in a circle, or over too many steps."""
        target, hops = None if isinstance(entity, Topic) else entity.forward_to, 0
        paths = [] if target is None else [target.lower()]
        while paths:
            hops += 1
            if entity.path.lower() in paths or hops > _MAX_HOPS:
                raise ConfigurationError(
                    f"{entity.path!r} cannot forward to {target!r}: messages would go in a circle or take more than "
                    f"{_MAX_HOPS} steps"
                )
            paths = [following for path in paths for following in self._behind(path)]

    def _behind(self, path: str) -> list[str]:
        """Where messages go from here."""
        entity = self._catalog.get(path).entity
        if isinstance(entity, Topic):
            subscriptions = self._catalog.database.read(lambda c: self._catalog.subscriptions(c, path))
            return [entry.entity.path.lower() for entry in subscriptions]
        return [] if entity.forward_to is None else [entity.forward_to.lower()]


def _same(first: str, second: str) -> bool:
    return first.lower() == second.lower()


def _find(entry: Entry, name: str, subscription: str) -> None:
    if not any(_same(rule.name, name) for rule in entry.rules):
        raise NoSuchEntityError(f"{subscription!r} has no rule {name!r}")
