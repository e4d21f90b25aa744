"""A store that an author wrote: the three verbs are enough, wherever Homing takes a store, and a URL can name it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import homing
from homing import (
    ExecutionError,
    HandlerChain,
    ListenerConfig,
    Message,
    ReplayConfig,
    StoreListener,
    destination,
    open_store,
)
from homing.custom_store import as_store
from homing.errors import ConfigurationError, StoreError, UnknownStoreError, UnsupportedError
from homing.store import Store
from homing.testing.conformance.waiting import eventually


class Shelf:
    """The three verbs as the seeds have them: nothing inherited, nothing else."""

    def __init__(self) -> None:
        self.waiting: deque[Message] = deque()
        self.out: dict[str, Message] = {}
        self.stored = 0

    def store(self, content: Any) -> None:
        self.stored += 1
        self.waiting.append(Message(str(self.stored), content))

    def retrieve(self) -> Message | None:
        if not self.waiting:
            return None
        message = self.waiting.popleft()
        self.out[message.id] = message
        return message

    def acknowledge(self, id: str, success: bool = True) -> None:
        message = self.out.pop(id)
        if not success:
            self.waiting.append(message)


class Labelled(Shelf):
    """With the optional rest: a name, ids and headers, an ability, `close`."""

    name = "labelled"
    features = frozenset({"count"})
    closed = False

    def store(self, content: Any, id: str = "", headers: Any = None) -> str:  # type: ignore[override]
        self.waiting.append(Message(id, content, headers=headers or {}))
        return id

    def count(self) -> dict[str, int]:
        return {"available": len(self.waiting)}

    def close(self) -> None:
        self.closed = True


def test_an_object_with_the_three_verbs_is_a_store() -> None:
    with as_store(Shelf()) as store:
        store.store({"n": 1}, id="not kept", headers={"nor": "these"})
        message = store.retrieve()
        assert message is not None
        store.acknowledge(message, success=False)
        again = store.retrieve()
        assert again == message
        store.acknowledge(again)

        assert store.retrieve() is None
        assert (store.name, store.features, store.identity, store.max_message_bytes) == ("Shelf", frozenset(), "", None)


def test_what_else_the_object_has_is_used() -> None:
    shelf = Labelled()
    with as_store(shelf) as store:
        assert store.store(Message("m1", "a", headers={"k": "v"})) == "m1"
        assert (store.name, store.count()) == ("labelled", {"available": 1})
        message = store.retrieve()
        assert message is not None
        assert message.headers == {"k": "v"}
    assert shelf.closed


def test_it_is_the_same_store_whenever_it_is_asked_for() -> None:
    shelf = Shelf()

    assert as_store(shelf) is (store := as_store(shelf))
    assert as_store(store) is store
    assert as_store(Shelf()) is not store


@pytest.mark.parametrize("ability", ["count", "browse", "ledger"])
def test_an_ability_it_lacks_is_refused(ability: str) -> None:
    with pytest.raises(UnsupportedError, match=r"'Shelf' .* lacks the ability"):
        getattr(as_store(Shelf()), ability)()


def test_a_schedule_and_a_transaction_are_not_passed_over_in_silence() -> None:
    store = as_store(Shelf())
    for asked in ({"scheduled_at": object()}, {"transaction": object()}):
        with pytest.raises(UnsupportedError, match="lacks the ability"):
            store.store("a", **asked)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="transactions"):
        store.acknowledge("a", transaction=object())


@destination
def nowhere(content: str) -> None: ...


def test_what_it_lacks_to_be_a_store_is_named() -> None:
    class Half:
        def store(self, content: Any) -> None: ...

    for place in (
        lambda: StoreListener(Half()),  # type: ignore[arg-type]
        lambda: ListenerConfig(dead_letter_store=Half()),  # type: ignore[arg-type]
        lambda: ReplayConfig(replay_store=Half()),  # type: ignore[arg-type]
        lambda: HandlerChain("c", destinations_flow=[nowhere], failure_store=Half()),  # type: ignore[arg-type]
        lambda: as_store(Half()),
    ):
        with pytest.raises(ConfigurationError, match="has no retrieve, acknowledge"):
            place()
    with pytest.raises(ConfigurationError, match="is a class: give an object of it"):
        as_store(Shelf)


def test_a_retrieve_that_returns_no_message_is_told_what_is_due() -> None:
    shelf = Shelf()
    shelf.retrieve = lambda: "text"  # type: ignore[assignment, method-assign, return-value]

    with pytest.raises(
        StoreError, match=r"retrieve\(\) of store 'Shelf' must return a homing.Message or None, got a str"
    ):
        as_store(shelf).retrieve()


async def store_later(content: Any) -> None: ...


def stored_one_by_one(content: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize("verb", [store_later, stored_one_by_one])
def test_a_store_whose_verbs_do_nothing_yet_when_they_are_called_is_refused(verb: Any) -> None:
    class Derived(Store):
        name, store, retrieve, acknowledge = "derived", verb, verb, verb

    shelf = Shelf()
    shelf.store = verb  # type: ignore[method-assign]

    with pytest.raises(
        ConfigurationError, match=r"failure_store must be a store, .* does nothing yet when store is called"
    ):
        HandlerChain("c", destinations_flow=[nowhere], failure_store=shelf)
    with pytest.raises(ConfigurationError, match="nothing yet when store or retrieve or acknowledge is called"):
        ListenerConfig(dead_letter_store=Derived())


@pytest.mark.parametrize("returned", [Future[None](), OSError("disk full"), map(str, [])])
def test_what_is_not_stored_yet_is_not_taken_for_stored(returned: Any) -> None:
    @destination
    def crm(content: str) -> None:
        raise ValueError("refused")

    shelf, source = Shelf(), as_store(Shelf())
    shelf.store = lambda content: returned  # type: ignore[method-assign]
    chain = HandlerChain("c", destinations_flow=[crm], failure_store=shelf)
    with chain, pytest.raises(ExecutionError, match="did not take it: StoreError") as failed:
        chain.execute("order")
    assert not failed.value.kept

    source.store("order")
    with ExitStack() as ended:
        listener = StoreListener(
            source,
            ListenerConfig(polling_interval=0.01, max_retries=0, retry_interval=0.01, dead_letter_store=shelf),
        )
        listener.attach(crm.function)
        listener.start()
        ended.callback(listener.immediate_stop)
        eventually(lambda: listener.metrics().released >= 1)
    assert listener.metrics().dead_lettered == 0


def test_an_acknowledgement_that_did_not_happen_is_told() -> None:
    shelf = Shelf()
    shelf.acknowledge = lambda _id, _success=True: OSError("away")  # type: ignore[method-assign]
    shelf.store("order")
    with as_store(shelf) as store:
        message = store.retrieve()
        assert message is not None
        with pytest.raises(StoreError, match=r"acknowledge\(\) of store 'Shelf' .*away"):
            store.acknowledge(message)


def test_a_listener_takes_its_messages_and_dead_letters_into_another() -> None:
    source, dead = Shelf(), Shelf()
    source.store("good")
    source.store("bad")
    seen = []

    def service(content: str) -> None:
        if content == "bad":
            raise ValueError(content)
        seen.append(content)

    listener = StoreListener(
        source,
        ListenerConfig(polling_interval=0.02, max_retries=0, dead_letter_store=dead),  # type: ignore[arg-type]
    )
    listener.attach(service)
    listener.start()
    try:
        letter = eventually(lambda: dead.waiting[0] if dead.waiting else None)
        assert eventually(lambda: seen) == ["good"]
        assert eventually(lambda: not source.waiting and not source.out)
    finally:
        listener.graceful_stop()
    assert letter.content == "bad"


def test_a_chain_keeps_its_failures_in_one_and_replays_them_from_there() -> None:
    kept, down = Shelf(), [True]

    @destination
    def crm(content: str) -> str:
        if down[0]:
            raise ConnectionError("down")
        return content

    chain = HandlerChain("orders", destinations_flow=[crm], failure_store=kept)
    with pytest.raises(ExecutionError):
        chain.execute("order")
    failed = kept.retrieve()
    assert failed is not None
    down[0] = False

    assert chain.replay(failed).destination_results == {"crm": "order"}


# -- by URL -----------------------------------------------------------------------------------------------------


def install(folder: Path, package: str, *entries: str) -> None:
    """Installs a package that brings these entry points, as pip would leave it."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(["[homing.stores]", *entries, ""]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shelves.py").write_text(
        "from tests.unit.stores.test_custom_store import Labelled\n"
        "urls = []\n"
        "def open_shelf(url):\n    urls.append(url)\n    return Labelled()\n"
        "def open_nothing(url):\n    return None\n"
    )
    monkeypatch.delitem(sys.modules, "shelves", raising=False)
    return tmp_path


