"""Every step of a run is killed, each on its own, and operators do what they should not: nothing is lost.

Every scenario is a function over a pipeline of its own. All of them run at the same time, on one Airflow: what each
pipeline waits for is the other pipelines' work. Only what they share, the scheduler, is killed once they are done.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from demo.stack import AirflowStack
from tests.airflow.scenario import (
    IN_FLIGHT,
    LATE,
    MESSAGES,
    Outcome,
    Scenario,
    has_ended,
    kill,
    parent,
    spark_submit,
)

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.airflow, pytest.mark.matrix, pytest.mark.services, pytest.mark.timeout(2400)]

DAGS = Path(__file__).parent / "matrix_dags"
REPOSITORY = Path(__file__).parents[2]
LATE_IN_SOURCE, LATE_IN_LEFT = f"source{LATE}", f"left{LATE}"


def nothing_is_lost(found: Outcome, *, dead: int = 0, twice: int = 0) -> None:
    """Every destination has got every message, but for `dead` ones, and at most `twice` of them twice."""
    assert found.books.balanced, str(found.books)
    assert (found.books.total.accepted, found.books.total.dead_lettered) == (MESSAGES, dead), str(found.books)
    for flow, got in found.delivered.items():
        assert len(got) == MESSAGES - dead, f"{flow} got {len(got)} of {MESSAGES} messages"
        assert found.twice(flow) <= twice, f"{flow} got {found.twice(flow)} messages twice: {got.most_common(9)}"


# -- what is killed ----------------------------------------------------------------------------------------------


def sensor(case: Scenario) -> None:
    """The task that listens, while it looks into an empty store."""
    case.hold("look")
    case.start()
    kill(case.held("look"))
    case.wait_for("listen", "deferred")
    case.store()

    nothing_is_lost(case.settled())
    assert case.tries("listen") == 2


def claim(case: Scenario) -> None:
    """The task that listens, when its claim is committed and nobody knows of it; its messages have no retries."""
    case.store()
    case.hold("claimed")
    case.start()
    kill(case.held("claimed"))

    nothing_is_lost(case.settled())
    assert case.tries("listen") == 2


def process(case: Scenario) -> None:
    """The process of the task `process`, which leaves its Spark job behind."""
    case.store()
    case.hold(LATE_IN_SOURCE)
    case.start()
    worker = case.held(LATE_IN_SOURCE)
    job = spark_submit(worker)
    kill(parent(job))

    nothing_is_lost(case.settled())
    assert case.tries("process") == 2
    case.release(LATE_IN_SOURCE, worker)
    has_ended(job)
    nothing_is_lost(case.outcome())


def deliver(case: Scenario) -> None:
    """The process of one of two deliver tasks; the Spark job it leaves behind goes on while the retry delivers."""
    case.store()
    case.hold(LATE_IN_LEFT)
    case.start()
    worker = case.held(LATE_IN_LEFT)
    job = spark_submit(worker)
    kill(parent(job))
    case.has_gone_on()
    case.release(LATE_IN_LEFT, worker)
    has_ended(job)

    found = case.settled()
    nothing_is_lost(found, twice=1)
    assert found.twice("right") == 0
    assert (case.tries("deliver.left"), case.tries("deliver.right")) == (2, 1)


def submit(case: Scenario) -> None:
    """The spark-submit of a task."""
    case.store()
    case.hold(LATE_IN_LEFT)
    case.start()
    kill(spark_submit(case.held(LATE_IN_LEFT)))

    nothing_is_lost(case.settled(), twice=IN_FLIGHT)
    assert case.tries("deliver.left") == 2


def supervisor(case: Scenario) -> None:
    """The worker's supervisor: its task goes on, and nobody hears of it."""
    case.store()
    case.hold(LATE_IN_LEFT)
    case.start()
    worker = case.held(LATE_IN_LEFT)
    job = spark_submit(worker)
    task = parent(job)
    kill(parent(task))
    case.has_gone_on()
    case.release(LATE_IN_LEFT, worker)
    has_ended(job)
    has_ended(task)

    nothing_is_lost(case.settled(), twice=1)
    assert case.tries("deliver.left") == 2


def settle(case: Scenario) -> None:
    """The settlement, when a message that failed is copied to the failure store and not yet acknowledged."""
    case.store(first=0)
    case.hold("copiedsettle_failures")
    case.start()
    kill(case.held("copiedsettle_failures"))
    case.mend()

    nothing_is_lost(case.settled())
    assert case.tries("settle") == 2


def held_in_replay(case: Scenario) -> int:
    """Brings the scenario to where its replay delivers what had failed; the process that is held there."""
    copied = f"copied{case.name}_failures"
    case.store(first=0)
    case.hold(copied)
    case.hold("left0")
    case.start()
    settling = case.held(copied)
    case.mend()
    case.release(copied, settling)
    return case.held("left0")


