"""What is to become of one message: the right answer, known before anything happens to it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

ALWAYS = 1_000


class RefusedError(Exception):
    """A handler's no."""


@dataclass(frozen=True)
class Plan:
    """How the handlers treat a message. `SOURCE` stands for the source flow."""

    kind: str = "good"
    dropped: bool = False
    #: How often a flow refuses the message before it takes it; ALWAYS makes it a poison message.
    refusals: dict[str, int] = field(default_factory=dict)
    #: How often a flow takes the message and fails nevertheless.
    late_refusals: dict[str, int] = field(default_factory=dict)
    #: How often a flow has no memory left for it.
    too_much: dict[str, int] = field(default_factory=dict)
    filtered: frozenset[str] = frozenset()
    #: The flow in which it kills whoever handles it, and how often.
    kills: tuple[str, int] | None = None

    @property
    def poison(self) -> bool:
        return ALWAYS in self.refusals.values() or (self.kills is not None and self.kills[1] == ALWAYS)


SOURCE = ""
_KINDS = {
    "good": 12, "dropped": 1, "filtered": 1, "refused": 3, "source": 1, "poison": 2, "late": 1, "memory": 1,
    "killer": 1, "sometimes a killer": 1,
}  # fmt: skip


def draw(rng: random.Random, flows: tuple[str, ...]) -> Plan:
    kind = rng.choices(list(_KINDS), list(_KINDS.values()))[0]
    flow = rng.choice(flows)
    more: dict[str, Any] = {
        "good": {},
        "dropped": {"dropped": True},
        "filtered": {"filtered": frozenset({flow})},
        "refused": {"refusals": {flow: rng.randint(1, 2)}},
        "source": {"refusals": {SOURCE: rng.choice([1, 2, ALWAYS])}},
        "poison": {"refusals": {flow: ALWAYS}},
        "late": {"late_refusals": {flow: 1}},
        "memory": {"too_much": {flow: 1}},
        "killer": {"kills": (flow, ALWAYS)},
        "sometimes a killer": {"kills": (flow, 1)},
    }[kind]
    return Plan(kind, **more)


@dataclass
class Told:
    """One message as its producer told it, and what the world has seen of it since."""

    serial: int
    pipeline: str
    id: str
    content: dict[str, Any]
    plan: Plan
    content_type: str | None = None
    #: Whether it is larger than its store takes.
    too_large: bool = False
    #: Whether somebody has promised its delivery.
    accepted: bool = False
    #: Whether the store has forgotten it, after it was finished.
    purged: bool = False
    #: How often a handler failed for it, and how often it killed whoever had it in hand.
    failures: int = 0
    kills: int = 0
    #: Of how many that held it the world has seen the end, or a lease that ran out.
    suffered: set[str] = field(default_factory=set)
    #: What was asked of each flow, and what each flow has taken.
    asked: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    #: The version of the chain that was in force when it came.
    since: int = 0