def test_a_package_brings_a_store_for_a_scheme(site: Path) -> None:
    install(site, "shelves", "shelf = shelves:open_shelf")

    with open_store("shelf://top?store=orders") as store:
        store.store("a", id="m1")
        message = store.retrieve()

    assert message is not None
    assert (message.id, store.name) == ("m1", "labelled")
    assert sys.modules["shelves"].urls == ["shelf://top?store=orders"]
    with pytest.raises(UnknownStoreError, match="did you mean shelf://"):
        open_store("shelff://top")


def test_no_package_takes_a_scheme_of_ours_over(site: Path) -> None:
    install(site, "shelves", "memory = shelves:open_shelf")

    with open_store("memory://custom") as store:
        assert type(store).__name__ == "MemoryStore"


def test_a_scheme_of_two_packages_is_refused_by_their_names(site: Path) -> None:
    install(site, "shelves", "shelf = shelves:open_shelf")
    install(site, "cupboards", "shelf = cupboards:open_cupboard")

    with pytest.raises(ConfigurationError, match=r"2 packages .* cupboards:open_cupboard, shelves:open_shelf"):
        open_store("shelf://top")


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("shelf = not_there:open_shelf", "cannot be loaded: No module named 'not_there'"),
        ("shelf = shelves:open_cupboard", "cannot be loaded"),
        ("shelf = shelves:open_nothing", "has no store, retrieve, acknowledge"),
    ],
)
def test_a_store_that_cannot_be_loaded_is_an_error_that_says_so(site: Path, entry: str, fault: str) -> None:
    install(site, "shelves", entry)

    with pytest.raises(ConfigurationError, match=fault):
        open_store("shelf://secret@top")


