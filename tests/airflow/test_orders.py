"""The worked example on a real scheduler: one story, told once, and what must be true at each point of it.

The tests of this module build on each other, in order.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from demo.airflow_api import FINISHED, AirflowApi, AirflowApiError, wait_until
from demo.crm import received, traces
from demo.orders import expect, make_orders
from demo.pipeline import OrdersPipeline
from homing import Message
from homing.delivery import AuditReport, open_pipeline_stores, run_audit
from homing.delivery.dead_letter import dead_letter_messages
from homing.delivery.operations import REPLAY, read_operations

SETTLED = 600.0

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1800)]


@dataclass
class Story:
    """What the tests have learned so far."""

    orders: list[dict[str, Any]] = field(default_factory=lambda: make_orders(200))
    replay_run: str = ""


@pytest.fixture(scope="module")
def story() -> Story:
    return Story()


def rows(pipeline: OrdersPipeline, query: str) -> list[Any]:
    engine = sa.create_engine(f"sqlite:///{pipeline.home}/orders.db")
    with engine.connect() as connection:
        found = list(connection.execute(sa.text(query)))
    engine.dispose()
    return found


def trace_of(order: dict[str, Any]) -> str:
    """A W3C traceparent of its own for each order."""
    return f"00-4bf92f3577b34da6a3ce929d0e0e4736-{order['number'] + 1:016x}-01"


def replayed(pipeline: OrdersPipeline, timeout: float = SETTLED) -> AuditReport:
    return pipeline.wait_until_settled(timeout)


def test_the_dags_are_there_and_import_without_errors(pipeline: OrdersPipeline) -> None:
    pipeline.airflow.wait_for_dag("orders")
    pipeline.airflow.wait_for_dag("orders_replay")

    listed = pipeline.airflow.cli("dags", "list", "-o", "plain").stdout

    assert {"orders", "orders_replay"} <= {line.split()[0] for line in listed.splitlines() if line.split()}
    assert pipeline.airflow.dag_import_errors() == {}


def test_airflow_dags_test_delivers_a_batch(pipeline: OrdersPipeline) -> None:
    with pipeline.stores() as stores:
        stores.store.store_many([{**order, "country": "US", "paid": True} for order in make_orders(5)])

    done = pipeline.airflow.cli("dags", "test", "orders", timeout=300)

    assert "state=success" in done.stdout + done.stderr
    books = pipeline.books()
    assert (books.total.delivered, books.total.waiting, books.destinations["lake"].delivered) == (5, 0, 5)
    for path in (pipeline.home / "lake").glob("*.jsonl"):
        path.unlink()


def test_what_can_be_delivered_is_delivered_and_the_rest_is_dead_lettered_with_its_reason(
    pipeline: OrdersPipeline, story: Story
) -> None:
    with pipeline.stores() as stores:
        stores.store.store_many(
            [
                Message(f"order-{order['number']}", order, headers={"traceparent": trace_of(order)})
                for order in story.orders
            ]
        )
    insert = "insert into homing_orders (id, message, encoding) values ('unreadable', '{oops', 'json')"
    engine = sa.create_engine(f"sqlite:///{pipeline.home}/orders.db")
    with engine.begin() as connection:
        connection.execute(sa.text(insert))
    engine.dispose()
    pipeline.unpause()

    books = replayed(pipeline)

    expected = expect(story.orders)
    assert books.balanced, str(books)
    assert books.total.dropped == expected.dropped
    assert books.total.dead_lettered == len(expected.crm) + expected.invalid + 1
    assert Counter(received(pipeline.home / "lake")) == Counter(expected.lake)
    reasons = Counter(row[0] for row in rows(pipeline, "select dead_letter_reason from homing_orders_dead"))
    assert reasons == {
        "urllib.error.URLError": len(expected.crm),
        "ValueError": expected.invalid,
        "homing.errors.UnreadableMessageError": 1,
    }


def test_the_good_orders_were_acknowledged_before_the_poison_ones_had_used_up_their_retries(
    pipeline: OrdersPipeline,
) -> None:
    ((last_acknowledged,),) = rows(
        pipeline,
        "select max(time_acked) from homing_orders where id not in (select id from homing_orders_dead)",
    )
    ((first_dead,),) = rows(pipeline, "select min(time_created) from homing_orders_dead")

    assert last_acknowledged < first_dead


def test_the_failed_replay_used_its_retries(pipeline: OrdersPipeline, story: Story) -> None:
    ((run_id, state),) = pipeline.replays().items()
    story.replay_run = run_id

    assert state == "failed"
    tasks = {task["task_id"]: task for task in pipeline.airflow.task_instances("orders_replay", run_id)}
    assert (tasks["replay"]["state"], tasks["replay"]["try_number"]) == ("failed", 2)
    assert tasks["settle"]["state"] == "success"
    assert "messages still fail" in pipeline.airflow.task_log("orders_replay", run_id, "replay", 2)


def test_clearing_the_failed_task_replays_the_dead_letters_and_skips_what_was_delivered(
    pipeline: OrdersPipeline, story: Story
) -> None:
    pipeline.start_crm()
    pipeline.airflow.cli("tasks", "clear", "orders_replay", "-t", "replay", "-f", "-y")
    wait_until(
        lambda: pipeline.replays()[story.replay_run] in ("queued", "running") or None,
        timeout=60,
        what=lambda: "the cleared run to start again",
    )

    books = replayed(pipeline)

    expected = expect(story.orders)
    assert books.balanced, str(books)
    assert (books.total.dead_lettered, books.total.waiting) == (expected.invalid + 1, 0)
    assert books.total.duplicates == 0
    assert Counter(received(pipeline.home / "lake")) == Counter(expected.lake)
    assert Counter(received(pipeline.home / "crm")) == Counter(expected.crm)


def test_the_trace_of_a_message_has_reached_the_destination_through_the_run_its_failure_and_its_replay(
    pipeline: OrdersPipeline, story: Story
) -> None:
    european = set(expect(story.orders).crm)

    assert traces(pipeline.home / "crm") == {
        order["number"]: trace_of(order) for order in story.orders if order["number"] in european
    }


def test_a_cleared_first_pass_runs_again_although_nothing_new_is_due(pipeline: OrdersPipeline, story: Story) -> None:
    ((batch,),) = rows(pipeline, "select distinct batch_id from homing_orders where batch_id like 'orders/s%'")
    run_id = batch.removeprefix("orders/")
    before = Counter(received(pipeline.home / "lake"))

    cleared = pipeline.airflow.clear("orders", run_id, ["process"], include_downstream=True)
    pipeline.airflow.wait_for_run("orders", run_id, {"success"}, timeout=400)

    assert {"listen", "process", "settle"} <= set(cleared)
    states = pipeline.airflow.task_states("orders", run_id)
    assert states["process"] == "success"
    books = pipeline.books()
    assert books.balanced, str(books)
    assert books.total.dead_lettered == expect(story.orders).invalid + 1
    assert Counter(received(pipeline.home / "lake")) == before


def test_the_store_urls_are_in_no_log_no_template_and_no_xcom(pipeline: OrdersPipeline) -> None:
    airflow, shown = pipeline.airflow, []
    for dag in ("orders", "orders_replay"):
        for run in airflow.runs(dag):
            for task in airflow.task_instances(dag, run["dag_run_id"]):
                shown.append(str(task["rendered_fields"]))
                shown += [
                    airflow.task_log(dag, run["dag_run_id"], task["task_id"], number)
                    for number in range(1, task["try_number"] + 1)
                    if task["state"] in ("success", "failed")
                ]
    ((batch,),) = rows(pipeline, "select distinct batch_id from homing_orders where batch_id like 'orders/s%'")
    shown.append(str(airflow.xcom("orders", batch.removeprefix("orders/"), "listen")))

    assert any("claimed" in text for text in shown)
    assert any("spark-submit" in text for text in shown)
    for text in shown:
        assert pipeline.store_url not in text
        assert pipeline.dead_letter_url not in text


def test_a_task_says_in_its_note_what_happened_to_the_batch_and_links_to_its_messages(
    pipeline: OrdersPipeline, story: Story
) -> None:
    airflow, expected = pipeline.airflow, expect(story.orders)
    ((batch,),) = rows(pipeline, "select distinct batch_id from homing_orders where batch_id like 'orders/s%'")
    run_id = batch.removeprefix("orders/")

    # The run was cleared since, and what had failed in it by then was delivered, but for these.
    left = expected.invalid + 1
    settle = airflow.task_instance("orders", run_id, "settle")
    assert settle["note"] == (
        f"Batch {batch}: 0 delivered, 0 dropped by rule, 0 failed and to be replayed, 0 dead-lettered, {left} released."
    )
    replay = airflow.task_instance("orders_replay", story.replay_run, "replay")
    assert replay["note"] == f"Of {left} messages: 0 delivered, 0 dropped by rule, {left} left."  # its last try

    links = airflow.extra_links("orders", run_id, "process")
    assert (set(links), links["Spark"]) == ({"Messages", "Spark"}, None)  # there is no history server
    page = airflow.http("GET", links["Messages"].removeprefix(airflow.url), token=airflow.token())
    sums = [f"{len(expected.lake)} delivered", f"{expected.dropped} dropped by rule", f"{left} dead-lettered"]
    assert all(text in page for text in (*sums, "order-1</td>", "failed: ValueError: order 7 is for 0 pieces")), page
    with pytest.raises(AirflowApiError, match="HTTP 401"):
        airflow.http("GET", links["Messages"].removeprefix(airflow.url))


def test_forged_xcoms_neither_open_a_store_nor_harm_the_scheduler(pipeline: OrdersPipeline, tmp_path: Path) -> None:
    airflow, evil = pipeline.airflow, tmp_path / "evil.db"
    ((batch,),) = rows(pipeline, "select distinct batch_id from homing_orders where batch_id like 'orders/s%'")
    run_id = batch.removeprefix("orders/")
    tasks, scheduler = f"/dags/orders/dagRuns/{quote(run_id)}/taskInstances", airflow.pid("scheduler")
    link = airflow.extra_links("orders", run_id, "process")["Messages"] or ""
    page = f"{link.removeprefix(airflow.url)}"
    before = airflow.http("GET", page, token=airflow.token())
    stores = {"store": f"sqlite:///{evil}?store=x", "dead_letter_store": "env:AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"}
    forged = {
        "homing_batch": {**stores, "batch": "other", "ids": None, "flows": []},
        "homing_ids": {"store": str(evil)},
    }

    for key, value in forged.items():
        airflow.api("POST", f"{tasks}/process/xcomEntries", {"key": key, "value": value})
    notes: dict[str, Any] = {"process": {"no": "text"}, "deliver.lake": "a\0b" + "x" * 3000}
    for task_id, value in notes.items():
        airflow.api("POST", f"{tasks}/{task_id}/xcomEntries", {"key": "homing_note", "value": value})
    airflow.clear("orders", run_id, ["settle"])  # the others keep their XComs, and the run ends once more
    airflow.wait_for_run("orders", run_id, timeout=SETTLED)

    assert airflow.http("GET", page, token=airflow.token()) == before
    assert not evil.exists()
    assert airflow.pid("scheduler") == scheduler
    assert airflow.health()["scheduler"]["status"] == "healthy"
    noted = airflow.task_instance("orders", run_id, "deliver.lake")["note"]
    assert (len(noted), noted[:3]) == (1000, "abx")
    assert airflow.task_instance("orders", run_id, "process")["note"] is None


def test_the_work_directory_is_empty_once_a_run_is_settled(pipeline: OrdersPipeline) -> None:
    work: Path = pipeline.airflow.home / "work" / "orders"

    assert list(work.iterdir()) == []


def test_a_dry_run_of_the_replay_form_says_what_would_happen_and_delivers_nothing(
    pipeline: OrdersPipeline, story: Story
) -> None:
    airflow, before = pipeline.airflow, pipeline.books().total.dead_lettered
    run_id = airflow.trigger("orders_replay", {"error_group": "priced: ValueError", "dry_run": True})

    airflow.wait_for_run("orders_replay", run_id, {"success"}, timeout=300)

    states = airflow.task_states("orders_replay", run_id)
    assert (states["select"], states["replay"]) == ("skipped", "skipped")
    invalid = expect(story.orders).invalid
    (plan,) = airflow.xcom("orders_replay", run_id, "select", "plan")
    assert plan == f"priced: ValueError: {invalid} messages, tries the whole chain again"
    assert pipeline.books().total.dead_lettered == before


def test_the_command_line_proves_the_books_of_the_running_stack(pipeline: OrdersPipeline) -> None:
    stores = ("--store", "orders_store", "--dead-letter-store", "orders_dead_letters")

    done = pipeline.airflow.cli("homing", "audit", *stores, "--destinations", "lake,crm", "-o", "json")

    sheet = json.loads(done.stdout)
    assert (sheet["balanced"], sheet["unaccounted"]) == (True, [])
    assert sheet["sums"][0]["accepted"] == pipeline.books().total.accepted


def test_a_large_replay_delivers_nothing_when_it_is_rejected_and_is_asked_for_again_when_its_run_is_cleared(
    pipeline: OrdersPipeline, reviewer: AirflowApi
) -> None:
    airflow, dag = pipeline.airflow, "approved_replay"
    urls = airflow.env["APPROVED_STORE"], airflow.env["APPROVED_DEAD_LETTERS"]
    with open_pipeline_stores(*urls) as stores:
        ids = stores.store.store_many([1, 2])
        assert dead_letter_messages(stores, ids, "not today") == set(ids)

    def delivered() -> int:
        with open_pipeline_stores(*urls) as stores:
            return run_audit(stores, ["crm"]).total.delivered

    def answered(who: AirflowApi, run_id: str, option: str) -> dict[str, Any]:
        """Answers until the run is over: a question whose answer Airflow lost is asked again."""
        question = who.answer(dag, run_id, "approve", option)
        while airflow.run(dag, run_id)["state"] not in FINISHED:
            with suppress(AirflowApiError):
                who.answer(dag, run_id, "approve", option, timeout=5)
        return question

    airflow.wait_for_dag(dag)
    airflow.unpause(dag)
    form = {"error_group": "homing dead-letter: GivenUp", "rate": 100, "reason": "they are wanted after all"}
    rejected = airflow.trigger(dag, form)
    question = answered(airflow, rejected, "Reject")
    assert question["subject"] == "Replay 2 messages of approved?"
    assert question["body"] == "- homing dead-letter: GivenUp: 2 messages, tries the whole chain again"
    assert airflow.task_states(dag, rejected)["replay"] == "skipped"
    assert delivered() == 0

    airflow.cli("dags", "clear", dag, "--run-id", rejected, "-y")
    airflow.answer(dag, rejected, "approve", "Approve")  # by who asked for it, which does not count
    answered(reviewer, rejected, "Approve")

    assert airflow.run(dag, rejected)["state"] == "success"
    assert delivered() == 2
    with open_pipeline_stores(*urls) as stores:
        (told,) = [each for each in read_operations(stores.store) if each.what == REPLAY]
    story = [(event.event, event.who) for event in told.events]
    assert story == [("asked", "admin"), ("rejected", "admin"), ("approved", "reviewer"), ("done", "admin")]
    assert told.why == "they are wanted after all"
