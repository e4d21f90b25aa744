"""The nemesis: deals the harms, in an order that the seed decides, until each has hit somebody."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

from chaos.destination import Destination
from chaos.harms import Harm, Harms
from chaos.subjects import Subject


class Nemesis:
    """Does one harm after the other, from a shuffled deck that holds every kind once; then from the next.

    `hits` counts the tasks that were hit. With `only`, beginnings of names, the others are never done.
    """

    def __init__(
        self,
        seed: str,
        destination: Destination,
        subject: Subject,
        say: Callable[[str], None],
        only: tuple[str, ...] = ("",),
    ) -> None:
        self._decks, self._rests = random.Random(seed), random.Random(seed)  # noqa: S311
        self._destination, self._subject = destination, subject
        self._harms = Harms(subject, destination, say)
        self._kinds = [harm for harm in self._harms.all if harm.name.startswith(only)]
        self._say = say
        self._hand: list[tuple[Harm, float]] = []
        self._done: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.hits = 0

    @property
    def harms(self) -> dict[str, int]:
        """How often each kind hit somebody."""
        return {harm.name: self._done[harm.name] for harm in self._kinds}

    @property
    def to_do(self) -> int:
        """How many have not hit anybody yet."""
        return sum(1 for times in self.harms.values() if not times)

    def deal(self) -> list[tuple[Harm, float]]:
        """The next deck: which harms there will be depends on nothing but the seed."""
        return [(harm, self._decks.random()) for harm in self._decks.sample(self._kinds, len(self._kinds))]

    def strike(self) -> None:
        """One harm, undone before this returns, except for what is dead: the first in hand that has a victim now."""
        self._hand = self._hand or self.deal()
        until = time.monotonic() + self._subject.calm
        while time.monotonic() < until:
            self._harms.look()
            if any(self._play(card) for card in self._in_order()):
                return
            time.sleep(0.1)

    def _in_order(self) -> list[tuple[Harm, float]]:
        """As dealt; but where deliveries come in bursts, a burst is made use of."""
        return sorted(self._hand, key=lambda card: self._subject.on_spark and not card[0].in_burst)

    def _play(self, card: tuple[Harm, float]) -> bool:
        """Whether the harm was done. One that hit nobody goes to the end of the hand, to be done again."""
        harm, drawn = card
        hit = harm.strike(drawn)
        if hit is None:
            return False
        self._hand.remove(card)
        self.hits += harm.hits
        if hit:
            self._done[harm.name] += 1
        else:
            self._say(f"and hit nobody: {harm.name}")
            self.missed[harm.name] += 1
            self._hand.append(card)
        return True

    def rest(self, left: float) -> None:
        """Leaves everybody alone for a moment, with `left` seconds to go: there is to be time for every harm.

        Not while there is a burst of deliveries to make use of.
        """
        if self._subject.on_spark and any(harm.in_burst for harm, _ in self._hand) and self._destination.is_busy():
            return
        calm = self._subject.calm
        # In overtime, too, there is to be somebody at work whom a harm can hit.
        time.sleep(self._rests.uniform(0.1, 1) * min(calm, max(left / (2 * self.to_do + 1), calm / 4)))
