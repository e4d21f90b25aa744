"""Creates, changes and removes the entities of the embedded bus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from homing.bus.broker import Administration
from homing.bus.embedded.catalog import MAX_HOPS, Catalog, CatalogEntry
from homing.bus.entities import Entity, Subscription, Topic
from homing.bus.rules import Rule
from homing.errors import ConfigurationError, EntityExistsError, NoSuchEntityError


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
        rule.check()

        def add(entry: CatalogEntry) -> CatalogEntry:
            if any(_same(other.name, rule.name) for other in entry.rules):
                raise EntityExistsError(f"{subscription!r} has a rule {rule.name!r} already")
            return replace(entry, rules=(*entry.rules, rule))

        self._catalog.change(subscription, add)

    def update_rule(self, subscription: str, rule: Rule) -> None:
        rule.check()

        def change(entry: CatalogEntry) -> CatalogEntry:
            _find(entry, rule.name, subscription)
            return replace(entry, rules=tuple(rule if _same(r.name, rule.name) else r for r in entry.rules))

        self._catalog.change(subscription, change)

    def delete_rule(self, subscription: str, name: str) -> None:
        def remove(entry: CatalogEntry) -> CatalogEntry:
            _find(entry, name, subscription)
            return replace(entry, rules=tuple(rule for rule in entry.rules if not _same(rule.name, name)))

        self._catalog.change(subscription, remove)

    def close(self) -> None:
        """Holds no resources."""

    # -- inside ------------------------------------------------------------------------------------------------

    def _check_forwarding(self, entity: Entity) -> None:
        """Refuses to forward to an unknown entity, in a circle, or over too many steps."""
        if isinstance(entity, Topic) or entity.forward_to is None:
            return
        mine = (entity.topic if isinstance(entity, Subscription) else entity.path).lower()
        behind = _levels(entity.forward_to.lower(), self._behind)
        before = _levels(mine, self._before)
        if any(mine in level for level in behind) or len(before) + len(behind) - 1 > MAX_HOPS:
            raise ConfigurationError(
                f"{entity.path!r} cannot forward to {entity.forward_to!r}: messages would go in a circle, or take more "
                f"than {MAX_HOPS} steps"
            )

    def _behind(self, path: str) -> set[str]:
        """The entities that messages reach from here by being forwarded once."""
        entity = self._catalog.get(path).entity
        senders = self._catalog.all(Subscription, path) if isinstance(entity, Topic) else [self._catalog.get(path)]
        targets = [None if isinstance(sender.entity, Topic) else sender.entity.forward_to for sender in senders]
        return {target.lower() for target in targets if target is not None}

    def _before(self, path: str) -> set[str]:
        senders = [entry.entity for entry in self._catalog.forwarding_to(path)]
        return {(one.topic if isinstance(one, Subscription) else one.path).lower() for one in senders}


def _levels(start: str, following: Callable[[str], set[str]]) -> list[set[str]]:
    """What is 0, 1, 2 … steps away; stops as soon as it is too far."""
    levels = [{start}]
    while len(levels) <= MAX_HOPS and (further := {name for path in levels[-1] for name in following(path)}):
        levels.append(further)
    return levels


def _same(first: str, second: str) -> bool:
    return first.lower() == second.lower()


def _find(entry: CatalogEntry, name: str, subscription: str) -> None:
    if not any(_same(rule.name, name) for rule in entry.rules):
        raise NoSuchEntityError(f"{subscription!r} has no rule {name!r}")
