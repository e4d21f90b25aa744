"""A pipeline fed from Service Bus, from its queue to its destinations: real tasks, spark-submit, the unmodified SDK.

The tests of this module build on each other, in order. The source is a connection of the Microsoft provider's type, and
the queue is filled by the SDK, as any other application would fill it.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusSubQueue

import homing
from homing.bus import Administrator
from homing.delivery import AuditReport, PipelineStores, open_pipeline_stores, run_audit
from tests.servicebus.process import ServiceBusProcess, running_servicebus

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

QUEUE = "shipments"
CHAIN = """
import os
from pathlib import Path
from homing import HandlerChain, destination, transformer

@transformer
def weighed(ctx):
    if ctx.get_content()["kilos"] < 0:
        raise ValueError("nothing weighs less than nothing")
    return ctx.get_content()

def deliver(name, ctx):
    with Path(os.environ["SHIPMENTS_OUT"], f"{name}-{os.getpid()}").open("a") as file:
        file.write(f"{ctx.get_id()}\\n")

@destination
def carrier(ctx):
    deliver("carrier", ctx)

@destination
def ledger(ctx):
    deliver("ledger", ctx)

chain = HandlerChain("shipments", source_flow=[weighed], destinations_flow=[carrier, ledger])
"""
DAGS = """
from homing.airflow import delivery_dag

