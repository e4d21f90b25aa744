"""What an Airflow connection says is read as Airflow reads it, and repeated nowhere."""

from __future__ import annotations

import json
import pickle
import traceback
from typing import Any
from urllib.parse import quote

import pytest
from airflow.sdk import Connection as AirflowConnection
from hypothesis import given
from hypothesis import strategies as st

from homing import Connection, connections
from homing.connection import hide_secrets, read_connection
from homing.errors import MissingConnectionError

SECRET = "s3cret/pass:word@#"  # noqa: S105
FIELDS = ("conn_type", "host", "port", "schema", "login", "password")

some_text = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zs"]), min_size=1, max_size=12)
hosts = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True) | st.just("/var/run/My/socket")
extras = st.dictionaries(
    some_text, some_text | st.integers() | st.dictionaries(some_text, some_text, max_size=2), max_size=3
)
made = st.builds(
    AirflowConnection,
    conn_id=st.just("crm_api"),
    conn_type=st.sampled_from(["http", "postgres", "google_cloud_platform"]),
    host=st.none() | hosts | hosts.filter(lambda host: host[0] != "/").map("https://{}".format),
    port=st.none() | st.integers(1, 65535),
    schema=st.none() | some_text,
    login=st.none() | some_text,
    password=st.none() | some_text,
    extra=st.none() | extras.map(json.dumps),
)


def said(connection: Any, extra: dict[str, Any]) -> dict[str, Any]:
    return {**{name: getattr(connection, name) or None for name in FIELDS}, "extra": extra}


@given(made)
def test_a_uri_is_read_as_airflow_reads_it(connection: Any) -> None:
    uri = connection.get_uri()

    theirs, ours = AirflowConnection.from_uri(uri, conn_id="crm_api"), read_connection("crm_api", uri)

    assert said(ours, dict(ours.extra)) == said(theirs, theirs.extra_dejson)


@given(made)
def test_json_is_read_as_airflow_reads_it(connection: Any) -> None:
    text = connection.as_json()

    theirs, ours = AirflowConnection.from_json(text, conn_id="crm_api"), read_connection("crm_api", text)

    assert said(ours, dict(ours.extra)) == said(theirs, theirs.extra_dejson)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:p@host:5432/db?sslmode=require",
        "google-cloud-platform://?project=x",
        "http://https://api.example.com:8443/v1?timeout=",
        "HTTP://u@Host.Example/Path%20of%20it",
        "http://:only-password@host",
        "http://host/?__extra__=%7B%22a%22%3A+%5B1%2C+2%5D%7D",
        "generic://%2Fvar%2Frun%2FMy%2Fsocket:1/x",
        '{"conn_type": "postgresql", "host": "h", "port": "5432", "extra": "{\\"a\\": {\\"b\\": 1}}"}',
        '  {"host": "h", "login": null, "description": "d", "extra": {"a": 1}}',
    ],
)
def test_these_forms_are_read_as_airflow_reads_them(text: str) -> None:
    read = AirflowConnection.from_json if text.strip()[0] == "{" else AirflowConnection.from_uri
    theirs, ours = read(text, conn_id="c"), read_connection("c", text)

    assert said(ours, dict(ours.extra)) == said(theirs, theirs.extra_dejson)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"no scheme {SECRET}", "it is neither"),
        ("http://u:pa/ss:word@host:443/s3cret", "no number, or a character of its password"),
        ("http://https://ftp://s3cret", "neither"),
        ("http://u:s3cret@https://host", "second scheme in the wrong place"),
        ('{"password": "s3cret"', "not valid JSON"),
        ('{"password": 123456}', "its password is no text"),
        ('{"passwd": "s3cret"}', "fields that a connection has not"),
        ('{"port": "s3cret"}', "its port is no number"),
        ('{"port": true}', "its port is no number"),
        ('{"extra": "s3cret"}', "its extra is no JSON object"),
        ('{"extra": ["s3cret"]}', "its extra is no JSON object"),
        ("http://[s3cret", "neither"),
        ("http://u:s3cret@ho\u2100st", "neither"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_repeats_nothing_of_it(text: str, why: str) -> None:
    with pytest.raises(MissingConnectionError, match=why) as refused:
        read_connection("crm_api", text)

    shown = "".join(traceback.format_exception(refused.value))
    assert "'crm_api' cannot be read" in shown
    assert not any(secret in shown for secret in ("s3cret", "pa/ss", "word@#", "123456"))


def test_it_shows_no_secret_and_is_not_pickled() -> None:
    connection = Connection("crm_api", "http", "host", login="me", password=SECRET, extra={"token": SECRET})

    assert repr(connection) == f"{connection}" == "<Connection 'crm_api' of type 'http'>"
    with pytest.raises(TypeError, match="'crm_api' is not pickled"):
        pickle.dumps(connection)
    with pytest.raises(AttributeError):
        connection.host = "x"  # type: ignore[misc]
    with pytest.raises(TypeError):
        connection.extra["place"] = "x"  # type: ignore[index]


def test_texts_are_freed_of_the_secrets_that_were_read_quoted_or_not() -> None:
    read_connection(
        "c", Connection("c", password=SECRET, extra={"a": [{"api_key": "k-12345"}], "place": "Berlin"}).as_text()
    )

    text = f"login with {SECRET} at http://me:s3cret%2Fpass%3Aword%40%23@host?key=k-12345 in Berlin"
    assert hide_secrets(text) == "login with *** at http://me:***@host?key=*** in Berlin"


@pytest.mark.parametrize("write", [str, repr, json.dumps, quote, lambda secret: str(KeyError(f"no {secret}"))])
def test_texts_are_freed_of_secrets_however_these_are_written(write: Any) -> None:
    secret = 'it\'s \\a "very" sécret/one'  # noqa: S105
    read_connection("c", Connection("c", password=secret).as_text())

    assert "cret" not in hide_secrets(f"before {write(secret)} after")


def test_a_mapping_gives_connections_by_uri_json_fields_or_as_they_are_while_its_block_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OLD", "http://before")
    given = {
        "old": "http://u:p@now",
        "crm_api": {"host": "crm", "port": 80, "extra": {"a": 1}},
        "lake": Connection("lake", "s3", extra={"region": "eu"}),
    }

    with connections(given):
        read = {name: AirflowConnection.get(name) for name in given}

    assert (read["old"].host, read["crm_api"].port, read["lake"].extra_dejson) == ("now", 80, {"region": "eu"})
    assert AirflowConnection.get("old").host == "before"
    with pytest.raises(Exception, match="isn't defined"):
        AirflowConnection.get("crm_api")


@pytest.mark.parametrize(
    "given", [{"crm_api": {"hots": "x"}}, {"crm_api": "nonsense"}, {"crm_api": {"host": object()}}]
)
def test_a_mapping_with_a_mistake_is_refused_and_gives_nothing(given: dict[str, Any]) -> None:
    with (
        pytest.raises(MissingConnectionError, match="'crm_api'"),
        connections({"lake": "http://lake", **given}),
    ):
        pytest.fail("the block was entered")
    with pytest.raises(Exception, match="isn't defined"):
        AirflowConnection.get("lake")
