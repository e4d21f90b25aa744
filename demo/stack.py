"""A real Airflow on this machine: API server, scheduler, DAG processor and triggerer as processes.

    with AirflowStack(home, dags_folder) as airflow:        # migrated, started, healthy
        airflow.wait_for_dag("orders")
        airflow.unpause("orders")

Everything it keeps is below `home`. Every process it starts, and every process those start in turn, carries a
marker in its environment; `stop` ends exactly the processes with that marker, also from another process
(`AirflowStack.attach(home).stop()`).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from demo.airflow_api import AirflowApi, AirflowApiError
from demo.ports import free_port

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
MARKER = "HOMING_STACK"
_REPOSITORY = Path(__file__).resolve().parent.parent
_OWNED_ELSEWHERE = ("AIRFLOW_", "SPARK_", "PYSPARK_", "PYTHONPATH", MARKER)
_SQLITE_TIMEOUT = 60  # seconds

# Defaults that make Airflow answer quickly on a small machine; `env` overrides each of them.
_FAST = {
    "AIRFLOW__API__WORKERS": "1",
    "AIRFLOW__CORE__PARALLELISM": "4",
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",
    "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
    # A task is killed when its calls are not answered within this time: a busy machine takes more than 5 seconds.
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    "SCARF_ANALYTICS": "false",
    "DO_NOT_TRACK": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    "SPARK_LOCAL_IP": "127.0.0.1",
    # Airflow renames its processes; without this the new name is written over /proc/<pid>/environ.
    "SPT_NOENV": "1",
}


class StackError(RuntimeError):
    """The stack could not do what was asked; the text holds the end of the log that says why."""


class StackInterrupted(KeyboardInterrupt):
    """The process that owns the stack was told to end; raised so that the stack is stopped on the way out."""


def marked_processes(marker: str) -> list[int]:
    """The live processes whose environment carries `marker`, this process excepted."""
    wanted = f"{MARKER}={marker}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def _write_private(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file in one step, readable by its owner only."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.touch(mode=0o600)
    new.write_text(json.dumps(content, indent=1))
    new.replace(path)


def _signal(pid: int, signum: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


class AirflowStack(AirflowApi):
    """One Airflow below `home`, and a client of its REST API.

    `env` is added to the environment of every component and wins over the defaults. `api_port` fixes the
    port of the UI; otherwise a free one is taken. `sql_alchemy_conn` puts the metadata elsewhere than in
    SQLite below `home`; a PostgreSQL URL is used with psycopg 3. `users` maps user names to roles; this
    object logs in as the first. Not thread-safe; two stacks need two homes.
    """

    def __init__(
        self,
        home: Path,
        dags_folder: Path,
        env: Mapping[str, str] | None = None,
        *,
        api_port: int | None = None,
        executor: str = "LocalExecutor",
        sql_alchemy_conn: str | None = None,
        plugins_folder: Path | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        self.home = Path(home).absolute()
        self.users = dict(users or {"admin": "admin"})
        super().__init__("", next(iter(self.users)), "")
        self.dags_folder = Path(dags_folder).absolute()
        self.plugins_folder = Path(plugins_folder or _REPOSITORY / "plugins").absolute()
        self.env = dict(env or {})
        self.api_port, self.executor, self.sql_alchemy_conn = api_port, executor, sql_alchemy_conn
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._handlers: dict[int, Any] = {}
        self.home.mkdir(parents=True, exist_ok=True)
        self._state: dict[str, Any] = {"ports": {}, "components": {}, "migrated": None} | self._load()
        self._state.setdefault("marker", uuid.uuid4().hex)
        self._secrets = self._load_secrets()

    @classmethod
    def attach(cls, home: Path) -> AirflowStack:
        """The stack another process made in `home`, running or not. Raises StackError when there is none."""
        try:
            options = json.loads((Path(home) / "stack.json").read_text())["options"]
        except FileNotFoundError as error:
            raise StackError(f"there is no Airflow stack in {home}: no stack.json") from error
        return cls(Path(home), Path(options.pop("dags_folder")), **options)

    def _load(self) -> dict[str, Any]:
        kept = self.home / "stack.json"
        return json.loads(kept.read_text()) if kept.exists() else {}

    def _save(self) -> None:
        self._state["options"] = {
            "dags_folder": str(self.dags_folder), "plugins_folder": str(self.plugins_folder), "env": self.env,
            "api_port": self.api_port, "executor": self.executor, "sql_alchemy_conn": self.sql_alchemy_conn,
            "users": self.users,
        }  # fmt: skip
        _write_private(self.home / "stack.json", self._state)

    def _load_secrets(self) -> dict[str, str]:
        """The keys all components share and the passwords of the users, made once per home."""
        kept, passwords = self.home / "secrets.json", self.home / "passwords.json"
        if not kept.exists():
            keys = {"jwt": secrets.token_hex(32), "api": secrets.token_hex(32)}
            _write_private(kept, {**keys, "fernet": urlsafe_b64encode(secrets.token_bytes(32)).decode()})
        known = json.loads(passwords.read_text()) if passwords.exists() else {}
        if missing := self.users.keys() - known.keys():
            _write_private(passwords, {**known, **{name: secrets.token_urlsafe(12) for name in missing}})
        content: dict[str, str] = json.loads(kept.read_text())
        return content

    @property
    def url(self) -> str:
        """Where the UI and the API answer."""
        return f"http://127.0.0.1:{self._state['ports'].get('api', self.api_port)}"

    def credentials(self) -> tuple[str, str]:
        """The name and password of the first user, read from the file Airflow uses."""
        name = next(iter(self.users))
        return name, json.loads((self.home / "passwords.json").read_text())[name]

    def environment(self) -> dict[str, str]:
        """The whole environment of a component, a task or an `airflow` command of this stack."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(_OWNED_ELSEWHERE)}
        binaries = str(Path(sys.executable).parent)
        return {
            **inherited,
            **_FAST,
            **self._airflow_settings(),
            "PATH": os.pathsep.join([binaries, inherited.get("PATH", os.defpath)]),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": str(self.home / "spark-local"),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[*]"}),
            **self.env,
            MARKER: self._state["marker"],
        }

    def _airflow_settings(self) -> dict[str, str]:
        ports = self._state["ports"]
        return {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags_folder),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self.plugins_folder),
            "AIRFLOW__CORE__EXECUTOR": self.executor,
            "AIRFLOW__CORE__FERNET_KEY": self._secrets["fernet"],
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{n}:{r}" for n, r in self.users.items()),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(ports.get("api", 0)),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__SECRET_KEY": self._secrets["api"],
            "AIRFLOW__API_AUTH__JWT_SECRET": self._secrets["jwt"],
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(ports.get("worker_log", 0)),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(ports.get("trigger_log", 0)),
            **self._database_settings(),
        }

    def _database_settings(self) -> dict[str, str]:
        # Airflow's scheduler ends when it has waited for SQLite's one writer for longer than this.
        url = self.sql_alchemy_conn or f"sqlite:///{self.home / 'airflow.db'}?timeout={_SQLITE_TIMEOUT}"
        settings = {}
        scheme, _, rest = url.partition("://")
        if scheme in {"postgres", "postgresql", "postgresql+psycopg"}:
            url = f"postgresql+psycopg://{rest}"
            settings["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"] = f"postgresql+psycopg_async://{rest}"
        return {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url, **settings}

    def cli(self, *args: str, check: bool = True, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run `airflow <args>` in the stack's environment and wait; stdout and stderr are captured.

        With `check`, a non-zero exit raises StackError with the end of its output.
        """
        done = subprocess.run(
            [self._airflow(), *args],
            check=False,
            env=self.environment(),
            cwd=self.home,
            text=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
        )
        if check and done.returncode:
            output = (done.stdout + done.stderr)[-4000:]
            raise StackError(f"airflow {' '.join(args)} ended with {done.returncode}:\n{output}")
        return done

    @staticmethod
    def _airflow() -> str:
        path = Path(sys.executable).parent / "airflow"
        if not path.exists():
            raise StackError(f"Airflow is not installed beside {sys.executable}: there is no {path}")
        return str(path)

    def migrate(self) -> None:
        """Bring the metadata database to this Airflow's version; does nothing when that was done before."""
        done_for = [
            version("apache-airflow-core"),
            self._database_settings()["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"],
        ]
        if self._state["migrated"] == done_for and (self.sql_alchemy_conn or (self.home / "airflow.db").exists()):
            return
        self.cli("db", "migrate")
        self._state["migrated"] = done_for
        self._save()

    def start(self) -> None:
        """Start the four components in parallel and return at once; they outlive this process until `stop`.

        Raises StackError when a process of this stack is still alive, or when `api_port` is taken.
        """
        if alive := self.processes():
            raise StackError(f"the stack in {self.home} is already running (pids {alive}): stop it first")
        self._choose_ports()
        (self.home / "logs-stack").mkdir(exist_ok=True)
        self._token = None
        for name in COMPONENTS:
            self._spawn(name)

    def _choose_ports(self) -> None:
        try:
            api = free_port(self.api_port or 0)
        except OSError as error:
            raise StackError(f"port {self.api_port} is taken: choose another one (make up PORT=9090)") from error
        self._state["ports"] = {"api": api, "worker_log": free_port(), "trigger_log": free_port()}

    def _spawn(self, name: str) -> None:
        with self.log_file(name).open("ab") as log:
            child = subprocess.Popen(
                [self._airflow(), name],
                env=self.environment(),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._children[name] = child
        self._state["components"][name] = {
            "pid": child.pid,
            "started": datetime.now(timezone.utc).isoformat(),
        }
        self._save()

    def log_file(self, component: str) -> Path:
        """Where the output of a component goes; it is appended to over restarts."""
        return self.home / "logs-stack" / f"{component}.log"

    def pid(self, component: str) -> int | None:
        """The live process of a component, or None."""
        known = self._state["components"].get(component)
        return known["pid"] if known and known["pid"] in self.processes() else None

    def processes(self) -> list[int]:
        """Every live process of the stack: components, workers, tasks, Spark drivers, orphans."""
        for child in self._children.values():
            child.poll()
        return marked_processes(self._state["marker"])

    def wait_healthy(self, timeout: float = 300.0) -> None:
        """Wait until all components have reported since they were started.

        Raises StackError with the end of the log of a component that died or did not report in time.
        """
        deadline = time.monotonic() + timeout
        while waiting := self._not_healthy():
            died = [name for name in waiting if self.pid(name) is None]
            if died or time.monotonic() > deadline:
                raise StackError(self._explain(died or waiting, "died" if died else f"not healthy in {timeout:.0f} s"))
            time.sleep(0.2)

    def _not_healthy(self) -> list[str]:
        try:
            health = self.health()
        except AirflowApiError:
            return ["api-server"] if self.pid("api-server") is None else list(COMPONENTS)
        return [name for name in COMPONENTS[1:] if not self._has_reported(name, health)]

    def _has_reported(self, name: str, health: dict[str, Any]) -> bool:
        key = name.replace("-", "_")
        beat = (health.get(key) or {}).get(f"latest_{key}_heartbeat")
        started = self._state["components"][name]["started"]
        return beat is not None and datetime.fromisoformat(beat) >= datetime.fromisoformat(started)

    def _explain(self, names: list[str], what: str) -> str:
        parts = [f"Airflow in {self.home}: {', '.join(names)} {what}"]
        for name in names:
            with suppress(FileNotFoundError):
                tail = "\n".join(self.log_file(name).read_text(errors="replace").splitlines()[-30:])
                parts.append(f"--- {self.log_file(name)}\n{tail}")
        return "\n".join(parts)

    def kill(self, component: str) -> None:
        """SIGKILL the component's own process, as a crash would; what it had started lives on."""
        if (pid := self.pid(component)) is None:
            raise StackError(f"{component} is not running")
        _signal(pid, signal.SIGKILL)
        self._await_end(lambda: self.pid(component) is None, 10.0)

    def restart(self, component: str) -> None:
        """Start a component again, ending it first when it runs; `wait_healthy` waits for the new one."""
        if (pid := self.pid(component)) is not None:
            _signal(pid, signal.SIGTERM)
            if not self._await_end(lambda: self.pid(component) is None, 10.0):
                self.kill(component)
        self._spawn(component)

    def stop(self, grace: float = 5.0) -> None:
        """End every process of the stack; return when none is left. Idempotent, from any process.

        The scheduler, the DAG processor and the triggerer get SIGTERM and `grace` seconds; what is left
        then is killed. A task that was running looks lost to Airflow, not failed: the next start reruns it.
        An exception (a second Ctrl-C) cuts the grace short, never the kill.
        """
        try:
            first = {pid for name in COMPONENTS[1:] if (pid := self.pid(name)) is not None}
            for pid in first:
                _signal(pid, signal.SIGTERM)
            self._await_end(lambda: first.isdisjoint(self.processes()), grace)
        finally:
            self._kill_the_rest()
        shutil.rmtree(self.home / "spark-local", ignore_errors=True)
        self._state["components"] = {}
        self._save()

    def _kill_the_rest(self) -> None:
        def kill_all() -> bool:
            alive = self.processes()
            # Frozen first, so that no task can see its Spark driver die and report a failure.
            for signum in (signal.SIGSTOP, signal.SIGKILL):
                for pid in alive:
                    _signal(pid, signum)
            return not alive

        if not self._await_end(kill_all, 30.0):
            raise StackError(f"processes survived SIGKILL: {self.processes()}")

    @staticmethod
    def _await_end(ended: Callable[[], bool], timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while not ended():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def __enter__(self) -> AirflowStack:
        """Own the stack: what a killed owner left is stopped, then it is migrated, started and healthy.

        Until `__exit__`, SIGTERM and SIGHUP to this process raise StackInterrupted in the main thread.
        """
        self._take_signals()
        try:
            self.stop()
            self.migrate()
            self.start()
            self.wait_healthy()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            for signum, handler in self._handlers.items():
                signal.signal(signum, handler)
            self._handlers.clear()

    def _take_signals(self) -> None:
        def interrupt(signum: int, _frame: FrameType | None) -> None:
            raise StackInterrupted(f"received {signal.Signals(signum).name}")

        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGTERM, signal.SIGHUP):
                self._handlers[signum] = signal.signal(signum, interrupt)
