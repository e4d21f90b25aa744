"""A message that is forgotten is in none of the places of its pipeline any more, whoever dies on the way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from homing.delivery import PipelineStores, erasure, open_pipeline_stores, run_audit, work_files
from homing.delivery.crash_tracking import name_message
from homing.delivery.local_replay import replay_in_process
from homing.errors import ConfigurationError, StillHeldError, WorkDirError
from homing.ledger import DELIVERED, FAILED, Entry, Ledger
from homing.message import ACKNOWLEDGED, Message, MessageRef
from homing.spark.submit import hadoop_shell
from homing.stores.sql.removal import SqlErasure
from tests.unit.delivery.conftest import FLOWS, Crash, Pipeline
from tests.unit.delivery.shop import Shop

MARK = "Marked-7c1d0a55"
OTHER = "Neighbour-5e21"


def failed_with_content(pipeline: Pipeline, run_id: str, ref: MessageRef, text: str) -> None:
    """What an executor records of a failure: the content is in all of it."""
    error = {"type": "ValueError", "message": text, "handler": "crm", "stack": text, "attempt": 1}
    snapshot = {"content": {"text": text}, "properties": {}}
    pipeline.record(
        run_id,
        Entry(ref, "lake", DELIVERED, result={"stored": text}, batch_id="run"),
        Entry(ref, "crm", FAILED, error=error, snapshot=snapshot, batch_id="run"),
    )


def erase(work_dir: Path, runs: Collection[str]) -> list[str]:
    return work_files.erase(str(work_dir), runs, hadoop_shell)


def died(pipeline: Pipeline, work_dir: Path) -> dict[str, MessageRef]:
    """Two messages that have been everywhere: failed with a snapshot, replayed, dead-lettered; with files left."""
    stores = pipeline.stores
    for text in (MARK, OTHER):
        stores.store.store(Message(f"id of {text}", {"text": text}, headers={"who": text}, subject=text))
    batch = pipeline.batch("run")
    batch.claim(2)
    refs = {text: pipeline.ref(f"id of {text}") for text in (MARK, OTHER)}
    for text, ref in refs.items():
        failed_with_content(pipeline, "run", ref, text)
    batch.settle()
    replay = pipeline.batch("replay")
    replay.reclaim(list(refs.values()))
    for text, ref in refs.items():
        failed_with_content(pipeline, "replay", ref, text)
    replay.finish_replay()
    left = Path(
        work_files.WorkDir(str(work_dir), work_files.LocalFiles(), pipeline.stores.ledger).new_output("run", "me")
    )
    left.mkdir(parents=True)
    (left / "part").write_text(MARK)
    return refs


def everything(stores: PipelineStores, *places: Path) -> str:
    """All that the databases' tables, their files and these places hold, as one text."""
    texts = []
    for url in {stores.store._url, stores.dead_letters._url}:
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            for name in sa.inspect(engine).get_table_names():
                texts += [str(row) for row in connection.execute(sa.text(f"select * from {name}"))]  # noqa: S608
        engine.dispose()
        if url.get_backend_name() == "sqlite":
            assert url.database is not None
            files = Path(url.database).parent.glob(f"{Path(url.database).name}*")
            texts += [path.read_bytes().decode("latin-1") for path in files]
    texts += [path.read_text() for place in places for path in place.rglob("*") if path.is_file()]
    return "\n".join(texts)


def keep_free_pages(stores: PipelineStores) -> None:
    """SQLite as it comes: Debian's overwrites what is removed by itself."""
    for store in (stores.store, stores.failures, stores.dead_letters):
        if store._database.backend == "sqlite":
            sa.event.listen(
                store._database._engine,
                "connect",
                lambda connection, _: connection.execute("PRAGMA secure_delete = OFF").close(),
            )


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    return tmp_path / "work"


@pytest.fixture
def archiving(database: str, tmp_path: Path) -> tuple[str, str]:
    """The URLs of a store that archives, where it can, and of a dead-letter store in another database where it can."""
    if database.startswith("sqlite"):
        return f"{database}?store=orders", f"sqlite:///{tmp_path}/dead.db?store=orders_dead"
    archived = "&acknowledged=archived" if database.startswith("postgresql") else ""
    return f"{database}?store=orders{archived}", f"{database}?store=orders_dead{archived}"