def replay(case: Scenario) -> None:
    """The process of a replay, which leaves its Spark job behind."""
    worker = held_in_replay(case)
    job = spark_submit(worker)
    kill(parent(job))

    nothing_is_lost(case.settled())
    assert case.tries("replay", replay=True) == 2
    case.release("left0", worker)
    has_ended(job)
    nothing_is_lost(case.outcome(), twice=1)


def callback(case: Scenario) -> None:
    """The failure callback of a replay, when it has written the dead letter and not yet let go of the failure."""
    case.store(first=0)
    case.hold("copiedcallback_dead")
    case.start()
    kill(case.held("copiedcallback_dead"))

    nothing_is_lost(case.settled(), dead=1)
    assert case.failures() == 0
    states = case.api.task_states("callback_replay", case.run(replay=True))
    assert states == {"select": "success", "replay": "failed", "settle": "success"}


# -- what operators do -------------------------------------------------------------------------------------------


def broken(case: Scenario) -> None:
    """The DAG file cannot be imported from the middle of a run on, and is mended."""
    case.store()
    case.hold(LATE_IN_SOURCE)
    case.start()
    worker = case.held(LATE_IN_SOURCE)
    content = case.file.read_text()
    case.file.write_text(content + "\nraise RuntimeError('broken in the middle of a run')\n")
    case.release(LATE_IN_SOURCE, worker)
    case.stands_still("deliver.left")
    case.file.write_text(content)
    case.api.wait_for_run(case.name, case.run(), timeout=600)
    case.end_the_lease()

    nothing_is_lost(case.settled())


def left_broken(case: Scenario) -> None:
    """The DAG file stays broken: the safety net, which is in another file, lets go of what the run held."""
    case.store()
    case.hold(LATE_IN_SOURCE)
    case.start()
    worker = case.held(LATE_IN_SOURCE)
    content = case.file.read_text()
    case.file.write_text(content + "\nraise RuntimeError('broken in the middle of a run')\n")
    case.release(LATE_IN_SOURCE, worker)
    case.stands_still("deliver.left")
    case.end_the_lease()
    case.api.wait_for_dag("homing_reconcile", timeout=600)
    case.api.unpause("homing_reconcile")
    case.has_been_swept()
    case.file.write_text(content)

    nothing_is_lost(case.settled())


def cleared(case: Scenario) -> None:
    """A running task is cleared, then twice in a row; then one that succeeded, while another runs and at the end."""
    case.store()
    case.hold(LATE_IN_SOURCE)
    case.start()
    for clears, then in ((1, LATE_IN_SOURCE), (2, LATE_IN_LEFT)):
        worker = case.held(LATE_IN_SOURCE)
        case.hold(then)
        for _ in range(clears):
            case.api.clear(case.name, case.run(), ["process"], include_downstream=True)
        has_ended(worker)
        case.release(LATE_IN_SOURCE, worker)
    worker = case.held(LATE_IN_LEFT)
    case.api.clear(case.name, case.run(), ["process"])
    case.release(LATE_IN_LEFT, worker)

    nothing_is_lost(case.settled(), twice=1)
    case.api.clear(case.name, case.run(), ["deliver.left"])
    case.api.wait_for_run(case.name, case.run(), timeout=600)
    nothing_is_lost(case.settled(), twice=1)


def marked(case: Scenario) -> None:
    """A running task is marked as failed; then the whole next run."""
    case.store()
    case.hold(LATE_IN_LEFT)
    case.start()
    case.held(LATE_IN_LEFT)
    case.hold(f"left{LATE + 1}")
    case.api.mark_failed(case.name, case.run(), "deliver.left")
    case.held(f"left{LATE + 1}")
    case.api.mark_failed(case.name, case.api.runs(case.name)[-1]["dag_run_id"])

    nothing_is_lost(case.settled(), twice=2 * IN_FLIGHT)


def paused(case: Scenario) -> None:
    """The DAG is paused in the middle of a run, and unpaused when its task has ended."""
    case.store()
    case.hold(LATE_IN_SOURCE)
    case.start()
    worker = case.held(LATE_IN_SOURCE)
    case.api.unpause(case.name, paused=True)
    case.release(LATE_IN_SOURCE, worker)
    case.wait_for("process", "success")
    assert case.books().total.waiting == MESSAGES
    case.api.unpause(case.name)

    nothing_is_lost(case.settled())


def replay_cleared(case: Scenario) -> None:
    """A running replay is cleared."""
    worker = held_in_replay(case)
    case.api.clear(f"{case.name}_replay", case.run(replay=True), ["replay"])
    has_ended(worker)
    case.release("left0", worker)

    nothing_is_lost(case.settled())


def replay_marked(case: Scenario) -> None:
    """A running replay is marked as failed: that is no failure of its messages. Then it is cleared."""
    worker = held_in_replay(case)
    replay_dag = f"{case.name}_replay"
    case.api.mark_failed(replay_dag, case.run(replay=True), "replay")
    has_ended(worker)
    case.release("left0", worker)
    case.api.wait_for_run(replay_dag, case.run(replay=True), timeout=600)
    assert (case.failures(), case.books().total.dead_lettered) == (1, 0)
    case.api.clear(replay_dag, case.run(replay=True), ["replay"])

    nothing_is_lost(case.settled())