delivery_dag("shipments", chain="shipments_chain:chain", store="env:SHIPMENTS", dead_letter_store="env:SHIPMENTS_DEAD",
             source="shipments_bus?queue=shipments", max_retries=0,
             spark_conf={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"})
"""


class Shipments:
    """The pipeline below a folder, and the queue it is fed from."""

    def __init__(self, folder: Path, server: ServiceBusProcess) -> None:
        self.server = server
        self.home, self.out = folder, folder / "out"
        self.urls = f"sqlite:///{folder}/x.db?store=shipments", f"sqlite:///{folder}/x.db?store=shipments_dead"
        for name, text in (("shipments_chain.py", CHAIN), ("shipments.py", DAGS)):
            (folder / "dags").mkdir(exist_ok=True)
            (folder / "dags" / name).write_text(text)
        self.out.mkdir()
        connection = {"conn_type": "azure_service_bus", "schema": server.connection_string}
        self.environment = {
            **os.environ,
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
            "AIRFLOW_CONN_SHIPMENTS_BUS": json.dumps(connection),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(Path(homing.__path__[0]).parent),
            "PYSPARK_PYTHON": sys.executable,
            "SHIPMENTS": self.urls[0],
            "SHIPMENTS_DEAD": self.urls[1],
            "SHIPMENTS_OUT": str(self.out),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    # -- the queue ---------------------------------------------------------------------------------------------

    def send(self, *messages: ServiceBusMessage) -> None:
        with self._client() as client, client.get_queue_sender(QUEUE) as sender:
            sender.send_messages(list(messages))

    def waiting(self, **options: Any) -> list[ServiceBusReceivedMessage]:
        """What the queue holds, locked or not."""
        with self._client() as client, client.get_queue_receiver(QUEUE, **options) as receiver:
            return receiver.peek_messages(100)

    def wait_until_unlocked(self, number: int) -> None:
        """Returns when so many can be received again, by receiving them and giving them back."""
        deadline, received = time.monotonic() + 60, list[ServiceBusReceivedMessage]()
        with self._client() as client, client.get_queue_receiver(QUEUE) as receiver:
            while len(received) < number:
                received += receiver.receive_messages(number - len(received), max_wait_time=5)
                assert time.monotonic() < deadline, f"only {len(received)} of {number} can be received"
            for message in received:
                receiver.abandon_message(message)

    def _client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.server.connection_string)

    # -- the pipeline ------------------------------------------------------------------------------------------

    def start(self, *argv: str) -> subprocess.Popen[str]:
        command = [str(Path(sys.executable).parent / "airflow"), *argv]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
        return subprocess.Popen(command, env=self.environment, text=True, **pipes)

    def airflow(self, *argv: str, succeeds: bool = True) -> str:
        process = self.start(*argv)
        try:
            said, _ = process.communicate(timeout=500)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert (process.returncode == 0) is succeeds, said
        return said

    def triggered_replay(self) -> dict[str, Any]:
        """What `settle` asked the replay DAG for."""
        with sqlite3.connect(self.home / "airflow.db") as airflow:
            ((conf,),) = airflow.execute("select conf from dag_run where dag_id = 'shipments_replay'").fetchall()
        asked: dict[str, Any] = json.loads(conf)
        return asked

    def delivered_to(self, destination: str) -> Counter[str]:
        return Counter(line for path in self.out.glob(f"{destination}-*") for line in path.read_text().splitlines())

    def books(self, stores: PipelineStores) -> AuditReport:
        return run_audit(stores, ["carrier", "ledger"])


@pytest.fixture(scope="module")
def shipments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shipments]:
    with running_servicebus() as server:
        with Administrator(server.connection_string) as admin:
            admin.create_queue(QUEUE, lock_duration=5)
        made = Shipments(tmp_path_factory.mktemp("shipments"), server)
        made.airflow("db", "migrate")
        yield made


@pytest.fixture
def stores(shipments: Shipments) -> Iterator[PipelineStores]:
    with open_pipeline_stores(*shipments.urls) as opened:
        yield opened


def shipment(id: str, kilos: float = 1.0, **fields: Any) -> ServiceBusMessage:
    body = json.dumps({"kilos": kilos})
    return ServiceBusMessage(body, content_type="application/json", message_id=id, **fields)


FIRST = [f"s{number}" for number in range(12)]
LATER = [f"t{number}" for number in range(3)]


def test_an_intake_killed_after_its_commit_has_acknowledged_nothing(
    shipments: Shipments, stores: PipelineStores
) -> None:
    shipments.send(*map(shipment, FIRST), shipment("poison", -1.0))
    shipments.server.hold_settlements()

    with shipments.start("dags", "test", "shipments") as run:
        try:
            shipments.server.wait_for_settlement(120)
        finally:
            os.killpg(run.pid, signal.SIGKILL)

    assert {message.id for message in stores.store.browse(100)} == {*FIRST, "poison"}, "committed before"
    assert {message.message_id for message in shipments.waiting()} == {*FIRST, "poison"}, "and still the broker's"


def test_the_next_run_delivers_everything_once_and_empties_the_queue(
    shipments: Shipments, stores: PipelineStores
) -> None:
    shipments.server.settle_again()
    shipments.wait_until_unlocked(len(FIRST) + 1)
    shipments.send(*map(shipment, LATER), shipment("unstorable", subject="x" * 300))

    said = shipments.airflow("dags", "test", "shipments")

    assert "state=success" in said
    assert shipments.waiting() == []
    for destination in ("carrier", "ledger"):
        assert shipments.delivered_to(destination) == Counter([*FIRST, *LATER])
    (refused,) = shipments.waiting(sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert (refused.message_id, refused.dead_letter_reason) == ("unstorable", "unreadable")
    books = shipments.books(stores)
    assert (books.total.delivered, books.total.waiting, books.balanced) == (15, 1, True)
    assert shipments.server.connection_string not in said


def test_what_fails_again_in_its_replay_is_dead_lettered_with_its_reason(
    shipments: Shipments, stores: PipelineStores
) -> None:
    asked = shipments.triggered_replay()

    shipments.airflow("dags", "test", "shipments_replay", "-c", json.dumps(asked), succeeds=False)

    (dead,) = stores.dead_letters.browse(10)
    ((_, _, poison),) = stores.store.view.states(["poison"])
    assert (dead.id, dead.dead_letter_reason) == (f"shipments/{poison.name}", "ValueError")
    assert "weighs less than nothing" in (dead.dead_letter_description or "")
    books = shipments.books(stores)
    assert (books.total.delivered, books.total.dead_lettered, books.total.waiting) == (15, 1, 0)
    assert books.balanced, str(books)
    assert shipments.delivered_to("carrier") == Counter([*FIRST, *LATER]), "the others are not delivered again"
