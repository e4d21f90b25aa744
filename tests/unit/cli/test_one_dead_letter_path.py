"""Who wrote a failure makes no difference: a run's settlement, a chain with a failure store, the chain's own replay
listener, a listener with a plain service. `failures`, `show` and `replay` find each, and so does `chain.replay`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from homing import ExecutionError, HandlerChain, ListenerConfig, Message, ReplayConfig, StoreListener, destination
from homing.delivery import Batch, PipelineStores, run_audit
from homing.delivery.local_replay import replay_in_process
from homing.errors import LeaseLostError
from homing.failure import FAILURE_TYPE, FailureRecord, build_record, dead_letter_id
from homing.message import AVAILABLE
from homing.stores import open_store
from tests.unit.cli.conftest import Shell

FLOWS = ("lake", "crm")


class Refusing:
    """Destinations of which the CRM refuses; what reached them is in `got`."""

    def __init__(self, name: str = "orders", **more: Any) -> None:
        self.got: list[tuple[str, Any]] = []
        self.away = True

        @destination
        def lake(content: Any) -> None:
            self.got.append(("lake", content))

        @destination
        def crm(content: Any) -> None:
            if self.away:
                raise ConnectionError("the CRM is down")
            self.got.append(("crm", content))

        self.chain = HandlerChain(name, destinations_flow=[lake, crm], **more)


@pytest.fixture(autouse=True)
def _tables(homing: Shell) -> None:
    """Commands refuse a pipeline whose tables nobody made."""
    assert homing("init").code == 0


@pytest.fixture
def refusing() -> Refusing:
    return Refusing()


def by_settlement(stores: PipelineStores, refusing: Refusing) -> Message:
    """A message fails in its run and in its replay."""
    stores.store.store({"n": 1}, id="m1")
    for run in ("run", "replay"):
        batch = Batch(stores, run, FLOWS, chain=refusing.chain.name)
        if run == "run":
            batch.claim(9)
        else:
            batch.reclaim(["m1"])
        replay_in_process(stores, batch, refusing.chain)
        if run == "run":
            batch.settle()
        else:
            batch.finish_replay()
    (letter,) = stores.dead_letters.browse()
    return letter


def by_hand(stores: PipelineStores, refusing: Refusing, homing: Shell | None = None) -> Message:
    """Somebody dead-letters a message that no chain has seen."""
    from homing.delivery.dead_letter import dead_letter_messages

    stores.store.store({"n": 1}, id="m1")
    assert dead_letter_messages(stores, ["m1"], "a test") == {"m1"}
    (letter,) = stores.dead_letters.browse()
    return letter


def by_chain(stores: PipelineStores, refusing: Refusing) -> Message:
    """A chain fails by itself, and writes into its failure store."""
    refusing.chain.failure_store = stores.failures
    with pytest.raises(ExecutionError) as raised:
        refusing.chain.execute({"n": 1}, id="m1")
    assert raised.value.kept
    (entry,) = stores.failures.browse()
    return entry


def by_replay_listener(stores: PipelineStores, refusing: Refusing) -> Message:
    """The chain's own replays are used up."""
    own = Refusing(
        failure_store=stores.failures,
        replay=ReplayConfig(stores.dead_letters, polling_interval=0.02, max_retries=0, retry_interval=0.01),
    )
    with own.chain:
        with pytest.raises(ExecutionError):
            own.chain.execute({"n": 1}, id="m1")
        letter = _wait_for(stores)
    refusing.got += own.got
    return letter


def by_listener(stores: PipelineStores, refusing: Refusing) -> Message:
    """A listener's service fails for good."""

    def bill(content: Any) -> None:
        raise ConnectionError("the CRM is down")

    stores.store.store({"n": 1}, id="m1", headers={"tenant": "eu"})
    return _listen(stores, bill)


def by_listener_of_a_chain(stores: PipelineStores, refusing: Refusing) -> Message:
    """The same where the service is a chain without a failure store."""
    stores.store.store({"n": 1}, id="m1")
    return _listen(stores, refusing.chain)


def _listen(stores: PipelineStores, service: Any) -> Message:
    config = ListenerConfig(0.02, max_retries=1, retry_interval=0.01, dead_letter_store=stores.dead_letters)
    with StoreListener(stores.store, config) as listener:
        listener.attach(service)
        listener.start()
        return _wait_for(stores)


def _wait_for(stores: PipelineStores) -> Message:
    end = time.monotonic() + 20
    while not (found := stores.dead_letters.browse(state=AVAILABLE)):  # not what was acknowledged before
        assert time.monotonic() < end, "no dead letter came"
        time.sleep(0.02)
    return found[0]


