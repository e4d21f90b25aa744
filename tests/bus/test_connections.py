"""Wrong connections are told apart and never repeated; a service that goes away and comes back loses nothing."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa

from demo.ports import free_port
from homing.bus import Administrator, BusListener, Message, MessageReceiver, MessageSender, RetryMode, RetryOptions
from homing.errors import ConfigurationError, HomingError, LeaseLostError, NotInFlightError, StoreUnavailableError
from tests.bus.conftest import AT_ONCE, Bus, get, nothing
from tests.servicebus.keys import KEY
from tests.servicebus.server import ServiceBusServer


@pytest.mark.parametrize(
    "connection",
    [
        "",
        "nonsense secret",
        "Endpoint=sb://secret",
        "Endpoint=sb://host/;SharedAccessKeyName=secret",
        "amqp://secret@host",
        "servicebus://host/?store=secret",
        "servicebus://name:secret@host:5671/",
        "sqlite:///bus.db?store=secret",
        "sqlite://",
    ],
)
def test_what_is_no_connection_is_refused_and_not_repeated(connection: str) -> None:
    for kind in (MessageSender, MessageReceiver):
        with pytest.raises(ConfigurationError) as caught:
            kind(connection, queue="q")
        assert "secret" not in str(caught.value)
    with pytest.raises(ConfigurationError):
        Administrator(connection)


def test_a_connection_string_of_another_entity_is_refused() -> None:
    string = "Endpoint=sb://host/;SharedAccessKeyName=n;SharedAccessKey=secret;EntityPath=other"
    queue, subscription = {"queue": "q"}, {"topic": "q", "subscription": "s"}
    ways: list[tuple[Any, dict[str, str]]] = [
        (MessageSender, queue), (MessageSender, {"topic": "q"}), (MessageReceiver, queue),
        (MessageReceiver, subscription), (BusListener, subscription),
    ]  # fmt: skip

    for kind, named in ways:
        with pytest.raises(ConfigurationError, match=r"'other'.*'q'") as caught:
            kind(string, **named)
        assert "secret" not in str(caught.value)
    MessageSender(string, queue="other").close()
    MessageReceiver(string, topic="other", subscription="s").close()


def test_a_wrong_key_is_refused_by_the_service(servicebus: ServiceBusServer) -> None:
    wrong = servicebus.connection_string.replace(KEY, "d3Jvbmc=")

    with MessageSender(wrong, queue="q", retry=AT_ONCE) as sender:
        with pytest.raises(ConfigurationError, match="refuses the key") as caught:
            sender.send_payload("a")
        assert "d3Jvbmc" not in str(caught.value)
    with (
        MessageReceiver(wrong, queue="q", retry=AT_ONCE) as receiver,
        pytest.raises(ConfigurationError, match="refuses the key"),
    ):
        receiver.receive(server_wait_time=1)
    with Administrator(wrong) as admin, pytest.raises(ConfigurationError, match="refuses the key") as caught:
        admin.create_queue("q")
    assert "d3Jvbmc" not in str(caught.value)


def test_a_service_that_is_not_there_is_unavailable() -> None:
    connection = (
        f"Endpoint=sb://127.0.0.1:{free_port()};SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true;"
    )
    retry = RetryOptions(max_retries=1, delay=0.1, mode=RetryMode.EXPONENTIAL)

    with (
        MessageSender(connection, queue="q", retry=retry) as sender,
        pytest.raises(StoreUnavailableError, match="cannot be reached"),
    ):
        sender.send_payload("a")


def test_a_database_that_is_not_there_is_tried_again_as_often_as_said() -> None:
    connection = f"postgresql://nobody@127.0.0.1:{free_port()}/bus"
    retry = RetryOptions(max_retries=2, delay=0.05)

    with (
        MessageSender(connection, queue="q", retry=retry) as sender,
        pytest.raises(StoreUnavailableError, match="cannot"),
    ):
        sender.send_payload("a")


class Refusing:
    """A server that hangs up on whoever connects, and remembers when they came."""

    def __init__(self) -> None:
        self.came: list[float] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.came.append(time.monotonic())
            connection.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.mark.parametrize("kind", ["embedded", "service"])
@pytest.mark.parametrize(("mode", "pauses"), [(RetryMode.FIXED, [0.4, 0.4]), (RetryMode.EXPONENTIAL, [0.4, 0.8])])
def test_it_is_tried_as_often_and_as_far_apart_as_was_said(kind: str, mode: RetryMode, pauses: list[float]) -> None:
    server = Refusing()
    service = (
        f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true;"
    )
    connection = service if kind == "service" else f"postgresql://nobody@127.0.0.1:{server.port}/bus"
    retry = RetryOptions(max_retries=2, delay=0.4, mode=mode)

    with MessageSender(connection, queue="q", retry=retry) as sender, pytest.raises(StoreUnavailableError):
        sender.send_payload("a")

    server.close()
    apart = [later - earlier for earlier, later in pairwise(server.came)]
    assert len(apart) == len(pauses), "two retries"
    assert all(pause * 0.9 < took < pause + 0.35 for pause, took in zip(pauses, apart, strict=True)), apart


def test_a_wrong_database_is_told_and_its_password_is_not(database: str) -> None:
    """As a wrong key is to the service."""
    url = sa.make_url(database)
    if url.get_backend_name() == "sqlite":
        wrong = "sqlite:////no/such/folder/bus.db"
    else:
        nobody = url.set(username="nobody", password="geheim", database="no_such")  # noqa: S106
        wrong = nobody.render_as_string(hide_password=False)

    with (
        MessageSender(wrong, queue="q", retry=AT_ONCE) as sender,
        MessageReceiver(wrong, queue="q", retry=AT_ONCE) as receiver,
    ):
        for use in (lambda: sender.send_payload("a"), lambda: receiver.receive(server_wait_time=0)):
            with pytest.raises(StoreUnavailableError) as caught:
                use()
            assert "geheim" not in str(caught.value)
    with pytest.raises(StoreUnavailableError), Administrator(wrong) as admin:
        admin.create_queue("q")


def test_retry_options_say_what_the_two_modes_do() -> None:
    fixed = RetryOptions(delay=10, max_delay=60).policy()
    growing = RetryOptions(delay=10, max_delay=60, mode=RetryMode.EXPONENTIAL).policy()

    assert [fixed.delay(attempt) for attempt in (1, 2, 3, 4)] == [10, 10, 10, 10]
    assert [growing.delay(attempt) for attempt in (1, 2, 3, 4)] == [10, 20, 40, 60]
    assert RetryOptions() == RetryOptions(3, 10, 60, 60, RetryMode.FIXED)
    with pytest.raises(ConfigurationError, match="mode must be RetryMode"):
        RetryOptions(mode="fixed")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="max_retries"):
        RetryOptions(max_retries=-1)


def test_without_the_sdk_the_extra_is_named_and_the_embedded_bus_works() -> None:
    script = """
