"""The connection type `homing`: form fields become a store URL, and the Test button tells the truth."""

from __future__ import annotations

import json
import sqlite3
import traceback
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from homing import open_store
from homing.airflow import StoreHook
from homing.airflow.hooks.connection import SCHEMES, connection_url
from homing.airflow.hooks.store import find_public_url, find_url
from homing.airflow.provider_info import get_provider_info
from homing.errors import ConfigurationError
from homing.store_ref import StoreRef
from homing.stores import check_scheme
from tests.rabbitmq_server import RabbitMQ, remove_store


def connection(**fields: Any) -> Connection:
    extra = {name: fields.pop(name) for name in ("scheme", "store", "options") if name in fields}
    return Connection(conn_id="c", conn_type="homing", extra=json.dumps(extra), **fields)


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"password": "sqlite:////x.db?store=a"}, "sqlite:////x.db?store=a"),
        ({"scheme": "sqlite", "schema": "/data/x.db", "store": "orders"}, "sqlite:////data/x.db?store=orders"),
        (
            {"scheme": "postgresql", "host": "db", "port": 5433, "login": "me", "password": "p@s/s", "schema": "shop"},
            "postgresql://me:p%40s%2Fs@db:5433/shop",
        ),
        (
            {"scheme": "amqp", "host": "mq", "schema": "/", "store": "o", "options": "?prefetch=5"},
            "amqp://mq/%2F?store=o&prefetch=5",
        ),
    ],
)
def test_the_form_becomes_a_url(fields: dict[str, Any], url: str) -> None:
    assert connection_url(connection(**fields)) == url


@pytest.mark.parametrize(
    ("fields", "error"),
    [({}, "names no store"), ({"scheme": "postgresql"}, "no host"), ({"scheme": "nix", "host": "h"}, "nix")],
)
def test_a_form_that_names_no_store_is_refused(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        connection_url(connection(**fields))


@pytest.mark.parametrize("scheme", ["postgresql", "amqp", "servicebus", "foo"])
@pytest.mark.parametrize("password", ["[s3cret", "a[s3cret]b", "s3cret/", "a#s3cret"])
def test_a_password_that_is_not_escaped_is_in_no_error_of_a_task_nor_of_a_dag_file(scheme: str, password: str) -> None:
    """Python's own error about such a URL quotes it."""
    url = f"{scheme}://me:{password}@host/db"

    assert not StoreRef(url).is_public
    with pytest.raises(ConfigurationError) as caught:
        find_url(url)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("host", ["h\u2100st", "[::1", "a@b"])
@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_form_whose_host_is_none_is_refused_without_its_password(
    scheme: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own error about the URL that the form makes quotes it."""
    form = {"conn_type": "homing", "host": host, "login": "me", "password": "s3cret", "extra": {"scheme": scheme}}
    monkeypatch.setenv("AIRFLOW_CONN_ODD", json.dumps(form))

    for find in (find_url, find_public_url):
        with pytest.raises(ConfigurationError, match="its host must be the name of a host") as caught:
            find("odd")
        assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("kind", ["postgres", "http", "generic", ""])
def test_a_connection_of_another_type_is_no_store_and_its_password_is_not_shown(kind: str) -> None:
    theirs = Connection(conn_id="theirs", conn_type=kind, password="sqlite:////s3cret.db?store=x")  # noqa: S106

    with pytest.raises(ConfigurationError, match="'theirs' is of type") as caught:
        connection_url(theirs)

    assert "s3cret" not in str(caught.value)


def test_a_connection_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="there is no Airflow connection 'nobody'"):
        find_url("nobody")


def test_the_form_has_the_fields_that_are_read() -> None:
    (kind,) = get_provider_info()["connection-types"]

    assert kind["connection-type"] == StoreHook.conn_type
    assert set(kind["conn-fields"]) == {"scheme", "store", "options"}
    assert kind["conn-fields"]["scheme"]["schema"]["enum"] == [*SCHEMES, None]


def test_test_connection_says_how_full_the_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form = {"conn_type": "homing", "schema": f"{tmp_path}/x.db", "extra": {"scheme": "sqlite", "store": "orders"}}
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS", json.dumps(form))
    with StoreHook("orders").get_conn() as store:
        store.store(1)

    assert StoreHook("orders").test_connection() == (True, "Store 'orders' answers: 1 available")


def test_test_connection_makes_neither_a_file_nor_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The button may be pressed in the API server, with whatever somebody wrote into the form."""
    there, not_there = tmp_path / "empty.db", tmp_path / "none.db"
    sqlite3.connect(there).close()
    for file in (there, not_there):
        about = {"conn_type": "homing", "password": f"sqlite:///{file}?store=orders"}
        monkeypatch.setenv("AIRFLOW_CONN_ORDERS", json.dumps(about))
        assert StoreHook("orders").test_connection()[0] is False

    assert not not_there.exists()
    assert sqlite3.connect(there).execute("select count(*) from sqlite_master").fetchone() == (0,)


@pytest.mark.parametrize("value", ["sqlite:///{there}?store=orders", "s3cret", "s3cret://x", None])
def test_what_is_in_the_environment_of_the_api_server_is_neither_opened_nor_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """As Airflow's own database is: `env:AIRFLOW__DATABASE__SQL_ALCHEMY_CONN`."""
    there = tmp_path / "x.db"
    with open_store(f"sqlite:///{there}?store=orders") as store:
        store.store(1)
    if value is not None:
        monkeypatch.setenv("SOMETHING", value.format(there=there))
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS", json.dumps({"conn_type": "homing", "password": "env:SOMETHING"}))

    told = "the connection 'orders' names its store by env:NAME, which only tasks look up"
    assert StoreHook("orders").test_connection() == (
        False,
        f"{told}: put its URL into the password field to have it opened here",
    )
    with pytest.raises(ConfigurationError, match=told):
        find_public_url("orders")
    if value is not None:
        assert find_url("orders") == value.format(there=there)


@pytest.mark.services
def test_test_connection_makes_no_queue(rabbitmq: RabbitMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{rabbitmq.url}?store=looked_at"
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS", json.dumps({"conn_type": "homing", "password": url}))

    for _ in range(2):
        works, why = StoreHook("orders").test_connection()
        assert (works, "has no queue of store 'looked_at'" in why) == (False, True)
    with open_store(url) as store:
        store.store(1)

    assert StoreHook("orders").test_connection() == (True, "Store 'looked_at' answers: 1 available")
    remove_store(rabbitmq.url, "looked_at")


def test_test_connection_of_a_store_that_is_away_says_why_and_shows_no_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = "postgresql+psycopg://me:s3cret@127.0.0.1:1/x"
    monkeypatch.setenv("AIRFLOW_CONN_AWAY", json.dumps({"conn_type": "homing", "password": url}))

    works, why = StoreHook("away").test_connection()

    assert not works
    assert "s3cret" not in why
    assert why


def test_every_scheme_of_the_form_is_one_a_store_answers_to() -> None:
    for scheme in SCHEMES:
        check_scheme(f"{scheme}://x")


def test_no_log_shows_the_password_of_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    masked: list[str] = []
    monkeypatch.setattr("homing.airflow.hooks.store.mask_secret", masked.append)
    monkeypatch.setenv("ORDERS", "postgresql://ann:p%40ss@db/shop?store=orders")

    url = find_url("env:ORDERS")

    assert masked == [url, "p%40ss", "p@ss"]