def test_nothing_of_a_forgotten_message_is_left_and_its_neighbour_is_whole(
    archiving: tuple[str, str], work_dir: Path
) -> None:
    with open_pipeline_stores(*archiving) as stores:
        keep_free_pages(stores)
        pipeline = Pipeline(stores)
        refs = died(pipeline, work_dir)
        neighbour = erasure.look(stores, refs[OTHER])
        assert MARK in everything(stores, work_dir)

        erased = erasure.forget(stores, [refs[MARK]], "asked for", erase_folders=partial(erase, work_dir))

        assert MARK not in everything(stores, work_dir)
        assert erased.rows == {"store": 1, "failure store": 0, "dead-letter store": 1}
        assert (erased.ledger, len(erased.folders)) == (2, 1)
        assert erasure.look(stores, refs[OTHER]) == neighbour
        assert (neighbour.rows["store"], neighbour.rows["dead-letter store"], neighbour.ledger) == (1, 1, 2)
        books = run_audit(stores, FLOWS)
        assert (books.balanced, books.total.forgotten, books.total.dead_lettered) == (True, 1, 1)
        assert "forgotten" in str(books)
        (tombstone,) = stores.ledger.tombstones.all()
        assert (tombstone.reason, tombstone.done is not None) == ("asked for", True)


def test_what_waits_after_its_failure_or_was_never_claimed_is_forgotten_and_never_delivered(database: str) -> None:
    with open_pipeline_stores(f"{database}?store=orders", f"{database}?store=dead") as stores:
        shop = Shop(stores)
        stores.store.store("a", id="failed")
        shop.run("run", away=True)
        stores.store.store("b", id="waiting")
        refs = [*erasure.find(stores, "failed"), *erasure.find(stores, "waiting")]

        erased = erasure.forget(stores, refs, "asked for")

        assert erased.rows == {"store": 2, "failure store": 1, "dead-letter store": 0}
        shop.replay("replay", ["failed"])
        shop.run("next")
        assert shop.got == []
        assert (shop.books().balanced, shop.books().total.forgotten, shop.books().total.accepted) == (True, 2, 2)


def test_a_session_goes_on_once_its_failed_message_is_forgotten(database: str) -> None:
    with open_pipeline_stores(f"{database}?store=orders", f"{database}?store=dead") as stores:
        shop = Shop(stores)
        for message_id in ("first", "second"):
            stores.store.store(Message(message_id, message_id, session_id="s"))
        shop.run("run", away=True)
        shop.run("next")
        assert shop.got == []

        erasure.forget(stores, erasure.find(stores, "first"), "asked for")
        shop.run("last")

        assert shop.got == ["second"]


STEPS: dict[str, Callable[[PipelineStores], tuple[object, str]]] = {
    "the tombstone": lambda stores: (stores.ledger.tombstones, "begin"),
    "the work files": lambda stores: (work_files, "erase"),
    "the message": lambda stores: (stores.store.erasure, "remove"),
    "the failure": lambda stores: (stores.failures.erasure, "remove"),
    "the dead letter": lambda stores: (stores.dead_letters.erasure, "remove"),
    "the ledger": lambda stores: (stores.ledger, "remove"),
    "the scrubbing": lambda stores: (stores.store.erasure, "scrub"),
    "the end": lambda stores: (stores.ledger.tombstones, "finish"),
}


