"""A real RabbitMQ server of the tests' own: free ports, loopback only, everything in one folder, ended by pid."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# Debian's /usr/sbin/rabbitmq-server insists on its own user; what it wraps runs as anybody.
_PROGRAMS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
_START_LIMIT = 90.0


class RabbitServer:
    """One broker that can be stopped, killed and started again on the same ports, over the same data."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._port, self._distribution_port, self._epmd_port = _free_ports(3)
        self._epmd: subprocess.Popen[bytes] | None = None
        self._broker: subprocess.Popen[bytes] | None = None
        (folder / "plugins").write_text("[].\n")
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self._port}\nloopback_users = none\nlog.file.level = warning\n"
        )

    @property
    def port(self) -> int:
        return self._port

    def url(self, store: str, **options: object) -> str:
        """The URL of a store on this broker."""
        query = "&".join([f"store={store}", *(f"{key}={value}" for key, value in options.items())])
        return f"amqp://guest:guest@127.0.0.1:{self._port}/?{query}"

    def start(self) -> None:
        if self._epmd is None:
            epmd = shutil.which("epmd")
            assert epmd is not None, "epmd comes with Erlang, which RabbitMQ needs"
            self._epmd = self._run([epmd, "-address", "127.0.0.1", "-port", str(self._epmd_port)], "epmd.log")
            _await_port(self._epmd_port, self._epmd, self._folder / "epmd.log")
        self._broker = self._run([self._program], "broker.log")
        _await_port(self._port, self._broker, self._folder / "broker.log")

    def stop(self) -> None:
        """Ends the broker as an administrator would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the broker as a power cut would."""
        self._end(signal.SIGKILL)

    def restart(self, *, kill: bool = False) -> None:
        """Stops or kills the broker, and starts it again on the same data."""
        self._end(signal.SIGKILL if kill else signal.SIGTERM)
        self.start()

    def close(self) -> None:
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None

    def _end(self, how: signal.Signals) -> None:
        broker, self._broker = self._broker, None
        if broker is None:
            return
        group = broker.pid  # it leads a session of its own, which holds the Erlang machine and its children
        if how is signal.SIGTERM:
            broker.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                broker.wait(timeout=60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        broker.wait()
        _await_silence(self._port)

    def _run(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        with (self._folder / log).open("ab") as output:
            return subprocess.Popen(
                command,
                env={**os.environ, **self._environment()},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        folder = self._folder
        loopback = "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false"
        return {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"homing{self._port}@localhost",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "broker.pid"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "no-such-file"),
            # No busy waiting: the tests share their processors with what they test.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{loopback} +sbwt none +sbwtdcpu none +sbwtdio none",
        }


@contextlib.contextmanager
def running_rabbitmq() -> Iterator[RabbitServer]:
    """A broker for as long as the block lasts; skips the tests where there is none to start, fails where CI=true."""
    program = next((found for name in _PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        missing = "there is no rabbitmq-server here; on Debian: apt install rabbitmq-server"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    with tempfile.TemporaryDirectory(prefix="homing-rabbitmq-", ignore_cleanup_errors=True) as folder:
        server = RabbitServer(program, Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.close()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def _await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + _START_LIMIT
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > limit:
            state = f"ended with {process.returncode}" if process.poll() is not None else "does not answer"
            raise AssertionError(f"the server on port {port} {state}:\n{log.read_text()[-4000:]}")
        time.sleep(0.05)


def _await_silence(port: int) -> None:
    limit = time.monotonic() + _START_LIMIT
    while _answers(port):
        assert time.monotonic() < limit, f"somebody still answers on port {port}"
        time.sleep(0.05)
