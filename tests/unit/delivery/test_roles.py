"""Roles on a real PostgreSQL: each can do all that it is for, and the database refuses everything else."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from homing import Message, open_store
from homing.cli.main import main
from homing.delivery import open_pipeline_stores, run_audit
from homing.errors import ConfigurationError, NotPermittedError, StoreError, StoreUnavailableError
from homing.listener import ListenerConfig, StoreListener
from homing.pipeline_store import ROLES
from tests.servers import PostgreSQL
from tests.unit.cli.conftest import CHAIN, Answer
from tests.unit.delivery.conftest import FLOWS, Pipeline

pytestmark = pytest.mark.services

OF_ARCHIVE = (
    "sequence, id, priority, time_scheduled, time_created, epoch, crashes, message, encoding, table_id, time_acked"
)


@dataclass
class Site:
    """A database whose tables belong to `owner`, and one role of it for each of ours. Passwords are not asked for."""

    database: str
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    options: str = ""

    def url(self, user: str, store: str = "orders") -> str:
        place = sa.make_url(self.database).set(username=self.name(user))
        return f"{place.render_as_string()}?store={store}{self.options}"

    def name(self, user: str) -> str:
        return f"{user} of {sa.make_url(self.database).database}"

    def execute(self, user: str, statement: str) -> Any:
        engine = sa.create_engine(sa.make_url(self.database).set(username=self.name(user)))
        try:
            with engine.begin() as connection:
                found = connection.execute(sa.text(statement))
                return found.all() if found.returns_rows else found.rowcount
        finally:
            engine.dispose()

    def homing(self, user: str, *argv: str) -> Answer:
        self.monkeypatch.setenv("HOMING_STORE", self.url(user))
        self.monkeypatch.setenv("HOMING_DEAD_LETTER_STORE", self.url(user, "orders_dead"))
        self.capsys.readouterr()
        return Answer(main(argv), *self.capsys.readouterr())

    @contextmanager
    def pipeline(self, user: str) -> Iterator[Pipeline]:
        with open_pipeline_stores(self.url(user), self.url(user, "orders_dead")) as stores:
            yield Pipeline(stores)

    def grant(self, role: str) -> None:
        answer = self.homing("owner", "grants", "--role", role, "--to", self.name(role))
        assert answer.code == 0, answer.err
        for statement in filter(None, answer.out.split(";\n")):
            self.execute("owner", statement)


def _administer(database: str, *statements: str) -> None:
    engine = sa.create_engine(database, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


@pytest.fixture
def bare(postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Site:
    """A database without tables, in which only the owner may make some."""
    site = Site(postgresql.empty_database(), monkeypatch, capsys)
    users = [f'CREATE ROLE "{site.name(user)}" LOGIN' for user in ("owner", *ROLES)]
    _administer(
        site.database,
        *users,
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        f'GRANT CREATE ON SCHEMA public TO "{site.name("owner")}"',
    )
    return site


@pytest.fixture
def site(bare: Site) -> Site:
    assert bare.homing("owner", "init").code == 0
    for role in ROLES:
        bare.grant(role)
    return bare


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "roles_chain.py").write_text(CHAIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CRM", "up")
    yield "roles_chain:chain"
    sys.modules.pop("roles_chain", None)


def fail(pipeline: Pipeline, content: object) -> str:
    """A message that waits in the failure store."""
    batch, (message_id,) = pipeline.claimed(f"run {content}", content)
    pipeline.delivered(batch.run_id, message_id, "lake")
    pipeline.failed(batch.run_id, message_id, "crm")
    batch.settle()
    return message_id


def test_grants_are_printed_only_of_tables_that_are_there_and_make_none(bare: Site) -> None:
    answer = bare.homing("owner", "grants", "--role", "producer", "--to", "shop")

    assert (answer.code, answer.out) == (2, "")
    assert "run `homing init` first" in answer.err
    assert bare.execute("owner", "select 1 from pg_tables where tablename like 'homing%'") == []


# -- producer --------------------------------------------------------------------------------------------------


def test_a_producer_stores(site: Site) -> None:
    soon = datetime.now(timezone.utc) + timedelta(hours=1)
    with open_store(site.url("producer")) as store:
        store.store({"number": 1}, id="one", headers={"a": "b"})
        store.store({"number": 1}, id="one")  # known by its id
        store.store(
            Message("two", b"\0", priority=3, session_id="s", time_to_live=timedelta(days=1), scheduled_at=soon)
        )
        store.store_many([{"number": number} for number in range(200)])  # by COPY
        store.store_many([Message("one", "again"), *(Message(f"m{n}", n) for n in range(99))])  # not by COPY

    with open_store(site.url("auditor"), read_only=True) as seen:
        assert seen.count()["available"] == 300
        assert seen.browse(1, ids=["one"])[0].content == {"number": 1}


def test_a_producer_stores_in_a_transaction_of_its_own(site: Site) -> None:
    site.execute("owner", "CREATE TABLE shop (number int)")
    site.execute("owner", f'GRANT INSERT ON shop TO "{site.name("producer")}"')
    engine = sa.create_engine(sa.make_url(site.database).set(username=site.name("producer")))

    with open_store(site.url("producer")) as store, engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO shop VALUES (1)"))
        store.store({"number": 1}, transaction=connection)
    engine.dispose()

    assert site.execute("owner", "SELECT count(*) FROM homing_orders") == [(1,)]


def test_a_producer_reads_no_message_and_changes_none(site: Site) -> None:
    with open_store(site.url("owner")) as store:
        store.store("a secret", id="one")

    with open_store(site.url("producer")) as store:
        for attempt in (store.retrieve, store.count, lambda: store.browse(1), lambda: store.cancel("one")):
            with pytest.raises(NotPermittedError):
                attempt()
    for statement in (
        "SELECT message FROM homing_orders",
        "SELECT headers FROM homing_orders",
        "UPDATE homing_orders SET time_acked = 1",
        "DELETE FROM homing_orders",
        "INSERT INTO homing_orders (id, message, time_acked) VALUES ('x', 'x', 1)",
        "INSERT INTO homing_orders (id, message, dead_letter_source) VALUES ('x', 'x', 'orders')",
        "INSERT INTO homing_orders (id, message) VALUES ('x', 'x') RETURNING message",
        "SELECT * FROM homing_orders__ledger",
        "SELECT * FROM homing_orders__operations",
        "SELECT * FROM homing_orders_failures",
        "INSERT INTO homing_orders_dead (id, message) VALUES ('x', 'x')",
        "UPDATE homing__tables SET properties = NULL",
        "CREATE TABLE mine (n int)",
    ):
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
            site.execute("producer", statement)


def test_a_producer_of_a_store_that_forgets_ids_can_make_room(bare: Site) -> None:
    bare.options = "&duplicate_window=0.001"
    assert bare.homing("owner", "init").code == 0
    bare.grant("producer")

    with open_store(bare.url("owner")) as store:
        store.store("one", id="one")
        store.settle(store.claim(1))
    time.sleep(0.01)
    with open_store(bare.url("producer")) as store:
        store.store("another", id="one")

    assert bare.execute("owner", "SELECT message FROM homing_orders") == [("another",)]


# -- consumer --------------------------------------------------------------------------------------------------


def test_a_consumer_runs_a_pipeline_up_to_the_dead_letters(site: Site) -> None:
    with site.pipeline("consumer") as pipeline:
        stores = pipeline.stores
        batch, (good, bad) = pipeline.claimed("run", {"number": 1}, {"number": 2})
        pipeline.delivered("run", good, *FLOWS)
        pipeline.failed("run", bad, "crm")
        settlement = batch.settle()
        again = pipeline.batch("replay")
        assert again.reclaim([bad]) == 1
        pipeline.failed("replay", bad, "crm", batch_id="run")
        again.finish_replay()

        assert settlement.acknowledged == 1
        assert stores.dead_letters.count()["available"] == 1
        assert run_audit(stores, FLOWS).balanced
        assert stores.store.purge(0) == 2
        stores.store.configure(batch_size=7)
        stores.store.require_writable()


def test_a_consumer_of_an_archive_needs_no_right_to_make_its_days(bare: Site) -> None:
    bare.options = "&acknowledged=archived"
    assert bare.homing("owner", "init").code == 0
    bare.grant("consumer")
    bare.grant("auditor")

    with open_store(bare.url("consumer")) as store:
        store.store_many(["a", "b"])
        store.settle(store.claim(2))
        assert store.count()["acknowledged"] == 2
        with open_store(bare.url("auditor"), read_only=True) as seen:
            assert [message.content for message in seen.browse(9, state="acknowledged")] == ["a", "b"]
        assert store.purge(0) == 2
        # Days that are over are dropped whole.
        bare.execute("consumer", """SELECT "homing_orders__acked_day"(1, true)""")
        row = "9, 'x', 0, 1, 1, 0, 0, 'x', 'text', '', 86400000000001"
        bare.execute("consumer", f"INSERT INTO homing_orders__acked ({OF_ARCHIVE}) VALUES ({row})")  # noqa: S608
        assert store.purge(0) == 1

    days = bare.execute("owner", "SELECT relname FROM pg_class WHERE relname ~ '__acked_[0-9]{8}$'")
    assert len(days) == 1
    for user in ("producer", "auditor"):
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
            bare.execute(user, """SELECT "homing_orders__acked_day"(2, true)""")


def test_whoever_asks_for_an_archive_must_be_able_to_make_it(site: Site) -> None:
    with open_store(site.url("consumer")) as store:
        with pytest.raises(NotPermittedError, match="homing init"):
            store.configure(acknowledged="archived")
        store.store("a")
        store.settle(store.claim(1))

        assert store.count()["acknowledged"] == 1


def test_a_consumer_listens_and_is_woken_up(site: Site) -> None:
    with (
        open_store(site.url("consumer")) as store,
        open_store(site.url("consumer", "orders_dead")) as dead,
        open_store(site.url("producer")) as producer,
    ):
        assert store.wait(0.1) is False
        with ThreadPoolExecutor(1) as pool:
            woken = pool.submit(store.wait, 60)
            producer.store("hello")
            assert woken.result() is True

        failed = threading.Event()

        def on_message(content: Any) -> None:
            failed.set()
            raise ValueError("no good")

        config = ListenerConfig(polling_interval=0.1, max_retries=0, retry_interval=1, dead_letter_store=dead)
        listener = StoreListener(store, config)
        listener.attach(on_message)
        listener.start()
        assert failed.wait(60)
        listener.graceful_stop()

        assert dead.count()["available"] == 1


def test_a_consumer_changes_nothing_by_hand(site: Site) -> None:
    with open_store(site.url("producer")) as store:
        store.store("one", id="one")

    for argv in (("dead-letter", "one", "--reason", "x"), ("purge",)):
        answer = site.homing("consumer", *argv)
        assert (answer.code, "homing grants" in answer.err) == (2, True)

    assert site.execute("owner", "SELECT count(*) FROM homing_orders WHERE time_acked IS NULL") == [(1,)]
    assert site.execute("owner", "SELECT count(*) FROM homing_orders_dead") == [(0,)]


@pytest.mark.parametrize(
    "revoked",
    [
        "INSERT ON homing_orders_failures",
        "DELETE ON homing_orders_failures",
        "UPDATE ON homing_orders__ledger",
        "DELETE ON homing_orders__steps",
        "INSERT ON homing_orders_dead",
        "USAGE ON SEQUENCE homing_orders_dead_sequence_seq",
    ],
)
def test_what_could_not_be_settled_is_not_claimed(site: Site, revoked: str) -> None:
    with open_store(site.url("producer")) as store:
        store.store("one", id="one")
    site.execute("owner", f'REVOKE {revoked} FROM "{site.name("consumer")}"')

    with site.pipeline("consumer") as pipeline:
        for _ in range(2):
            with pytest.raises(NotPermittedError, match=revoked.rpartition(" ")[2]):
                pipeline.batch("run").claim(1)

    assert site.execute("owner", "SELECT time_dead, lock_token, crashes, epoch FROM homing_orders") == [
        (None, None, 0, 0)
    ]


# -- operator --------------------------------------------------------------------------------------------------


def test_an_operator_replays_dead_letters_and_purges(site: Site, chain: str) -> None:
    with site.pipeline("consumer") as pipeline:
        fail(pipeline, 1)
        pipeline.stores.store.store("sent by mistake", id="oops")

    assert site.homing("operator", "replay", "--all", "--chain", chain, "--reason", "the CRM is back").code == 0
    assert site.homing("operator", "dead-letter", "oops", "--reason", "a mistake").code == 0
    assert site.homing("operator", "purge", "--older-than", "0").code == 0

    told = json.loads(site.homing("auditor", "operations", "-o", "json").out)
    assert [(one["what"], one["why"], one["state"]) for one in told if one["what"] != "init"] == [
        ("replay", "the CRM is back", "done"),
        ("dead-letter", "a mistake", "done"),
        ("purge", None, "done"),
    ]


def test_what_an_operator_did_stays_written_down(site: Site) -> None:
    assert site.homing("operator", "purge").code == 0

    for statement in (
        "UPDATE homing_orders__operations SET who = 'mallory'",
        "DELETE FROM homing_orders__operations",
        "TRUNCATE homing_orders__operations",
        "DROP TABLE homing_orders__operations",
        "ALTER TABLE homing_orders__operations RENAME TO gone",
    ):
        with pytest.raises(sa.exc.ProgrammingError, match=r"permission denied|must be owner"):
            site.execute("operator", statement)


# -- auditor ---------------------------------------------------------------------------------------------------


def test_an_auditor_sees_everything(site: Site, chain: str) -> None:
    with site.pipeline("consumer") as pipeline:
        failed = fail(pipeline, 1)
        pipeline.stores.store.store("waiting", id="one")

    for argv in (
        ("audit", "--chain", chain),
        ("failures", "--messages"),
        ("stores",),
        ("peek",),
        ("list",),
        ("show", failed),
        ("operations",),
        ("purge", "--dry-run"),
    ):
        answer = site.homing("auditor", *argv)
        assert answer.code == 0, f"{argv}: {answer.err}"
    with open_pipeline_stores(site.url("auditor"), site.url("auditor", "orders_dead"), read_only=True) as stores:
        assert run_audit(stores, FLOWS).total.waiting == 2


def test_an_auditor_changes_nothing(site: Site, chain: str) -> None:
    with site.pipeline("consumer") as pipeline:
        failed = fail(pipeline, 1)
    before = site.execute("owner", "SELECT * FROM homing_orders_failures")

    for argv in (
        ("send", "1"),
        ("replay", failed, "--chain", chain),
        ("dead-letter", failed, "--reason", "x"),
        ("purge", "--older-than", "0"),
    ):
        answer = site.homing("auditor", *argv)
        assert (answer.code, "permission denied" in answer.err) == (2, True), answer.err
    with open_store(site.url("auditor")) as store, pytest.raises(NotPermittedError):
        store.claim(1)

    assert site.execute("owner", "SELECT * FROM homing_orders_failures") == before


def test_an_auditor_of_one_pipeline_counts_the_stores_it_may_see(site: Site) -> None:
    with open_store(site.url("owner", "secret")) as other:
        other.store("not for everybody")

    answer = site.homing("auditor", "stores", "-o", "json")

    assert answer.code == 0
    assert {row["store"] for row in json.loads(answer.out)} == {"orders", "orders_failures", "orders_dead"}
    assert "'secret'" in answer.err


# -- tables ----------------------------------------------------------------------------------------------------


def test_tables_that_are_missing_are_a_fault_that_names_homing_init(bare: Site) -> None:
    with open_store(bare.url("consumer")) as store, pytest.raises(NotPermittedError, match="homing init") as raised:
        store.store("one")

    assert "'orders'" in str(raised.value)
    assert "postgresql" not in str(raised.value)
    assert isinstance(raised.value, ConfigurationError)
    assert isinstance(raised.value, StoreError)
    assert not isinstance(raised.value, StoreUnavailableError)


def test_the_statements_of_a_dry_run_make_the_tables(bare: Site) -> None:
    bare.options = "&acknowledged=archived"
    answer = bare.homing("owner", "init", "--dry-run")
    assert bare.execute("owner", "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'homing%'") == [(0,)]
    engine = sa.create_engine(bare.url("owner").partition("?")[0])
    with engine.begin() as connection:
        connection.connection.driver_connection.execute(answer.out)  # type: ignore[union-attr]
    engine.dispose()

    assert bare.homing("owner", "init").out == "no results\n"
    for role in ROLES:
        bare.grant(role)
    with bare.pipeline("consumer") as pipeline:
        fail(pipeline, 1)
        assert run_audit(pipeline.stores, FLOWS).total.waiting == 1


def test_the_second_init_has_nothing_to_do_and_leaves_no_record(site: Site) -> None:
    before = site.execute("owner", "SELECT count(*) FROM homing_orders__operations")

    answer = site.homing("owner", "init")

    assert (answer.code, answer.out) == (0, "no results\n")
    assert site.execute("owner", "SELECT count(*) FROM homing_orders__operations") == before


def test_a_name_is_quoted_in_a_grant(site: Site) -> None:
    answer = site.homing("owner", "grants", "--role", "auditor", "--to", 'x"; DROP TABLE homing_orders; --')

    assert 'TO "x""; DROP TABLE homing_orders; --";' in answer.out
    assert site.homing("owner", "grants", "--role", "auditor", "--to", "x" * 64).code == 2


def test_nothing_is_locked_or_made_where_tables_are_current(site: Site) -> None:
    statements: list[str] = []

    def seen(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", seen)
    try:
        with site.pipeline("consumer") as pipeline:
            fail(pipeline, 1)
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", seen)

    changing = ("CREATE", "ALTER", "DROP", "COMMENT", "GRANT", "LOCK")
    assert statements
    assert [text for text in statements if text.lstrip().upper().startswith(changing) or "advisory" in text] == []


def test_the_guide_has_the_statements_of_a_producer(site: Site) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "operating.md").read_text()
    (block,) = re.findall(r"```sql\n(GRANT.*?)```", guide, re.DOTALL)

    assert block == site.homing("owner", "grants", "--role", "producer", "--to", "shop").out