@pytest.mark.parametrize("before", [step for step in STEPS if step != "the failure"])
def test_who_dies_half_way_has_lost_nothing_and_the_next_one_finishes(
    archiving: tuple[str, str], work_dir: Path, crash: Callable[[object, str], None], before: str
) -> None:
    with open_pipeline_stores(*archiving) as stores:
        ref = died(Pipeline(stores), work_dir)[MARK]
        crash(*STEPS[before](stores))
        with pytest.raises(Crash):
            erasure.forget(stores, [ref], "asked for", erase_folders=partial(erase, work_dir))
        books = run_audit(stores, FLOWS)
        assert (books.balanced, books.unaccounted, books.total.accepted) == (True, [], 2)
        assert len(stores.ledger.known([ref.id])) == (0 if before in ("the scrubbing", "the end") else 1)

        found = erasure.find(stores, ref.id)  # all that whoever asks again still knows
        assert found == [ref]
        erasure.forget(stores, found, "asked for again", erase_folders=partial(erase, work_dir))

        assert MARK not in everything(stores, work_dir)
        (tombstone,) = stores.ledger.tombstones.all()
        assert tombstone.reason == ("asked for again" if before == "the tombstone" else "asked for")
        assert run_audit(stores, FLOWS).total.forgotten == 1


def test_who_dies_before_the_failure_is_removed_is_finished_too(
    database: str, crash: Callable[[object, str], None]
) -> None:
    with open_pipeline_stores(f"{database}?store=orders", f"{database}?store=dead") as stores:
        shop = Shop(stores)
        stores.store.store({"text": MARK}, id="x")
        shop.run("run", away=True)
        crash(*STEPS["the failure"](stores))
        with pytest.raises(Crash):
            erasure.forget(stores, erasure.find(stores, "x"), "asked for")
        assert (shop.books().balanced, shop.books().unaccounted) == (True, [])

        erasure.forget(stores, erasure.find(stores, "x"), "asked for")

        assert MARK not in everything(stores)


@pytest.mark.parametrize("where", ["orders", "orders_failures", "dead"])
def test_what_somebody_works_on_is_not_forgotten(database: str, where: str) -> None:
    with open_pipeline_stores(f"{database}?store=orders", f"{database}?store=dead") as stores:
        shop = Shop(stores)
        stores.store.store("a", id="a")
        if where != "orders":
            shop.run("run", away=True)
        if where == "dead":
            shop.replay("replay", ["a"], away=True)
        batch = shop.batch("holder")
        assert (batch.claim(1) if where == "orders" else batch.reclaim(["a"])) == 1
        refs = erasure.find(stores, "a")

        with pytest.raises(StillHeldError, match=f"in store '{where}'.* until .* UTC"):
            erasure.forget(stores, refs, "asked for")

        assert stores.ledger.tombstones.all() == []
        assert sum(erasure.look(stores, refs[0]).rows.values()) == (1 if where == "orders" else 2)
        shop.away = False
        replay_in_process(stores, batch, shop.chain)
        batch.settle()
        assert shop.got == ["a"]
        erasure.forget(stores, refs, "asked for")
        assert sum(erasure.look(stores, refs[0]).rows.values()) == 0


