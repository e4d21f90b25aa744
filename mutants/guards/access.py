"""The guards of who may do what, and of the record of what was done."""

from __future__ import annotations

from mutants.guard import guard

_OPERATIONS, _TABLE = "delivery/operations.py", "stores/sql/operations.py"
_RECORDED = "tests/unit/delivery/test_operations.py::"

GUARDS = (
    guard(
        "that an operation begins is durable before the change",
        _OPERATIONS,
        "    kept.append(begun)\n    try:\n        yield outcome\n",
        "    try:\n        yield outcome\n        kept.append(begun)\n",
        f"{_RECORDED}test_its_beginning_is_durable_before_the_change[sqlite]",
        f"{_RECORDED}test_of_a_process_that_died_in_between_the_beginning_is_left[sqlite]",
        f"{_RECORDED}test_nothing_is_changed_when_the_beginning_cannot_be_written[sqlite]",
    ),
    guard(
        "an operation that raises has failed",
        _OPERATIONS,
        'end(store, begun, FAILED, {**outcome, "error": type(error).__name__})',
        "pass",
        f"{_RECORDED}test_an_operation_that_raises_has_failed[sqlite]",
    ),
    guard(
        "an operation that is begun again is written down once",
        _TABLE,
        "        if connection.execute(same).first() is not None:\n            return False\n",
        "",
        f"{_RECORDED}test_what_is_begun_again_under_its_id_is_written_down_once[sqlite]",
    ),
    guard(
        "who gave a command is not asked of the environment",
        _OPERATIONS,
        "name = pwd.getpwuid(user).pw_name",
        'name = os.environ.get("USER", "")',
        f"{_RECORDED}test_who_is_at_a_terminal_is_not_asked_of_the_environment",
    ),
    guard(
        "what an operator's terminal is shown of an operation steers no terminal",
        _TABLE,
        "shown = None if text is None else printable(text)",
        "shown = text",
        f"{_RECORDED}test_what_is_long_is_cut_and_what_steers_terminals_is_escaped[sqlite]",
    ),
)
