"""The guards of size: what is taken in can also be moved, and what is large holds up nobody."""

from __future__ import annotations

from mutants.guard import guard

_INSERT, _WEIGHTS, _CLAIMS = (f"stores/sql/{name}.py" for name in ("insert", "row_sizes", "claims"))
_LIMIT, _SETTLING, _FAILURE = "size_limit.py", "delivery/settlement.py", "failure.py"
_LIMITS = "tests/unit/stores/test_size_limit.py::"
_LARGE = "tests/unit/delivery/test_large_messages.py::"
_ALONE = "tests/unit/executors/test_alone.py::"

_DEEP = "tests/unit/delivery/test_deep_messages.py::"

GUARDS = (
    guard(
        "a message that is too large is not taken in",
        _INSERT,
        "                limit.check(name, item.id, item.content, made)\n",
        "",
        f"{_LIMITS}test_headers_and_properties_count_too[sqlite]",
    ),
    guard(
        "nor is a content",
        _INSERT,
        '                    limit.check(name, made["id"], item, made)\n',
        "                    pass\n",
        f"{_LIMITS}test_of_many_none_is_stored_when_one_is_too_large[sqlite]",
    ),
    guard(
        "a failure record and a dead letter may be larger than a message",
        _LIMIT,
        'ends = texts.get("dead_letter_reason") is not None or is_marked(content)',
        "ends = False",
        f"{_LIMITS}test_the_record_of_a_failure_and_a_dead_letter_may_be_larger_than_a_message[sqlite]",
    ),
    guard(
        "rows are read in portions of bytes",
        _WEIGHTS,
        "        for portion in portions(found, weight_of):\n            yield after, portion[-1][0]\n",
        "        for portion in [found] if found else []:\n            yield after, portion[-1][0]\n",
        f"{_LARGE}test_pages_have_a_portion_at_most_and_leave_nothing_out[sqlite]",
    ),
    guard(
        "a claim hands out no more than a consumer can hold",
        _CLAIMS,
        "        wanted = self._finder.light_enough(connection, wanted, now)\n",
        "",
        f"{_LARGE}test_a_claim_hands_out_what_is_light_enough_in_order_and_one_message_at_least[sqlite]",
    ),
    guard(
        "what a transformer makes much larger goes on in portions",
        "delivery/arrow/steps.py",
        "        return self._weight >= MOST_BYTES\n",
        "        return False\n",
        f"{_ALONE}test_what_a_transformer_makes_much_larger_is_written_in_portions",
    ),
    guard(
        "the dead come a portion at a time until all are moved",
        _SETTLING,
        'while rows := {row["id"]: row for row in store.dead_messages(stay)}:',
        'for rows in [{row["id"]: row for row in store.dead_messages(stay)}]:',
        f"{_LARGE}test_the_dead_come_a_portion_at_a_time_and_all_are_moved[sqlite]",
    ),
    guard(
        "what explains a failure is cut where it is long",
        _FAILURE,
        "excerpt(as_json(value), share)",
        "as_json(value)",
        "tests/unit/pipeline/test_failure_record.py::test_what_explains_a_failure_is_cut_and_the_content_is_not",
    ),
    guard(
        "nothing is taken in that is nested too deeply to be kept when it fails",
        "json_values.py",
        "    if not levels and kind in _CONTAINERS:\n",
        "    if False:\n",
        f"{_DEEP}test_what_is_nested_deeper_is_not_taken_in[sqlite-201]",
    ),
    guard(
        "what plain SQL wrote deeper than that is not read as a message",
        "message.py",
        'if body.count("[") + body.count("{") > DEEPEST and is_too_deep(value):',
        "if False:",
        f"{_DEEP}test_what_plain_sql_wrote_deeper_fails_alone[sqlite-400]",
    ),
    guard(
        "what explains a failure is not nested deeper than a record can hold",
        "failure.py",
        "def as_json(value: Any) -> Any:\n"
        '    """The value, with whatever JSON cannot carry in it replaced by its repr. Never fails."""\n'
        "    try:\n        return copy_json(value, levels=DEEPEST_PART)\n",
        "def as_json(value: Any) -> Any:\n    try:\n        return copy_json(value)\n",
        f"{_DEEP}test_the_deepest_message_that_is_taken_in_can_be_kept_when_it_fails[sqlite]",
    ),
    guard(
        "headers, which a record holds as they are, leave it room",
        "message.py",
        'wanted="JSON values", levels=DEEPEST_PART)',
        'wanted="JSON values")',
        f"{_DEEP}test_what_is_nested_deeper_is_not_taken_in[sqlite-201]",
    ),
    guard(
        "the ledger is written in portions of bytes",
        "stores/sql/dialects.py",
        "            for portion in portions(part, _bytes_of):\n",
        "            for portion in [part]:\n",
        f"{_LARGE}test_the_ledger_is_written_in_portions_and_all_or_none",
    ),
    guard(
        "what MariaDB takes in has room for its failure record",
        "size_limit.py",
        "        if self.at_once is not None:\n",
        "        if self.at_once == 0:\n",
        f"{_LARGE}test_the_largest_message_that_mariadb_accepts_can_be_moved_and_dead_lettered[letters]",
    ),
)
