"""A connection string, an Airflow connection of the Microsoft provider, and the store URL they stand for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from homing.errors import ConfigurationError
from homing.stores.servicebus.options import connection_string, parse_url, url_of

_STRING = "Endpoint=sb://name.servicebus.windows.net/;SharedAccessKeyName=Root Key;SharedAccessKey=a/b+c=="


def test_a_connection_string_becomes_a_url_and_comes_back() -> None:
    url = url_of(_STRING, "orders/eu", "billing")

    back, options = parse_url(url)

    assert back == _STRING.replace("windows.net/", "windows.net") + ";"
    assert (options.name, options.subscription) == ("orders/eu", "billing")


def test_an_emulator_stays_one() -> None:
    string = "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true;"

    assert connection_string(url_of(string, "q")) == string


@pytest.mark.parametrize("string", ["", "geheim", "Endpoint=sb://h/;SharedAccessKeyName=geheim"])
def test_what_is_no_connection_string_is_refused_and_not_repeated(string: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        url_of(string, "q")

    assert "geheim" not in str(caught.value)


def connect(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> str:
    from homing.airflow.hook import find_url

    monkeypatch.setenv("AIRFLOW_CONN_ASB", json.dumps({"conn_type": "azure_service_bus", **fields}))
    return find_url("asb")


def test_a_connection_of_the_microsoft_provider_is_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connect(monkeypatch, schema=_STRING, extra={"queue": "orders"}) == url_of(_STRING, "orders")
    with_topic = {"topic": "orders", "subscription": "billing"}
    assert connect(monkeypatch, schema=_STRING, extra=with_topic) == url_of(_STRING, "orders", "billing")


def test_one_that_names_no_queue_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="queue") as caught:
        connect(monkeypatch, schema=_STRING)

    assert "a/b+c" not in str(caught.value)
