"""What a handler raises may say anything: its message is dead-lettered all the same, and holds up no other."""

from __future__ import annotations

from homing.delivery import Settlement
from homing.ledger import FAILED, Entry
from homing.stores import open_store
from tests.unit.delivery.conftest import Pipeline


def test_an_error_whose_text_holds_a_nul_keeps_no_message_from_being_dead_lettered(pipeline: Pipeline) -> None:
    first, (odd, plain) = pipeline.claimed("run", "a\0b", "plain")
    pipeline.failed("run", plain, "crm")
    error = {"type": "Bad\0Error", "message": "cannot parse a\0b", "handler": "crm", "stack": "", "attempt": 1}
    pipeline.record("run", Entry(pipeline.ref(odd), "crm", FAILED, error=error, batch_id="run"))
    assert first.settle() == Settlement(failed=2)
    replay = pipeline.batch("replay")
    assert replay.reclaim([odd, plain]) == 2
    pipeline.failed("replay", plain, "crm", batch_id="run")
    pipeline.record("replay", Entry(pipeline.ref(odd), "crm", FAILED, error=error, batch_id="run"))

    assert replay.finish_replay() == Settlement(dead_lettered=2)

    letters = {letter.content["message"]["id"]: letter for letter in pipeline.stores.dead_letters.browse()}
    assert letters[odd].dead_letter_reason == "Bad\N{REPLACEMENT CHARACTER}Error"
    assert letters[odd].content["errors"]["crm"] == error, "the record has it to the letter"


def test_a_consumer_may_give_any_text_as_the_reason(database: str) -> None:
    with open_store(f"{database}?store=orders") as store:
        store.store("a")
        message = store.retrieve()
        assert message is not None

        store.dead_letter(message, reason="Bad\0Error", description="cannot parse a\0b")

        (dead,) = store.browse()
        assert dead.dead_letter_description == "cannot parse a\N{REPLACEMENT CHARACTER}b"
