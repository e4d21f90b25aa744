"""The guards of the one failure record, whoever wrote it."""

from __future__ import annotations

from mutants.guard import guard

_LISTENER, _SETTLING, _STORES = "listener/settlement.py", "delivery/settlement.py", "delivery/stores.py"
_PATH = "tests/unit/cli/test_one_dead_letter_path.py::"

GUARDS = (
    guard(
        "a replay that got nothing done is a dead letter of the name it had",
        "pipeline/replay.py",
        "if progress.durable:",
        "if True:",
        f"{_PATH}test_a_replay_listener_that_is_interrupted_before_it_acknowledges_makes_one_dead_letter",
    ),
    guard(
        "a record that was moved by hand is not lost for the dead letter it was before",
        _LISTENER,
        "if delivery.id == known.name:",
        "if True:",
        f"{_PATH}test_a_dead_letter_that_is_moved_to_the_replay_store_and_fails_again_is_a_dead_letter_again",
    ),
    guard(
        "what a chain's replay store gives up is found among the failures of its pipeline",
        _LISTENER,
        "self._records_of = service.records_of or self._store_name",
        "self._records_of = self._store_name",
        f"{_PATH}test_a_dead_letter_that_is_moved_to_the_replay_store_and_fails_again_is_a_dead_letter_again",
    ),
    guard(
        "a producer's record that a listener gives up is not believed",
        _LISTENER,
        "kind = None if message.content_type == FAILURE_TYPE else message.content_type",
        "kind = message.content_type",
        f"{_PATH}test_a_producers_record_that_a_listener_gave_up_is_the_failure_of_its_own_message",
    ),
    guard(
        "a failure of another chain is left to it",
        _SETTLING,
        'if records.chain_of(row) in ("", self._chain) or not self._chain:',
        "if True:",
        f"{_PATH}test_a_failure_of_another_chain_is_left_to_it",
    ),
    guard(
        "what a chain or a listener has done of a message is done for its replay by a run",
        _SETTLING,
        "ledger.record(fence, records.recorded_entries(row, run_id))",
        "pass",
        f"{_PATH}test_homing_replay_delivers_what_is_left_of_it_and_it_is_gone[by_chain]",
    ),
    guard(
        "dead letters of another pipeline are not taken for own ones",
        _STORES,
        "return ref in known or (bool(ref.table_id) and ref.table_id in (self.store.identity, self.failures.identity))",
        "return True",
        f"{_PATH}test_the_dead_letter_of_a_store_of_the_same_name_elsewhere_is_not_ours",
    ),
    guard(
        "who dies while it takes up what a chain gave up, before a handler ran, did not die of a message",
        _SETTLING,
        "step not in (_TAKE_UP, _GIVEN_UP) and",
        "step != _GIVEN_UP and",
        "tests/unit/delivery/test_crashes.py::"
        "test_who_dies_while_it_takes_up_what_a_chain_gave_up_has_not_died_of_a_message[sqlite]",
    ),
    guard(
        "nor did who dies while it notes what a store gave up",
        _SETTLING,
        "step not in (_TAKE_UP, _GIVEN_UP) and",
        "step != _TAKE_UP and",
        "tests/unit/delivery/test_crashes.py::"
        "test_who_dies_while_it_notes_what_a_store_gave_up_has_not_died_of_another_message[sqlite]",
    ),
)