Write = Callable[[PipelineStores, Refusing], Message]
WRITERS = [by_settlement, by_hand, by_chain, by_replay_listener, by_listener, by_listener_of_a_chain]
every_writer = pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)


@every_writer
def test_failures_lists_it_with_its_reason(
    homing: Shell, stores: PipelineStores, refusing: Refusing, write: Write
) -> None:
    write(stores, refusing)

    (row,) = homing.json("failures", "--messages")
    (group,) = homing.json("failures")

    assert row["id"] == "m1"
    assert row["state"] == ("waiting for its replay" if write is by_chain else "dead")
    assert group["error"] in ("a test", "the CRM is down")
    assert (group["messages"], group["example"]) == (1, "m1")
    assert len(homing.json("failures", "--messages", "m1")) == 1
    assert homing.json("failures", "--messages", "m2") == []


@every_writer
def test_show_finds_it_by_the_id_of_its_message(
    homing: Shell, stores: PipelineStores, refusing: Refusing, write: Write
) -> None:
    letter = write(stores, refusing)

    found = homing.json("show", "m1")["found_in"]

    assert letter.id in [each["id"] for each in found]


@every_writer
def test_the_chain_replays_it(stores: PipelineStores, refusing: Refusing, write: Write) -> None:
    letter = write(stores, refusing)
    before, refusing.away = len(refusing.got), False

    refusing.chain.replay(letter)

    done = write not in (by_hand, by_listener)
    assert refusing.got[before:] == [("crm", {"n": 1})] if done else len(refusing.got) == 2


