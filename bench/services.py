"""What the parts share: servers that are started when the first part asks for them, and a folder."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from bench.progress import say
from bench.scale import Scale
from bench.stack import BenchStack
from tests.rabbitmq_server import RabbitMQ
from tests.servers import PostgreSQL, launch


class Services(ExitStack):
    """Ends with everything it started."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self._scale = scale

    @cached_property
    def folder(self) -> Path:
        path = Path(tempfile.mkdtemp(prefix="homing-bench-"))
        self.callback(shutil.rmtree, path, ignore_errors=True)
        return path

    @cached_property
    def postgresql(self) -> PostgreSQL:
        say("starting PostgreSQL")
        server = PostgreSQL()
        launch(server)
        self.callback(server.remove)
        return server

    @cached_property
    def rabbitmq(self) -> RabbitMQ:
        say("starting RabbitMQ")
        server = RabbitMQ()
        launch(server)
        self.callback(server.remove)
        return server

    @cached_property
    def airflow(self) -> BenchStack:
        """Airflow with the DAGs of bench/dags, both unpaused and listening."""
        say("starting Airflow: API server, scheduler, DAG processor, triggerer")
        stack = BenchStack(self.folder, self.postgresql.empty_database(), self._scale.pipeline_batch)
        self.enter_context(stack.airflow)
        stack.listen()
        return stack