def test_only_sql_stores_are_opened_read_only(site: Path) -> None:
    install(site, "shelves", "shelf = shelves:open_shelf")

    with pytest.raises(UnsupportedError, match="read-only"):
        open_store("shelf://top", read_only=True)


# -- the conformance suite, as an author runs it -----------------------------------------------------------------

_SUITE = """
from homing.testing.conformance import *
from homing.testing.conformance import Subject
from homing.stores.memory.store import MemoryStore


class Store:
    '''The three verbs, on top of a store of ours that has more.'''

    def __init__(self, name, **options):
        self._kept = MemoryStore(name)

    def store(self, content, id=None, headers=None):
        return self._kept.store(content, id=id, headers=headers)

    def retrieve(self):
        return self._kept.retrieve()

    def acknowledge(self, message, success=True):
        {acknowledge}


SUBJECTS = [Subject("mine", open=Store)]
"""


def run_suite(folder: Path, acknowledge: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_mine.py").write_text(_SUITE.replace("{acknowledge}", acknowledge))
    some = ["-p", "no:cacheprovider", "-k", "order or not_in_flight or content"]
    environment = {**os.environ, "PYTHONPATH": str(Path(next(iter(homing.__path__))).parent)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *some],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


def test_an_author_runs_the_suite_against_three_verbs(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "self._kept.acknowledge(message, success)")

    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_the_suite_finds_fault_with_a_store_that_forgets_to_refuse(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "pass")

    assert "FAILED test_mine.py::test_acknowledging_what_is_not_in_flight_raises[mine]" in done.stdout
