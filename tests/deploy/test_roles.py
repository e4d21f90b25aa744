"""deploy/: what docker-compose.yaml sets up its servers with, tried on real ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import psycopg
import pytest
import sqlalchemy as sa
from pika.exceptions import ChannelClosedByBroker, ProbableAuthenticationError

from homing import open_store
from homing.delivery import open_pipeline_stores
from tests.rabbitmq_server import RabbitMQ
from tests.servers import PostgreSQL, launch

pytestmark = pytest.mark.services
DEPLOY = Path(__file__).parents[2] / "deploy"
PASSWORD = "p'a\"s$s w%ord"  # noqa: S105


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    """One of its own, because roles belong to a server, with the script run as PostgreSQL's image runs it."""
    started = PostgreSQL(in_memory=True)
    launch(started)
    psql = shutil.which("psql") or str(Path(started._program("psql")))
    environment = {**os.environ, "APP_ROLE": "orders_app", "APP_PASSWORD": PASSWORD}
    where = ["--host=127.0.0.1", f"--port={started.port}", "--username=postgres", "--dbname=postgres"]
    command = [
        psql,
        "-v",
        "ON_ERROR_STOP=1",
        "--no-password",
        "--no-psqlrc",
        *where,
        "--file",
        str(DEPLOY / "roles.sql"),
    ]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    # As the image has it: a password from everywhere but the machine itself.
    hba = started.folder / "data" / "pg_hba.conf"
    hba.write_text("host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
    with psycopg.connect(_where(started, "postgres", "postgres"), autocommit=True) as connection:
        connection.execute("select pg_reload_conf()")
    yield started
    started.remove()


def _where(server: PostgreSQL, user: str, database: str) -> str:
    return psycopg.conninfo.make_conninfo(
        host="127.0.0.1", port=server.port, user=user, dbname=database, password=PASSWORD
    )


def test_the_role_owns_its_database_and_is_not_a_superuser(server: PostgreSQL) -> None:
    with psycopg.connect(_where(server, "postgres", "postgres")) as connection:
        (rights,) = connection.execute(
            "select rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls from pg_roles "
            "where rolname = 'orders_app'"
        ).fetchall()
        owner = connection.execute(
            "select pg_get_userbyid(datdba) from pg_database where datname = 'orders_app'"
        ).fetchone()
    assert (rights, owner) == ((False,), ("orders_app",))


@pytest.mark.parametrize(
    "statement",
    [
        "create role other",
        "create database other",
        "copy (select 1) to program 'true'",
        "select pg_read_file('PG_VERSION')",
    ],
)
def test_the_role_may_not_do_what_is_a_superusers(server: PostgreSQL, statement: str) -> None:
    with (
        psycopg.connect(_where(server, "orders_app", "orders_app"), autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement)


def test_the_role_may_not_connect_elsewhere_nor_without_its_password(server: PostgreSQL) -> None:
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(_where(server, "orders_app", "postgres"))
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(_where(server, "orders_app", "orders_app"), password="other")  # noqa: S106


def test_a_pipelines_stores_work_with_the_role(server: PostgreSQL) -> None:
    url = sa.URL.create("postgresql", "orders_app", PASSWORD, "127.0.0.1", server.port, "orders_app")
    text = url.render_as_string(hide_password=False)
    with open_pipeline_stores(f"{text}?store=orders&acknowledged=archived", f"{text}?store=orders_dead") as stores:
        stores.store.store_many(range(100))
        stores.store.settle(stores.store.claim(100))
        stores.dead_letters.store("dead")
        assert stores.store.count()["acknowledged"] == 100


class DefinedRabbitMQ(RabbitMQ):
    """With the definitions that deploy/ writes, and the settings that compose mounts."""

    def prepare(self) -> None:
        super().prepare()
        path = self.folder / "definitions.json"
        given = {"RABBITMQ_USER": "homing", "RABBITMQ_PASSWORD": PASSWORD, "RABBITMQ_STORES": "orders,bills"}
        command = [sys.executable, str(DEPLOY / "rabbitmq_definitions.py"), str(path)]
        subprocess.run(command, env={**os.environ, **given}, check=True, timeout=60)
        settings = (DEPLOY / "rabbitmq.conf").read_text().replace("/definitions/definitions.json", str(path))
        assert str(path) in settings
        with (self.folder / "rabbitmq.conf").open("a") as file:
            file.write(settings)


@pytest.fixture(scope="module")
def broker() -> Iterator[DefinedRabbitMQ]:
    started = DefinedRabbitMQ()
    launch(started)
    yield started
    started.remove()


def connect(broker: DefinedRabbitMQ, user: str, password: str) -> Any:
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, credentials=credentials))


def test_the_definitions_hold_no_password_and_no_administrator(broker: DefinedRabbitMQ) -> None:
    text = (broker.folder / "definitions.json").read_text()

    assert json.dumps(PASSWORD)[1:-1] not in text
    assert [(user["name"], user["tags"]) for user in json.loads(text)["users"]] == [("homing", [])]
    with pytest.raises(ProbableAuthenticationError):
        connect(broker, "guest", "guest")


@pytest.mark.parametrize("store", ["orders", "bills"])
def test_a_store_works_with_the_brokers_user(broker: DefinedRabbitMQ, store: str) -> None:
    url = f"amqp://homing:{quote(PASSWORD, safe='')}@127.0.0.1:{broker.port}/?store={store}&ack_wait=60"
    with open_store(url) as opened, open_store(url.replace(store, f"{store}.dead")) as dead:
        opened.store("now", id="m1")
        opened.store("soon", id="m2", scheduled_at=datetime.now(timezone.utc) + timedelta(seconds=0.5))
        seen = []
        while len(seen) < 2:
            message = opened.retrieve()
            if message is not None:
                seen.append(message.id)
                opened.dead_letter(message, reason="tried")
        assert seen == ["m1", "m2"]
        assert dead.retrieve() is not None


@pytest.mark.parametrize("queue", ["other", "orders2", "orders.other", "amq.gen-1", "orders.dead.x"])
def test_the_brokers_user_may_not_use_other_queues(broker: DefinedRabbitMQ, queue: str) -> None:
    with connect(broker, "homing", PASSWORD) as connection:
        with pytest.raises(ChannelClosedByBroker, match="ACCESS_REFUSED"):
            connection.channel().queue_declare(queue, durable=True)
        with pytest.raises(ChannelClosedByBroker, match="ACCESS_REFUSED"):
            connection.channel().basic_get(queue)
