"""TLS towards RabbitMQ and Service Bus: only who the URL means is spoken to, and never in plain text."""

from __future__ import annotations

import socket
import ssl
import uuid
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from pika.exceptions import AMQPConnectionError, StreamLostError

from homing import open_store
from homing.errors import ConfigurationError, StoreError, StoreUnavailableError, TlsError
from homing.stores.tls import find_handshake_fault
from tests.rabbitmq_server import RabbitMQ, remove_store
from tests.tls.conftest import PASSWORD, Impostor, TlsRabbitMQ, Trust, check_refused

pytestmark = pytest.mark.services


@pytest.fixture
def name(tls_rabbitmq: TlsRabbitMQ) -> Iterator[str]:
    name = f"t{uuid.uuid4().hex[:12]}"
    yield name
    remove_store(tls_rabbitmq.url, name)


def url_of(port: int, name: str = "orders", scheme: str = "amqps", user: str = "guest:guest", **options: str) -> str:
    query = "&".join(f"{key}={value}" for key, value in {"store": name, "timeout": "10", **options}.items())
    return f"{scheme}://{user}@127.0.0.1:{port}/?{query}"


def files(trust: Trust) -> dict[str, str]:
    return {"cafile": trust.ca, "certfile": str(trust.client), "keyfile": str(trust.client_key)}


def test_rabbitmq_is_spoken_to_by_tls_with_a_client_certificate(
    tls_rabbitmq: TlsRabbitMQ, trust: Trust, name: str
) -> None:
    with open_store(url_of(tls_rabbitmq.tls_port, name, require_tls="true", **files(trust))) as store:
        store.store("secret", id="m1")
        message = store.retrieve()
        assert message is not None
        store.acknowledge(message)
        assert (message.id, message.content) == ("m1", "secret")


def test_without_a_client_certificate_rabbitmq_lets_nobody_in(
    tls_rabbitmq: TlsRabbitMQ, trust: Trust, name: str
) -> None:
    """In TLS 1.3 the broker says so after the client believes to be connected, or hangs up before it was heard."""
    strange = {"certfile": str(trust.strange_client), "keyfile": str(trust.strange_key)}
    for certificate in ({}, strange):
        url = url_of(tls_rabbitmq.tls_port, name, cafile=trust.ca, **certificate)
        with open_store(url) as store, pytest.raises((TlsError, StoreUnavailableError)):
            store.store("secret")


def test_what_a_broker_says_of_a_certificate_that_it_does_not_take_is_told() -> None:
    lost = StreamLostError(
        "Stream connection lost: SSLError(1, '[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert')"
    )
    assert "certificate" in (find_handshake_fault(AMQPConnectionError(lost)) or "")
    assert find_handshake_fault(StreamLostError("Stream connection lost: ConnectionResetError(104)")) is None


def test_a_rabbitmq_of_another_authority_or_host_is_refused(tls_rabbitmq: TlsRabbitMQ, trust: Trust) -> None:
    mine = files(trust)
    check_refused(url_of(tls_rabbitmq.tls_port, **{**mine, "cafile": str(trust.other.file)}), "self-signed certificate")
    check_refused(url_of(tls_rabbitmq.tls_port, **mine, server_hostname="elsewhere.example"), "mismatch")
    del mine["cafile"]
    check_refused(url_of(tls_rabbitmq.tls_port, **mine), "self-signed certificate")


@pytest.mark.parametrize(
    ("which", "words"), [("expired", "expired"), ("wrong host", "mismatch"), ("other authority", "local issuer")]
)
def test_who_cannot_prove_to_be_the_broker_hears_nothing(trust: Trust, which: str, words: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*trust.servers[which])
    heard = bytearray()

    def answer(client: socket.socket) -> None:
        with context.wrap_socket(client, server_side=True) as secured:
            while chunk := secured.recv(65_536):
                heard.extend(chunk)

    with Impostor(answer) as impostor:
        check_refused(url_of(impostor.port, user=f"homing:{PASSWORD}", cafile=trust.ca), words)
    assert impostor.clients
    assert heard == b""


def test_a_broker_without_tls_hears_nothing_but_the_wish_for_it(rabbitmq: RabbitMQ) -> None:
    with open_store(url_of(rabbitmq.port, user=f"homing:{PASSWORD}", require_tls="true")) as store:
        with pytest.raises(StoreError) as caught:
            store.store("secret")
        assert PASSWORD not in str(caught.value)
    with Impostor(lambda client: client.sendall(b"AMQP\0\0\x09\x01")) as impostor:
        check_refused(url_of(impostor.port, user=f"homing:{PASSWORD}", require_tls="true"), "does not speak TLS")
    assert impostor.heard[:1] == b"\x16", "the first bytes of TLS"
    assert PASSWORD.encode() not in impostor.heard
    assert b"PLAIN" not in impostor.heard


def test_verification_can_be_turned_off_by_name_only(tls_rabbitmq: TlsRabbitMQ, trust: Trust, name: str) -> None:
    mine = {key: value for key, value in files(trust).items() if key != "cafile"}
    with open_store(url_of(tls_rabbitmq.tls_port, name, verify="false", **mine)) as store:
        store.store("x")


@pytest.mark.parametrize(
    "url",
    [
        url_of(1, scheme="amqp", user=f"homing:{PASSWORD}", require_tls="true"),
        url_of(1, scheme="amqp", user=f"homing:{PASSWORD}", cafile="/ca.pem"),
        url_of(1, user=f"homing:{PASSWORD}", cafile="/no/such/file.pem"),
        url_of(1, user=f"homing:{PASSWORD}", keyfile="/no/such/file.pem"),
        url_of(1, user=f"homing:{PASSWORD}", verify="no"),
        url_of(1, user=f"homing:{PASSWORD}", require_tls="1"),
        url_of(1, user=f"homing:{PASSWORD}", ssl_options="{}"),
        f"servicebus+emulator://homing:{PASSWORD}@127.0.0.1:1/?store=orders&require_tls=true",
        f"servicebus://homing:{PASSWORD}@ns.servicebus.windows.net/?store=orders&require_tls=maybe",
    ],
    ids=count(),
)
def test_a_url_that_contradicts_itself_is_refused_without_connecting(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert PASSWORD not in str(caught.value)


def test_the_service_itself_is_always_spoken_to_by_tls() -> None:
    with open_store(
        f"servicebus://homing:{PASSWORD}@ns.servicebus.windows.net/?store=orders&require_tls=true"
    ) as store:
        assert store.name == "orders"


def test_a_key_that_others_can_read_is_refused(trust: Trust, tmp_path: Path) -> None:
    key = tmp_path / "open.key"
    key.write_bytes(trust.client_key.read_bytes())
    key.chmod(0o640)
    mine = {**files(trust), "keyfile": str(key)}
    if key.stat().st_uid == 0:  # root's may be read by one group, as PostgreSQL's own client has it
        open_store(url_of(1, **mine)).close()
    key.chmod(0o604)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        open_store(url_of(1, **mine))
