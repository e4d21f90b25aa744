"""The ledger: what is done stays done, and only whoever has the step may record."""

from __future__ import annotations

import pytest

from homing.delivery import PipelineStores
from homing.errors import LeaseLostError
from homing.ledger import DELIVERED, FAILED, Entry
from homing.message import MessageRef


def ref(message_id: str) -> MessageRef:
    return MessageRef("0123456789abcdef", 1, message_id)


def test_a_failure_is_followed_by_its_delivery_and_never_the_other_way_round(stores: PipelineStores) -> None:
    ledger = stores.ledger
    fence = ledger.open_step("run", "deliver.crm", 60)
    error = {"type": "E"}
    ledger.record(fence, [Entry(ref("m"), "crm", FAILED, error=error, batch_id="b")])
    assert ledger.entries(["m"])["m"]["crm"].error == error
    ledger.record(fence, [Entry(ref("m"), "crm", DELIVERED, result=201, batch_id="b")])
    ledger.record(fence, [Entry(ref("m"), "crm", FAILED, error=error, batch_id="b")])

    entry = ledger.entries(["m"])["m"]["crm"]

    assert (entry.state, entry.result, entry.error) == (DELIVERED, 201, None)
    assert entry.attempts == 3


def test_a_message_may_come_twice_in_what_is_recorded_at_once(stores: PipelineStores) -> None:
    fence = stores.ledger.open_step("run", "deliver.crm", 60)
    error = {"type": "E", "message": 'a "quoted" word, a back\\slash, a \x00 and a snowman \u2603'}
    failed = Entry(ref("m"), "crm", FAILED, error=error, batch_id="b", at=1)
    other = Entry(ref("other"), "crm", DELIVERED, batch_id="b", at=1)

    stores.ledger.record(fence, [failed, other, Entry(ref("m"), "crm", DELIVERED, batch_id="b", at=2)])
    stores.ledger.record(fence, [failed._replace(flow="lake")])

    entries = stores.ledger.entries(["m", "other"])
    assert (entries["m"]["crm"].state, entries["m"]["crm"].attempts, entries["m"]["crm"].deliveries) == (
        DELIVERED,
        2,
        1,
    )
    assert entries["m"]["lake"].error == error
    assert entries["other"]["crm"].deliveries == 1


@pytest.mark.parametrize("written", ["", "{oops", "[]", "1", '"text"', '{"message": "of no type"}'])
def test_an_error_that_nobody_can_read_is_a_failure_still_and_holds_up_no_neighbour(
    stores: PipelineStores, written: str
) -> None:
    fence = stores.ledger.open_step("run", "deliver.crm", 60)
    stores.ledger.record(fence, [Entry(ref(name), "crm", FAILED, error={"type": "E"}, batch_id="b") for name in "ab"])
    table = stores.ledger._rows  # type: ignore[attr-defined]
    spoil = table.update().where(table.c.message_id == "a").values(error=written, snapshot=written, result=written)
    stores.ledger._database.write(lambda connection: connection.execute(spoil))  # type: ignore[attr-defined]

    entries = stores.ledger.entries(["a", "b"])

    assert entries["a"]["crm"].state == FAILED
    assert (entries["a"]["crm"].error or {})["type"] == "unreadable"
    assert entries["b"]["crm"].error == {"type": "E"}


def test_whoever_takes_a_step_over_shuts_the_other_out(stores: PipelineStores) -> None:
    ledger = stores.ledger
    orphan = ledger.open_step("run", "deliver.crm", 60)
    current = ledger.open_step("run", "deliver.crm", 60)

    with pytest.raises(LeaseLostError, match=r"deliver\.crm"):
        ledger.record(orphan, [Entry(ref("m"), "crm", DELIVERED, batch_id="b")])
    with pytest.raises(LeaseLostError):
        ledger.renew_step(orphan, 60)

    assert ledger.entries(["m"]) == {}
    ledger.record(current, [Entry(ref("m"), "crm", DELIVERED, batch_id="b")])
    assert ledger.entries(["m"])["m"]["crm"].done


def test_who_lost_a_step_does_not_close_it_for_the_one_who_has_it(stores: PipelineStores) -> None:
    ledger = stores.ledger
    orphan = ledger.open_step("run", "deliver.crm", 60)
    current = ledger.open_step("run", "deliver.crm", 60)

    ledger.close_step(orphan)

    ledger.record(current, [Entry(ref("m"), "crm", DELIVERED, batch_id="b")])
    assert ledger.is_open("run", "deliver.crm")


def test_who_lost_a_step_names_nothing_that_he_has_in_hand(stores: PipelineStores) -> None:
    ledger = stores.ledger
    orphan = ledger.open_step("run", "deliver.crm", 60)
    ledger.suspect(ledger.open_step("run", "deliver.crm", 60), "what is in hand now")

    with pytest.raises(LeaseLostError):
        ledger.suspect(orphan, None, [Entry(ref("m"), "crm", DELIVERED, batch_id="b")])

    assert ledger.entries(["m"]) == {}
    assert ledger.open_step("run", "deliver.crm", 60).suspect == "what is in hand now"


def test_two_destinations_of_a_run_do_not_shut_each_other_out(stores: PipelineStores) -> None:
    crm = stores.ledger.open_step("run", "deliver.crm", 60)
    lake = stores.ledger.open_step("run", "deliver.lake", 60)

    stores.ledger.record(crm, [Entry(ref("m"), "crm", DELIVERED, batch_id="b")])
    stores.ledger.record(lake, [Entry(ref("m"), "lake", DELIVERED, batch_id="b")])

    assert set(stores.ledger.entries(["m"])["m"]) == {"crm", "lake"}


def test_a_step_that_shows_no_sign_of_life_may_record_no_more(stores: PipelineStores) -> None:
    fence = stores.ledger.open_step("run", "deliver.crm", 0.001)
    stores.ledger.entries(["m"])  # some time passes

    with pytest.raises(LeaseLostError):
        stores.ledger.record(fence, [Entry(ref("m"), "crm", DELIVERED, batch_id="b")])


def test_the_unfinished_messages_of_a_batch_are_those_with_a_failure(stores: PipelineStores) -> None:
    fence = stores.ledger.open_step("run", "process", 60)
    stores.ledger.record(
        fence,
        [
            Entry(ref("a"), "crm", FAILED, batch_id="b1"),
            Entry(ref("a"), "lake", DELIVERED, batch_id="b1"),
            Entry(ref("b"), "crm", DELIVERED, batch_id="b1"),
            Entry(ref("c"), "crm", FAILED, batch_id="b2"),
        ],
    )

    assert stores.ledger.unfinished("b1") == [ref("a")]