# The slow ones first: those that run several times, or wait for Airflow to notice.
REPLAYS = (replay, replay_cleared, replay_marked)
AT_ONCE = (
    claim,
    broken,
    left_broken,
    marked,
    cleared,
    paused,
    *REPLAYS,
    settle,
    callback,
    supervisor,
    deliver,
    process,
    submit,
    sensor,
)


# -- on one Airflow ----------------------------------------------------------------------------------------------


@dataclass
class Matrix:
    """The scenarios on one Airflow, and what has become of them."""

    airflow: AirflowStack
    home: Path
    outcomes: dict[str, Future[None]] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Scenarios that still run when the block is left, because of a test that failed, end too."""
        try:
            yield
        finally:
            self.ended.set()

    def begin(self, name: str, outcome: Future[None]) -> None:
        self.outcomes[name] = outcome
        outcome.add_done_callback(lambda done: log.info("%s has ended: %s", name, done.exception() or "all is well"))

    def case(self, name: str) -> Scenario:
        return Scenario(name, self.airflow, self.home, self.ended)


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    home = tmp_path_factory.mktemp("matrix")
    dags = shutil.copytree(DAGS, home / "dags", ignore=shutil.ignore_patterns("pipeline.py", "__pycache__"))
    for name in (*(scenario.__name__ for scenario in AT_ONCE), "scheduler", "replay_scheduler", "triggerer"):
        (home / name).mkdir()
        shutil.copy(DAGS / "pipeline.py", dags / f"{name}.py")
    environment = {
        "MATRIX_HOME": str(home),
        "PYTHONPATH": str(REPOSITORY / "plugins"),
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[1]"}',
        "AIRFLOW__CORE__PARALLELISM": "8",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",  # what was changed is read at once all the same
        "AIRFLOW__WORKERS__MISSING_DAG_RETRIES": "0",
    }
    # MATRIX_METADATA=sqlite runs all of it on the other database.
    on_sqlite = os.environ.get("MATRIX_METADATA") == "sqlite"
    metadata = None if on_sqlite else request.getfixturevalue("postgresql").empty_database()
    stack = AirflowStack(home / "airflow", dags, environment, sql_alchemy_conn=metadata)
    matrix = Matrix(stack, home)
    at_once = 6 if on_sqlite else len(AT_ONCE) + 1  # SQLite has one writer
    with ThreadPoolExecutor(at_once) as pool, stack, matrix.ending():
        wanted = {item.name.partition("[")[2].rstrip("]") for item in request.session.items}
        if "triggerer" in wanted:  # first, while no other pipeline is there to be hurt
            matrix.begin("triggerer", pool.submit(triggerer(matrix)))
        for scenario in AT_ONCE:
            if scenario.__name__ in wanted:
                matrix.begin(scenario.__name__, pool.submit(scenario, matrix.case(scenario.__name__)))
        yield matrix


def triggerer(matrix: Matrix) -> Callable[[], None]:
    case = matrix.case("triggerer")
    case.start()
    case.wait_for("listen", "deferred")
    matrix.airflow.kill("triggerer")
    case.store()
    matrix.airflow.restart("triggerer")
    return lambda: nothing_is_lost(case.settled())


@pytest.mark.parametrize("name", ["triggerer", *(scenario.__name__ for scenario in AT_ONCE)])
def test_nothing_is_lost_when_it_is_killed_or_meddled_with(matrix: Matrix, name: str) -> None:
    matrix.outcomes[name].result()


def test_nothing_is_lost_when_the_scheduler_is_killed(matrix: Matrix) -> None:
    for outcome in matrix.outcomes.values():
        outcome.exception()  # waits: their runs are not to see this
    case = matrix.case("scheduler")
    case.store()
    case.hold(LATE_IN_LEFT)
    case.start()
    worker = case.held(LATE_IN_LEFT)
    job = spark_submit(worker)
    matrix.airflow.kill("scheduler")
    matrix.airflow.restart("scheduler")
    case.has_gone_on()
    case.release(LATE_IN_LEFT, worker)
    has_ended(job)

    nothing_is_lost(case.settled(), twice=1)
    assert case.tries("deliver.left") == 2


def test_nothing_is_lost_when_the_scheduler_is_killed_during_a_replay(matrix: Matrix) -> None:
    for outcome in matrix.outcomes.values():
        outcome.exception()
    case = matrix.case("replay_scheduler")
    worker = held_in_replay(case)
    job = spark_submit(worker)
    matrix.airflow.kill("scheduler")
    matrix.airflow.restart("scheduler")
    case.has_gone_on()
    case.release("left0", worker)
    has_ended(job)

    nothing_is_lost(case.settled(), twice=1)
    assert case.tries("replay", replay=True) == 2
