"""LocalEngine: works on a small batch in this process alone, which is done before Spark would have started.

It has the same steps, ledger, fences and work files as the Engine on Spark, so either can go on where the other
stopped. It does not need Spark. A replay does not need Arrow either.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from homing.delivery.batch import Batch
from homing.delivery.local_replay import replay_batch
from homing.delivery.step import Step, log_deliveries, log_result
from homing.delivery.stores import PipelineStores
from homing.delivery.work_files import LocalFiles, WorkDir
from homing.extras import needs
from homing.ledger import SOURCE_FLOW, Fence
from homing.pipeline import HandlerChain


@dataclass(frozen=True)
class LocalEngine:
    """Runs a chain over the messages that a batch holds, and records what became of them for the step of `fence`.

    It can run only chains without DataFrame handlers, with a work directory on this machine. A message that crashes its
    worker ends this whole process. The step then stays open, from which the next attempt knows of the crash.
    """

    chain: HandlerChain
    stores: PipelineStores
    batch: Batch
    fence: Fence

    def process(self, work_dir: str) -> int:
        """Runs the source flow, and writes what is to be delivered to the work directory. Returns how many messages."""
        with needs("a small batch", "spark", "pyarrow"):
            from homing.delivery.arrow import parquet, steps

        place = self._work_dir(work_dir)
        output = place.new_output(self.batch.run_id, self.fence.owner)
        ready = parquet.write(output, steps.process(self._step(), steps.read(self.batch)))
        place.publish(self.fence, [output])
        log_result(self.batch, f"{ready} messages are ready to be delivered")
        return ready

    def deliver(self, flow: str, work_dir: str) -> Counter[str]:
        """Delivers to one destination what `process` left in the work directory.

        If `process` left nothing there, runs the source flow again. Returns how many messages ended in each state.
        """
        with needs("a small batch", "spark", "pyarrow"):
            from homing.delivery.arrow import parquet, steps

        left = self._work_dir(work_dir).copies(self.batch.run_id)
        messages = steps.process(self._step(), steps.read(self.batch)) if left is None else parquet.read(left)
        # What a process left long ago may name messages that another run holds by now.
        held = frozenset(message.ref for message in self.batch.messages())
        total: Counter[str] = Counter()
        for tally in steps.deliver(self._step(held=held), flow, messages):
            total.update(steps.counted(tally))
        log_deliveries(self.batch, flow, total)
        return total

    def replay(self, rate: float | None = None) -> Counter[str]:
        """Runs the source flow and every destination again over what the batch holds."""
        step = self._step(rate=rate)
        ended = replay_batch(step, self.batch, step.recorder())
        del ended[SOURCE_FLOW]
        for flow, total in ended.items():
            log_deliveries(self.batch, flow, total)
        return sum(ended.values(), Counter[str]())

    def _work_dir(self, place: str) -> WorkDir:
        return WorkDir(place, LocalFiles(), self.stores.ledger)

    def _step(self, **more: object) -> Step:
        return Step(self.chain, self.stores.ledger, self.fence, **more)  # type: ignore[arg-type]
