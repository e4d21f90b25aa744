"""A connection string, an Airflow connection of the Microsoft provider, and the store URL they stand for."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from homing.bus import Administrator, BusListener, MessageReceiver, MessageSender
from homing.errors import ConfigurationError
from homing.stores.servicebus.options import connection_string, parse_url, servicebus_url
from tests.servicebus.server import ServiceBusServer

_STRING = "Endpoint=sb://name.servicebus.windows.net/;SharedAccessKeyName=Root Key;SharedAccessKey=a/b+c=="


def test_a_connection_string_becomes_a_url_and_comes_back() -> None:
    url = servicebus_url(_STRING, "orders/eu", "billing")

    back, options = parse_url(url)

    assert back == _STRING.replace("windows.net/", "windows.net") + ";"
    assert (options.name, options.subscription) == ("orders/eu", "billing")


def test_an_emulator_stays_one() -> None:
    string = "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true;"

    assert connection_string(servicebus_url(string, "q")) == string


@pytest.mark.parametrize("string", ["", "geheim", "Endpoint=sb://h/;SharedAccessKeyName=geheim"])
def test_what_is_no_connection_string_is_refused_and_not_repeated(string: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        servicebus_url(string, "q")

    assert "geheim" not in str(caught.value)


def connect(monkeypatch: pytest.MonkeyPatch, behind: str = "", **fields: Any) -> str:
    from homing.airflow.hooks.store import find_url

    monkeypatch.setenv("AIRFLOW_CONN_ASB", json.dumps({"conn_type": "azure_service_bus", **fields}))
    return find_url(f"asb{behind}")


@pytest.mark.parametrize(
    ("named", "url"),
    [
        ({"queue": "orders"}, servicebus_url(_STRING, "orders")),
        ({"topic": "orders", "subscription": "billing"}, servicebus_url(_STRING, "orders", "billing")),
    ],
)
def test_a_connection_of_the_microsoft_provider_is_a_store(
    monkeypatch: pytest.MonkeyPatch, named: dict[str, str], url: str
) -> None:
    # The provider's form has the connection string in the schema field and hides the extra.
    assert connect(monkeypatch, f"?{urlencode(named)}", schema=_STRING) == url
    assert connect(monkeypatch, schema=_STRING, extra=named) == url
    assert connect(monkeypatch, f"?{urlencode(named)}", schema=_STRING, extra={"queue": "other"}) == url


def test_a_connection_of_the_microsoft_provider_is_a_bus(
    monkeypatch: pytest.MonkeyPatch, servicebus: ServiceBusServer
) -> None:
    from homing.airflow import StoreHook

    form = {"conn_type": "azure_service_bus", "schema": servicebus.connection_string}
    monkeypatch.setenv("AIRFLOW_CONN_BUS", json.dumps(form))
    use_a_bus(StoreHook("bus").get_bus())


def test_a_connection_of_ours_is_a_bus_in_its_database(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from homing.airflow import StoreHook

    form = {"conn_type": "homing", "schema": f"{tmp_path}/x.db", "extra": {"scheme": "sqlite", "store": "orders"}}
    monkeypatch.setenv("AIRFLOW_CONN_BUS", json.dumps(form))
    use_a_bus(StoreHook("bus").get_bus())

    monkeypatch.setenv("AIRFLOW_CONN_BUS", json.dumps({"conn_type": "homing", "password": "amqp://me:geheim@h/"}))
    with pytest.raises(ConfigurationError, match="invalid bus connection") as caught:
        MessageSender(StoreHook("bus").get_bus(), queue="q")
    assert "geheim" not in str(caught.value)
    monkeypatch.setenv("AIRFLOW_CONN_BUS", json.dumps({"conn_type": "azure_service_bus"}))
    with pytest.raises(ConfigurationError, match="no connection string"):
        StoreHook("bus").get_bus()
    with pytest.raises(ConfigurationError, match="there is no Airflow connection 'nobody'"):
        StoreHook("nobody").get_bus()


def use_a_bus(connection: str) -> None:
    """By all four classes."""
    came = threading.Event()
    with Administrator(connection) as admin, MessageSender(connection, queue="from-airflow") as sender:
        admin.create_queue("from-airflow")
        sender.send_payload("a")
        with MessageReceiver(connection, queue="from-airflow") as receiver:
            assert receiver.receive_payload(server_wait_time=20) == "a"
        listener = BusListener(connection, queue="from-airflow")
        listener.attach(lambda message: came.set())
        with listener:
            sender.send_payload("b")
            assert came.wait(20)
        admin.delete_queue("from-airflow")


def test_options_of_the_store_stand_behind_the_connection_too(monkeypatch: pytest.MonkeyPatch) -> None:
    _, options = parse_url(connect(monkeypatch, "?queue=orders&ack_wait=60", schema=_STRING))

    assert (options.name, options.ack_wait) == ("orders", 60.0)


@pytest.mark.parametrize(
    ("behind", "fields", "error"),
    [
        ("", {"schema": _STRING}, r"asb\?queue=orders"),
        ("?subscription=s", {"schema": _STRING}, r"asb\?queue=orders"),
        ("?queue=orders", {}, "no connection string"),
        ("?queue=orders", {"extra": {"fully_qualified_namespace": "n", "credential": "a/b+c"}}, "identity"),
        ("?queue=orders", {"schema": "a/b+c"}, "not a connection string"),
    ],
)
def test_one_that_makes_no_store_is_refused_and_its_key_not_repeated(
    monkeypatch: pytest.MonkeyPatch, behind: str, fields: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigurationError, match=error) as caught:
        connect(monkeypatch, behind, **fields)

    assert "a/b+c" not in str(caught.value)


def test_a_connection_that_names_its_store_itself_has_nothing_behind_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    from homing.airflow.hooks.store import find_url

    monkeypatch.setenv("AIRFLOW_CONN_OURS", json.dumps({"conn_type": "homing", "password": "sqlite:///x.db"}))
    with pytest.raises(ConfigurationError, match="names its store itself"):
        find_url("ours?queue=orders")