def test_a_claim_between_the_look_and_the_removal_is_seen_and_the_ledger_stays(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_pipeline_stores(f"{database}?store=orders", f"{database}?store=dead") as stores:
        shop = Shop(stores)
        stores.store.store("a", id="a")
        shop.run("run", away=True)
        shop.replay("replay", ["a"], away=True)
        (ref,) = erasure.find(stores, "a")
        begin, batch = stores.ledger.tombstones.begin, shop.batch("quick")

        def claimed_meanwhile(refs: list[MessageRef], reason: str) -> None:
            begin(refs, reason)
            batch.reclaim([ref])

        monkeypatch.setattr(stores.ledger.tombstones, "begin", claimed_meanwhile)

        with pytest.raises(StillHeldError, match="in store 'dead'"):
            erasure.forget(stores, [ref], "asked for")

        assert ref in stores.ledger.known(["a"])
        books = shop.books()
        assert (books.balanced, books.unaccounted) == (True, [])


def test_a_message_that_moves_on_meanwhile_is_found_where_it_comes_to(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_pipeline_stores(f"{database}?store=orders", f"{database}?store=dead") as stores:
        shop = Shop(stores)
        stores.store.store({"text": MARK}, id="a")
        shop.run("run", away=True)
        (ref,) = erasure.find(stores, "a")
        remove = stores.failures.erasure.remove

        def moved_meanwhile(ids: dict[int, str]) -> int:
            shop.replay("meanwhile", [ref.name], away=True)
            return remove(ids)

        monkeypatch.setattr(stores.failures.erasure, "remove", moved_meanwhile)

        assert erasure.forget(stores, [ref], "asked for").rows == {
            "store": 1,
            "failure store": 0,
            "dead-letter store": 1,
        }
        assert MARK not in everything(stores)


def test_a_run_that_lost_the_message_but_may_still_record_is_waited_for(pipeline: Pipeline) -> None:
    stores = pipeline.stores
    batch, (message_id,) = pipeline.claimed("run", 1)
    pipeline.delivered("run", message_id, *FLOWS)
    fence = stores.ledger.open_step("run", "deliver.crm", 60)
    batch.acknowledge_complete()
    refs = erasure.find(stores, message_id)

    with pytest.raises(StillHeldError, match=r"a run that had it is at work, until .* UTC"):
        erasure.forget(stores, refs, "asked for")

    stores.ledger.close_step(fence)
    assert erasure.forget(stores, refs, "asked for").ledger == 2


def test_who_died_with_it_in_hand_does_not_bring_it_back_into_the_ledger(pipeline: Pipeline) -> None:
    stores = pipeline.stores
    batch, ids = pipeline.claimed("run", 1, 2)
    ref, neighbour = (pipeline.ref(message_id) for message_id in ids)
    for each, step in ((ref, "deliver.lake"), (neighbour, "deliver.crm")):
        fence = stores.ledger.open_step("run", step, 60)
        stores.ledger.suspect(fence, name_message(Entry(each, "lake", FAILED, batch_id="run")))
    engine = sa.create_engine(stores.store._url)
    with engine.begin() as connection:  # the run died, and its leases have run out
        connection.execute(sa.text("update homing_orders set time_next = 1"))
        connection.execute(sa.text("update homing_orders__steps set time_expires = 1"))
    engine.dispose()

    erasure.forget(stores, [ref], "asked for")
    batch.settle()

    assert (stores.ledger.known([ref.id]), list(stores.ledger.known([neighbour.id]))) == ({}, [neighbour])


def test_books_that_are_kept_while_a_message_is_forgotten_miss_nothing(
    pipeline: Pipeline, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = pipeline.stores
    ref = died(pipeline, work_dir)[MARK]
    states = stores.failures.view.states

    def forgotten_meanwhile() -> Iterator[tuple[str, str, MessageRef]]:
        erasure.forget(stores, [ref], "asked for")
        return states()

    monkeypatch.setattr(stores.failures.view, "states", forgotten_meanwhile)

    books = run_audit(stores, FLOWS)

    assert (books.balanced, books.total.accepted, books.total.forgotten) == (True, 2, 1)


def test_an_id_means_all_its_messages_and_a_name_one_of_them(pipeline: Pipeline) -> None:
    stores = pipeline.stores
    refs = []
    for number in range(2):
        stores.store.store(number, id="again")
        batch = pipeline.batch(f"run {number}")
        batch.claim(1)
        refs.append(pipeline.ref("again"))
        pipeline.delivered(f"run {number}", "again", *FLOWS)
        batch.settle()
        stores.store.purge(0)

    assert erasure.find(stores, "again") == refs
    assert erasure.find(stores, refs[0].name) == [refs[0]]
    assert erasure.find(stores, "unheard of") == []
    erasure.forget(stores, [refs[0]], "asked for")
    assert list(stores.ledger.known(["again"])) == [refs[1]]


def test_a_dead_letter_that_another_pipeline_has_under_the_same_id_stays(pipeline: Pipeline, work_dir: Path) -> None:
    stores = pipeline.stores
    ref = died(pipeline, work_dir)[MARK]
    (letter,) = [each for each in stores.dead_letters.browse() if MARK in each.id]
    assert letter.sequence_number is not None
    stores.dead_letters.erasure.remove({letter.sequence_number: letter.id})
    stores.dead_letters.store(Message(letter.id, {"somebody": "else's"}))

    assert erasure.forget(stores, [ref], "asked for").rows["dead-letter store"] == 0

    assert [each.content for each in stores.dead_letters.browse(ids=[letter.id])] == [{"somebody": "else's"}]


def test_a_dead_letter_that_somebody_acknowledged_by_hand_goes_too(pipeline: Pipeline, work_dir: Path) -> None:
    stores = pipeline.stores
    ref = died(pipeline, work_dir)[MARK]
    for _ in range(2):
        stores.dead_letters.settle(stores.dead_letters.claim(1))
    assert {each.state for each in stores.dead_letters.browse()} == {ACKNOWLEDGED}

    assert erasure.forget(stores, [ref], "asked for").rows["dead-letter store"] == 1


def test_the_id_of_a_forgotten_message_can_be_stored_again(pipeline: Pipeline, work_dir: Path) -> None:
    stores = pipeline.stores
    ref = died(pipeline, work_dir)[MARK]
    erasure.forget(stores, [ref], "asked for")
    stores.store.store("new", id=ref.id)

    books = run_audit(stores, FLOWS)

    assert pipeline.ref(ref.id) != ref
    assert (books.balanced, books.total.forgotten, books.total.waiting) == (True, 1, 1)


def test_a_reason_is_needed(pipeline: Pipeline) -> None:
    with pytest.raises(ConfigurationError, match="reason must not be empty"):
        erasure.forget(pipeline.stores, [MessageRef("", 1, "x")], " ")


def test_folders_that_no_run_has_touched_for_a_day_go_and_younger_ones_stay(tmp_path: Path, ledger: Ledger) -> None:
    place = work_files.WorkDir(str(tmp_path / "work"), work_files.LocalFiles(), ledger)
    for run_id in ("old", "young", "mine"):
        Path(place.new_output(run_id, "me")).mkdir()
    (tmp_path / "work" / "not-ours").mkdir()
    for path in (tmp_path / "work").rglob("*old*/**"):
        os.utime(path, (time.time() - 90_000,) * 2)
    os.utime(tmp_path / "work" / "not-ours", (0, 0))

    erased = work_files.erase(str(tmp_path / "work"), ["mine"], hadoop_shell)

    assert sorted(Path(each).name.rpartition("-")[0] for each in erased) == ["mine", "old"]
    assert sorted(each.name.rpartition("-")[0] for each in (tmp_path / "work").glob("*/")) == ["not", "young"]


def test_a_folder_that_cannot_be_removed_is_an_error(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(work_files.WorkDir(str(tmp_path), work_files.LocalFiles(), ledger).new_output("run", "me")).mkdir()

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.rmtree", denied)

    with pytest.raises(WorkDirError, match="cannot be removed: Permission denied"):
        work_files.erase(str(tmp_path), ["run"], hadoop_shell)


def test_a_tombstone_keeps_its_first_time_and_reason(pipeline: Pipeline) -> None:
    tombstones = pipeline.stores.ledger.tombstones
    ref = MessageRef("0123456789abcdef", 7, "x")
    tombstones.begin([ref], "first")
    (first,) = tombstones.all()
    tombstones.begin([ref], "second")

    assert (tombstones.all(), first.reason, first.done) == ([first], "first", None)
    assert (tombstones.unfinished(["y", "x"]), tombstones.unfinished(["X"])) == ([ref], [])
    tombstones.finish([ref])
    assert tombstones.unfinished(["x"]) == []
    tombstones.begin([ref], "third")  # something of it turned up again
    assert tombstones.all() == [first]


def test_a_sqlite_file_is_rewritten_once_for_all_stores_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    scrubbed: list[str] = []
    scrub = SqlErasure.scrub
    monkeypatch.setattr(SqlErasure, "scrub", lambda self, names: (scrubbed.extend(names), scrub(self, names))[1])
    with open_pipeline_stores(f"{url}?store=orders", f"{url}?store=dead") as stores:
        stores.store.store(1, id="x")
        erasure.forget(stores, erasure.find(stores, "x"), "asked for")

    assert scrubbed == ["homing_orders", "homing_orders_failures", "homing_dead", "homing_orders__ledger"]