import sys
sys.modules["azure.servicebus"] = None
from homing.bus import MessageSender
from homing.errors import MissingExtraError
from homing import open_store
for open_it in (
    lambda: MessageSender("Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=a2V5", queue="q"),
    lambda: open_store("servicebus://n:k@h/?store=q"),
):
    try:
        open_it()
    except MissingExtraError as error:
        assert "homing[azure]" in str(error), error
    else:
        raise SystemExit("it opened")
import homing.bus
assert not [name for name, module in sys.modules.items() if name.partition(".")[0] == "azure" and module is not None]
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "fine", done.stderr


def test_a_dropped_connection_loses_nothing_that_was_sent_or_held(servicebus: ServiceBusServer) -> None:
    bus = Bus(servicebus.connection_string)
    try:
        queue = bus.queue(lock_duration=30)
        retry = RetryOptions(max_retries=3, delay=0.2)
        sender, receiver = bus.sender(queue=queue, retry=retry), bus.receiver(queue=queue, retry=retry)
        sender.send_payload("before")
        held = get(receiver)

        servicebus.drop_connections()
        sender.send_payload("after")

        # Whether the lock survives is the service's to say; that it was settled, or was not, must be known.
        try:
            receiver.complete(held)
            rest = {"after"}
        except (LeaseLostError, NotInFlightError, StoreUnavailableError):
            rest = {"before", "after"}
        got = {get(receiver).body for _ in rest}
        assert got == rest
        assert nothing(receiver)
    finally:
        bus.close()


def test_a_receiver_that_waits_briefly_finds_back_after_a_restart(servicebus: ServiceBusServer) -> None:
    bus = Bus(servicebus.connection_string)
    try:
        queue = bus.queue()
        sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue)
        assert nothing(receiver)
        servicebus.restart()
        received: list[Message] = []
        told: list[HomingError] = []

        def receive() -> None:
            while not received:
                try:
                    message = receiver.receive(server_wait_time=0.2)
                except StoreUnavailableError as error:
                    told.append(error)
                else:
                    received.extend([message] if message else [])

        waiting = threading.Thread(target=receive, daemon=True)
        waiting.start()
        for _ in range(50):
            try:
                sender.send_payload("a")
                break
            except StoreUnavailableError:
                continue
        waiting.join(60)

        assert [message.body for message in received] == ["a"]
    finally:
        bus.close()
