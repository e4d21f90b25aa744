"""A real RabbitMQ server of the tests' own: free ports, loopback only, everything in one folder, ended by pid."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pika

from demo.ports import free_port
from homing.stores.rabbitmq.topology import LEVELS, dead_queue, delay_name, settled_name
from tests.servers import Server, launch, missing

# Debian's /usr/sbin/rabbitmq-server insists on its own user; what it wraps runs as anybody.
_PROGRAMS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
_START_TIMEOUT = 240.0


class RabbitMQ(Server):
    """One broker, with its own epmd, that can be stopped, killed and started again over the same data."""

    package = "rabbitmq-server"

    def __init__(self) -> None:
        super().__init__()
        self._distribution_port, self._epmd_port = free_port(), free_port()
        self._epmd: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def prepare(self) -> None:
        self.command()
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\nloopback_users = none\nlog.file.level = warning\n"
        )

        # A message that waits may find its next queue not up yet after a crash; the broker then tries again after this
        # many milliseconds, of which three minutes are the default.
        (self.folder / "advanced.config").write_text(
            "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 5000}]}].\n"
        )

    def command(self) -> list[str]:
        program = next((found for name in _PROGRAMS if (found := shutil.which(name))), None)
        return [program or missing(self.package)]

    def start(self) -> None:
        if self._epmd is None:
            epmd = shutil.which("epmd") or missing("erlang-base")
            self._epmd = self._spawn([epmd, "-address", "127.0.0.1", "-port", str(self._epmd_port)], "epmd.log")
            _await_port(self._epmd_port, self._epmd, self.folder / "epmd.log")
        self._process = self._spawn(self.command(), "log")
        _await_port(self.port, self._process, self.folder / "log")

    def stop(self, how: signal.Signals | None = None) -> None:
        """Ends the broker: with SIGTERM as an administrator would, with SIGKILL as a power cut."""
        process, self._process = self._process, None
        if process is None:
            return
        # The process is a shell that waits for the Erlang machine, which has written down its own pid.
        machine = int((self.folder / "broker.pid").read_text())
        with contextlib.suppress(ProcessLookupError):
            os.kill(machine, how or self.stop_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def restart(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stops the broker in good order and starts it again over the same data.

        Not by a kill: RabbitMQ writes the names of new quorum queues down about a second later, so a broker killed
        before that has lost what they held, whatever it had confirmed.
        """
        super().restart(how)

    def control(self, *arguments: str) -> None:
        """Runs rabbitmqctl."""
        places = (shutil.which(name) for name in ("/usr/lib/rabbitmq/bin/rabbitmqctl", "rabbitmqctl"))
        environment = {**os.environ, **self._environment()}
        command = [next(filter(None, places)), "--node", environment["RABBITMQ_NODENAME"], *arguments]
        subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, check=True, timeout=300)

    def remove(self) -> None:
        self.stop(signal.SIGKILL)
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _spawn(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        # The kernel ends it with the tests, however they end.
        guard = ["setpriv", "--pdeathsig=TERM"] if shutil.which("setpriv") else []
        with (self.folder / log).open("ab") as output:
            return subprocess.Popen(
                [*guard, *command],
                env={**os.environ, **self._environment()},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        folder = self.folder
        loopback = "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false"
        return {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"homing{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_PID_FILE": str(folder / "broker.pid"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "no-such-file"),
            # No busy waiting: the tests share their processors with what they test.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{loopback} +sbwt none +sbwtdcpu none +sbwtdio none",
        }


@contextlib.contextmanager
def running_rabbitmq() -> Iterator[RabbitMQ]:
    """A broker for as long as the block lasts; skips the tests where there is none to start, fails where CI=true."""
    server = RabbitMQ()
    launch(server)
    try:
        yield server
    finally:
        server.remove()


def remove_store(url: str, name: str) -> None:
    """Deletes a store's queues: every quorum queue that is left makes the broker's next start slower."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        for level in range(LEVELS):
            channel.queue_delete(delay_name(name, level))
            channel.exchange_delete(delay_name(name, level))
        channel.queue_delete(name)
        channel.queue_delete(dead_queue(name))
        channel.exchange_delete(settled_name(name))


def _await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            text = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"nothing answers on port {port}; exit code {process.poll()}:\n{text}")
        time.sleep(0.05)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
