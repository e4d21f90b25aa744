"""What must hold of every message, whatever happened: compared with what the producers and destinations saw."""

from __future__ import annotations

import json
from typing import Any

from homing.delivery import run_audit
from homing.failure import WORKER_CRASH, read_record
from homing.message import Message
from homing.store import CRASHED, TOO_LARGE
from tests.simulation.plans import Told
from tests.simulation.world import Pipeline, World, serial_of

#: A message that failed for nobody is given up only when so many died, or lost their lease, who held it.
LEAST_DEATHS = 2


class Checker:
    """Looks at one world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def lost(self) -> list[str]:
        """Accepted messages that are nowhere and not where they were to go: at no time may there be one."""
        kept = self.waiting() | self._dead_serials() | self._dead_at_broker()
        return [f"lost: {_named(told)}" for told in self._accepted() if told.serial not in kept and not self.done(told)]

    def waiting(self) -> set[int]:
        """What is in a store, a failure store or the broker's queue, and not finished."""
        found: set[int] = set()
        for pipeline in self._world.pipelines.values():
            for store in (pipeline.stores.store, pipeline.stores.failures):
                rows = self._world.databases.select(store, "time_acked", "message")
                found |= {serial_of(json.loads(text)) for acked, text in rows if acked is None}
            queue = pipeline.queue
            dead = {message.content["serial"] for message, _ in queue.dead}
            found |= {message.content["serial"] for message in queue.everything()} - dead
        return found

    def dead(self) -> list[Told]:
        """What lies in the dead-letter store now."""
        return [self._world.told[serial] for serial in sorted(self._dead_serials())]

    def done(self, told: Told) -> bool:
        """Whether it was dropped by its rule, or has reached every destination of a chain that was in force for it."""
        versions = self._world.pipelines[told.pipeline].versions[told.since :]
        return told.plan.dropped or any(
            all(told.sent.get(flow) or flow in told.plan.filtered for flow in flows) for flows in versions
        )

    def problems(self) -> list[str]:
        """What is wrong at the end of a schedule; nothing, if all is well."""
        world = self._world
        found = [*self.lost(), *(f"stuck: {_named(world.told[one])} still waits" for one in sorted(self.waiting()))]
        found += [f"unexpected: {_named(told)} is too large" for told in world.told.values() if self._grew(told)]
        for letter in self._letters():
            found += self._doubts(letter)
        for pipeline in (world.pipelines[name] for name in {told.pipeline: None for told in world.told.values()}):
            found += self._doubts_of_broker(pipeline)
            found += self._books(pipeline)
        extra = sum(max(0, times - 1) for told in world.told.values() for times in told.sent.values())
        if extra > world.allowed_duplicates:
            found.append(f"{extra} duplicates where {world.allowed_duplicates} are accounted for")
        return found

    def _grew(self, told: Told) -> bool:
        """Whether a store took what is larger than it should take."""
        return told.too_large and told.accepted and told.serial not in self._dead_at_broker()

    # -- dead letters ------------------------------------------------------------------------------------------

    def _letters(self) -> list[Message]:
        dead = next(iter(self._world.pipelines.values())).stores.dead_letters
        return [letter for letter in dead.browse(1000) if letter.state != "acknowledged"]

    def _dead_serials(self) -> set[int]:
        dead = next(iter(self._world.pipelines.values())).stores.dead_letters
        rows = self._world.databases.select(dead, "time_acked", "message")
        return {serial_of(json.loads(text)) for acked, text in rows if acked is None}

    def _dead_at_broker(self) -> set[int]:
        queues = [pipeline.queue for pipeline in self._world.pipelines.values()]
        return {message.content["serial"] for queue in queues for message, _ in queue.dead}

    def _doubts(self, letter: Message) -> list[str]:
        """What is wrong with a dead letter."""
        record = read_record(letter.content)
        told = self._world.told.get(record.message.content["serial"])
        if told is None or not told.accepted:
            return [f"unexpected: dead letter {letter.id} of a message that nobody sent"]
        found = []
        if record.message.content != told.content or record.message.id.partition("~")[0] != told.id:
            found.append(f"another content: dead letter of {_named(told)}")
        types = {str(error["type"]) for error in record.errors.values()}
        if not letter.dead_letter_reason or not types:
            found.append(f"no reason: dead letter of {_named(told)}")
        crashed = bool(types & {WORKER_CRASH, CRASHED})
        if crashed and not told.kills and len(told.suffered) < LEAST_DEATHS:
            found.append(f"false dead letter: {_named(told)} killed nobody, {len(told.suffered)} died who held it")
        if types - {WORKER_CRASH, CRASHED} and not told.failures:
            found.append(f"false dead letter: nothing failed for {_named(told)}, and it says {sorted(types)}")
        return found

    def _doubts_of_broker(self, pipeline: Pipeline) -> list[str]:
        letters = [(self._world.told[message.content["serial"]], reason) for message, reason in pipeline.queue.dead]
        return [
            f"false dead letter: {_named(told)} at the broker, for {reason}"
            for told, reason in letters
            if not (told.too_large if reason == TOO_LARGE else len(told.suffered) >= LEAST_DEATHS)
        ]

    # -- books -------------------------------------------------------------------------------------------------

    def _books(self, pipeline: Pipeline) -> list[str]:
        """The product's own books balance, and say what the world saw."""
        if len(set(pipeline.versions)) > 1:
            return []  # what was finished for other destinations is not to be measured by these
        stored = {
            serial_of(json.loads(text)) for (text,) in self._world.databases.select(pipeline.stores.store, "message")
        }
        books = run_audit(pipeline.stores, pipeline.flows)
        if not books.balanced:
            return [f"the books of {pipeline.name} do not balance:\n{books}"]
        dead = self._dead_serials()
        told = [self._world.told[serial] for serial in sorted(stored)]
        seen: dict[str, Any] = {
            "accepted": len(told),
            "dead_lettered": sum(one.serial in dead for one in told),
            "dropped": sum(self._reached_nobody(one) for one in told if one.serial not in dead),
        }
        said = {name: getattr(books.total, name) for name in seen}
        return [] if said == seen else [f"the books of {pipeline.name} say {said}, and it was {seen}"]

    def _reached_nobody(self, told: Told) -> bool:
        flows = self._world.pipelines[told.pipeline].flows
        return told.plan.dropped or told.plan.filtered.issuperset(flows)

    def _accepted(self) -> list[Told]:
        return [told for told in self._world.told.values() if told.accepted]


def _named(told: Told) -> str:
    return f"{told.serial} ({told.pipeline} {told.id}, {told.plan.kind})"
