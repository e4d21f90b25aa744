"""The guards of who is who: a message is known by its table, its number there and its id, and never by less."""

from __future__ import annotations

from mutants.guard import guard

_IDENTITY, _TRUST, _HALF_WAY = (f"tests/unit/delivery/test_{name}.py::" for name in ("identity", "trust", "half_way"))
_APART = f"{_IDENTITY}test_the_ledger_keeps_messages_of_two_tables_apart[sqlite]"

GUARDS = (
    guard(
        "dead letters do not come back as messages",
        "delivery/batch.py",
        "        self._holding.ask(self._stores.dead_letters, lambda _: self._stores.require_apart())\n",
        "",
        "tests/unit/delivery/test_identity.py::"
        "test_dead_letters_in_the_pipelines_own_table_by_another_name_of_its_place_are_refused[sqlite]",
    ),
    guard(
        "each table has an identity of its own",
        "stores/sql/schema.py",
        "server_default=random_hex(16)",
        'server_default="0" * 16',
        f"{_IDENTITY}test_two_databases_with_the_same_store_share_a_dead_letter_store_and_each_keeps_its_own[sqlite]",
        f"{_IDENTITY}test_a_table_made_anew_beside_its_old_ledger_delivers_what_it_takes_in[sqlite]",
    ),
    guard(
        "a dead letter has the identity of its message in its id",
        "failure.py",
        'plain = f"{store}/{name}"',
        "plain = f\"{store}/{name.rpartition('/')[2]}\"",
        f"{_IDENTITY}test_two_databases_with_the_same_store_share_a_dead_letter_store_and_each_keeps_its_own[sqlite]",
    ),
    guard(
        "a settlement that is done again makes the same dead letter, and not a second one",
        "failure.py",
        "        id=dead_letter_id(store, copy.id),\n",
        "        id=new_id(),\n",
        "tests/unit/delivery/test_batch.py::"
        "test_a_dead_lettering_that_dies_before_its_acknowledgement_is_completed_and_counted_once[sqlite]",
    ),
    guard(
        "the ledger knows messages of two tables from each other",
        "stores/sql/schema.py",
        '        Column("table_id", Key(16), primary_key=True),\n',
        '        Column("table_id", Key(16)),\n',
        _APART,
    ),
    guard(
        "the audit looks for the very message, and not for one of its id",
        "delivery/audit.py",
        "found = entries.get(ref, {})",
        "found = next((flows for known, flows in entries.items() if known.id == ref.id), {})",
        f"{_IDENTITY}test_the_audit_is_not_content_with_another_message_of_the_same_id[sqlite-delivered]",
    ),
    guard(
        "what lies under the id of a copy is the copy only when its record says so",
        "delivery/settlement.py",
        "for copy in there if ref_in(copy) == refs[copy.id]}",
        "for copy in there}",
        f"{_HALF_WAY}test_something_else_under_the_id_of_a_copy_is_not_taken_for_the_copy[sqlite-failures]",
        f"{_HALF_WAY}test_something_else_under_the_id_of_a_copy_is_not_taken_for_the_copy[sqlite-dead_letters]",
    ),
    guard(
        "a failure record in a message store is a message, whatever its producer says",
        "delivery/records.py",
        "if not (copies and may_hold_record(",
        "if not (may_hold_record(",
        f"{_TRUST}test_a_forged_record_is_a_message_like_any_other[sqlite-by_store]",
        f"{_TRUST}test_a_forged_record_acknowledges_nothing_when_it_comes_first[sqlite-by_store]",
    ),
    guard(
        "what did not fail alone is not given up",
        "spark/bisection.py",
        "        while stop - at > 1:\n",
        "        while stop - at > 2:\n",
        "tests/unit/executors/test_bisection.py::"
        "test_only_poison_is_given_up_and_each_of_it_has_failed_alone[1000-poison6-650]",
    ),
    guard(
        "a copy that is finished makes way for the next one of its id",
        "delivery/settlement.py",
        "            to.forget_finished([copy.id for copy in known])\n",
        "",
        "tests/unit/delivery/test_half_way.py::"
        "test_an_acknowledged_copy_of_the_same_message_makes_way[sqlite-dead_letters]",
    ),
)