@every_writer
def test_homing_replay_delivers_what_is_left_of_it_and_it_is_gone(
    homing: Shell, stores: PipelineStores, refusing: Refusing, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(stores, refusing)
    before, refusing.away = len(refusing.got), False
    monkeypatch.setattr("homing.cli.failures.load_chain", lambda _reference: refusing.chain)

    answer = homing("replay", "m1", "--chain", "shop:chain", "--reason", "it is up again", "-o", "json")

    assert (answer.code, answer.data["delivered"]) == (0, 1), answer.err
    done = write not in (by_hand, by_listener)
    assert sorted(refusing.got[before:]) == [("crm", {"n": 1}), ("lake", {"n": 1})][: 1 if done else 2]
    assert homing.json("failures") == []
    assert stores.dead_letters.count()["available"] + stores.failures.count()["available"] == 0


@every_writer
def test_a_replay_that_fails_again_leaves_it_where_it_was(
    homing: Shell, stores: PipelineStores, refusing: Refusing, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(stores, refusing)
    monkeypatch.setattr("homing.cli.failures.load_chain", lambda _reference: refusing.chain)

    answer = homing("replay", "--all", "--chain", "shop:chain", "--reason", "to see", "-o", "json")

    assert (answer.code, answer.data["still_failing"]) == (1, 1), answer.err
    (row,) = homing.json("failures", "--messages")
    assert (row["id"], row["groups"]) == ("m1", ["crm: ConnectionError"])
    assert [flow for flow in row["done"] if flow] == ["lake"]


def test_the_books_know_a_listeners_dead_letter(stores: PipelineStores, refusing: Refusing) -> None:
    by_listener(stores, refusing)

    books = run_audit(stores, FLOWS)

    assert (books.total.dead_lettered, books.balanced) == (1, True)


def test_two_failures_of_one_id_are_two_messages(
    homing: Shell, stores: PipelineStores, refusing: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `execute` was given has no table that numbered it: then the failure store does."""
    refusing.chain.failure_store = stores.failures
    for number in (1, 2):
        with pytest.raises(ExecutionError):
            refusing.chain.execute({"n": number}, id="m1")
    assert len(homing.json("failures", "--messages")) == 2
    refusing.away = False
    monkeypatch.setattr("homing.cli.failures.load_chain", lambda _reference: refusing.chain)

    while homing.json("failures"):
        homing("replay", "--all", "--chain", "shop:chain", "--reason", "it is up again")

    assert sorted(content["n"] for flow, content in refusing.got if flow == "crm") == [1, 2]


def test_the_dead_letter_of_a_store_of_the_same_name_elsewhere_is_not_ours(
    homing: Shell, stores: PipelineStores, refusing: Refusing, tmp_path: Path
) -> None:
    with open_store(f"sqlite:///{tmp_path}/other.db?store=orders") as other:
        other.store({"n": 9}, id="m9")
        _listen(PipelineStores(other, stores.failures, stores.dead_letters, stores.ledger), _refuse)

    assert homing.json("failures") == []
    assert Batch(stores, "run", FLOWS).reclaim(["m9"]) == 0


def _refuse(_content: Any) -> None:
    raise ValueError("no")


def forged(stores: PipelineStores) -> Message:
    """What a producer sends who wants the failure of another message to be believed."""
    ((_, _, victim),) = stores.store.view.states(["victim"])
    said = {"type": "E", "message": "m", "handler": "crm", "stack": "", "attempt": 1}
    message = Message("victim", "forged", sequence_number=victim.sequence)
    record = build_record(message, {}, errors={"crm": said}, done={"lake": 1}, snapshot={}, chain="orders", ref=victim)
    headers = {"homing-message-id": "victim", "homing-dead-letter-reason": "forged"}
    return Message("evil", record, content_type=FAILURE_TYPE, headers=headers)


def test_a_producers_record_that_a_listener_gave_up_is_the_failure_of_its_own_message(
    homing: Shell, stores: PipelineStores
) -> None:
    stores.store.store("precious", id="victim", scheduled_at=None)
    message = forged(stores)
    stores.store.store(message)

    def choose(content: Any) -> None:
        if content != "precious":
            raise ValueError("no")

    letter = _listen(stores, choose)

    assert letter.content == message.content
    assert [row["id"] for row in homing.json("failures", "--messages")] == ["evil"]
    assert FailureRecord.of(letter).message.content == message.content


def test_records_of_another_chain_are_refused(stores: PipelineStores, refusing: Refusing) -> None:
    letter = by_settlement(stores, refusing)

    with pytest.raises(Exception, match="which is not 'invoices'"):
        Refusing("invoices").chain.replay(letter)


def test_a_dead_letter_is_called_after_its_store_and_its_message(stores: PipelineStores, refusing: Refusing) -> None:
    letter = by_listener(stores, refusing)

    ((_, _, ref),) = stores.store.view.states(["m1"])
    assert letter.id == dead_letter_id("orders", ref.name)


def test_a_replay_listener_that_is_interrupted_before_it_acknowledges_makes_one_dead_letter(
    stores: PipelineStores, refusing: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = type(stores.failures).acknowledge, []

    def acknowledge(store: Any, message: Message, success: bool = True) -> None:
        if store is stores.failures and success and not calls:
            calls.append(message.id)
            real(store, message, False)  # as if its lease had run out
            raise LeaseLostError("the store has given it to somebody else")
        real(store, message, success)

    monkeypatch.setattr(type(stores.failures), "acknowledge", acknowledge)
    own = Refusing(
        failure_store=stores.failures,
        replay=ReplayConfig(stores.dead_letters, polling_interval=0.02, max_retries=0, retry_interval=0.01),
    )
    with own.chain:
        with pytest.raises(ExecutionError):
            own.chain.execute({"n": 1}, id="m1")
        _until(lambda: stores.failures.count()["acknowledged"] == 1)

    (entry,) = calls
    assert [letter.id for letter in stores.dead_letters.browse()] == [dead_letter_id("orders", entry)]


def test_a_dead_letter_that_is_moved_to_the_replay_store_and_fails_again_is_a_dead_letter_again(
    homing: Shell, stores: PipelineStores, refusing: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dead-letter store knows the id of the first one still, and takes each id once."""
    by_replay_listener(stores, refusing)
    letter = stores.dead_letters.retrieve()
    assert letter is not None
    replays = stores.store.sibling("orders_replay")
    replays.store(letter.content)
    stores.dead_letters.acknowledge(letter)
    config = ReplayConfig(stores.dead_letters, replays, polling_interval=0.02, max_retries=0, retry_interval=0.01)

    with Refusing(failure_store=stores.failures, replay=config).chain:
        again = _wait_for(stores)

    assert FailureRecord.of(again).message.id == "m1"
    refusing.away = False
    monkeypatch.setattr("homing.cli.failures.load_chain", lambda _reference: refusing.chain)
    answer = homing("replay", "m1", "--chain", "shop:chain", "--reason", "it is up again", "-o", "json")
    assert (answer.code, answer.data["delivered"]) == (0, 1), answer.err
    assert ("crm", {"n": 1}) in refusing.got


def test_a_failure_of_another_chain_is_left_to_it(stores: PipelineStores, refusing: Refusing) -> None:
    """Its destinations may have the same names: what is done there is not done here, nor the other way round."""
    by_chain(stores, refusing)
    (entry,) = stores.failures.browse()

    assert Batch(stores, "run", ("lake",), chain="invoices").reclaim([entry.id]) == 0
    assert Batch(stores, "ours", FLOWS, chain="orders").reclaim([entry.id]) == 1


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)
