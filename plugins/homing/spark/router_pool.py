"""Lanes: the threads of a Spark task that deliver what a router sends to several destinations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType

from homing.pipeline import MessageContext
from homing.pipeline.flows import DestinationFlow, RouterFlow
from homing.pipeline.handlers import Handler
from homing.pipeline.outcome import Ended

Routed = Sequence[tuple[int, MessageContext]]


class Lanes:
    """Each destination that a router picks has as many threads of its own as it asks for: one that is slow, or waits
    for its rate, does not hold up the others. A block: what has not begun when it is left is not begun any more."""

    def __init__(self, flow: RouterFlow) -> None:
        self.name = flow.name
        self._flow = flow
        self._pools: dict[str, ThreadPoolExecutor] = {}

    def __enter__(self) -> Lanes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in self._pools.values():
            pool.shutdown()

    def deliver_many(self, ctxs: Sequence[MessageContext]) -> Iterator[tuple[int, Ended]]:
        """As the flow's own `deliver_many`; yields each as soon as it is known how it ended."""
        ended, picked = self._flow.route_many(ctxs)
        yield from ended
        done: SimpleQueue[tuple[int, Ended] | BaseException] = SimpleQueue()
        for target, routed in picked.items():
            pool = self._pool(target.destination)
            for start in range(0, len(routed), target.batch):
                pool.submit(_deliver, target, routed[start : start + target.batch], done)
        for _ in range(len(ctxs) - len(ended)):
            outcome = done.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome

    def _pool(self, destination: Handler) -> ThreadPoolExecutor:
        # By name, since a router may make the destination it picks.
        if destination.name not in self._pools:
            self._pools[destination.name] = ThreadPoolExecutor(destination.threads, f"homing-{destination.name}")
        return self._pools[destination.name]


def _deliver(target: DestinationFlow, routed: Routed, done: SimpleQueue[tuple[int, Ended] | BaseException]) -> None:
    try:
        for place, ended in target.deliver_many([own for _, own in routed]):
            done.put((routed[place][0], ended))
    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
        done.put(error)
