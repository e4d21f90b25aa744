"""Job: one of our Spark applications for one pipeline, and what is needed to start it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import homing
from homing.connection import variable_of
from homing.delivery.private_folder import cache_folder
from homing.delivery.work_files import local_path
from homing.errors import ConfigurationError, JobError
from homing.pipeline import load_chain
from homing.spark.submit.class_archive import Start, class_archive
from homing.spark.submit.java import require_java
from homing.spark.submit.master import is_connect, is_local, refuse_unreachable, without_token
from homing.spark.submit.py_files import build_py_files
from homing.spark.submit.scratch import scratch_option
from homing.spark.submit.secrets import DEAD_LETTER_STORE, STORE, check_deployment, files_for

#: The exit code of an application when running it again would not help.
SET_UP_WRONGLY = 2
#: What an application logs when its session is there: its id, and where Spark's UI is.
UI_SENTENCE = "Spark application %s has its UI at %s"

# Airflow keeps what a task starts from its database, by a URL that cannot be read: with it, not even Airflow itself can
# be imported. Hooks find their connections without a database.
_NO_DATABASE = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite://"}
_UI = re.compile(UI_SENTENCE % (r"(\S+)", r"(https?://\S+)"))


@dataclass(frozen=True)
class Job:
    """An application, such as `process.py`, for one pipeline. `connection` is always that of Spark, as Airflow's hook
    for spark-submit has it: a `master`, and perhaps a `deploy_mode`."""

    name: str
    chain: str
    work_dir: str
    #: Of the store and the dead-letter store. Secrets.
    urls: tuple[str, str] = field(repr=False)
    #: What its handlers log in with, by the ids of connections. Secrets.
    connections: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def application(self) -> Path:
        """The application's file, which is part of the package."""
        return Path(homing.__file__).parent / "spark" / "applications" / f"homing_{self.name}"

    def can_run_without_spark(self, master: str) -> bool:
        """Whether one plain process can do the same. Where Spark is elsewhere, there may be more to it than its speed:
        other packages, other networks."""
        return (
            is_local(master) and local_path(self.work_dir) is not None and not load_chain(self.chain).takes_dataframes
        )

    def check(self, connection: Mapping[str, Any], conf: Mapping[str, Any]) -> None:
        """Raises ConfigurationError where a driver and executors elsewhere could not be told the secrets, open the
        stores or reach the work directory."""
        master = str(connection["master"])
        check_deployment(connection, conf, self._secrets())
        refuse_unreachable(without_token(master), *self.urls)
        if is_connect(master) and local_path(self.work_dir) is None:
            raise ConfigurationError(
                f"a client of Spark Connect has no Hadoop to reach {self.work_dir} with: give work_dir= a path that "
                "this machine and the server share"
            )

    def build_py_files(self) -> Path:
        """The code that a driver and executors on other machines need, as a zip."""
        load_chain(self.chain)  # its module can be found from now on
        return build_py_files(cache_folder(), self._module)

    @contextmanager
    def environment(self, more: Mapping[str, str] | None = None) -> Iterator[None]:
        """The stores and connections in this process's environment, which those it starts inherit, while the block
        lasts: arguments and settings are logged and shown."""
        added = {**self._secrets(), **_NO_DATABASE, "PYTHONPATH": os.pathsep.join(self._python_path()), **(more or {})}
        before = {name: os.environ.get(name) for name in added}
        os.environ.update(added)
        try:
            yield
        finally:
            # `airflow dags test` runs one task after the other in one process.
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    @contextmanager
    def submission(self, connection: Mapping[str, Any]) -> Iterator[tuple[Start, list[str]]]:
        """All that a `spark-submit` inside the block needs from its environment; and what it is to be given as
        `--files`. Raises ConfigurationError where there is no Java."""
        require_java()
        with (
            scratch_option() as scratch,
            class_archive(options=scratch) as start,
            self.environment(start.environment),
            files_for(connection, self._secrets()) as files,
        ):
            yield start, files

    @contextmanager
    def client(self, arguments: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
        """The application in a process of its own, without spark-submit, which has nowhere to submit it to. The block
        reads its output.

        Raises ConfigurationError when it was set up wrongly, and JobError when it failed.
        """
        command = [sys.executable, str(self.application), *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as client:  # noqa: S603
            try:
                yield client
            except BaseException:
                client.terminate()  # or leaving the block would wait for its end
                raise
        if client.returncode == SET_UP_WRONGLY:
            raise ConfigurationError(f"{self.name} was set up wrongly: the lines above say how")
        if client.returncode:
            raise JobError(f"{self.name} ended with {client.returncode}")

    @property
    def _module(self) -> str:
        return self.chain.partition(":")[0]

    def _secrets(self) -> dict[str, str]:
        """By the variables in which the job finds them."""
        stores = dict(zip((STORE, DEAD_LETTER_STORE), self.urls, strict=True))
        return stores | {variable_of(conn_id): text for conn_id, text in self.connections.items()}

    def _python_path(self) -> list[str]:
        """Where the chain's module was found: the process that starts a job may find it in ways that Spark does not
        have."""
        load_chain(self.chain)
        source = Path(sys.modules[self._module].__file__ or "")
        above = self._module.count(".") + (source.stem == "__init__")
        return [str(source.parents[above]), *filter(None, [os.environ.get("PYTHONPATH", "")])]


def find_ui(line: str) -> tuple[str, str] | None:
    """The application's id, and where Spark's UI is, if this line of a job's output says so."""
    found = _UI.search(line)
    return None if found is None else (found[1], found[2])
