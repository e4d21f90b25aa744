"""The guards of who may do what, and of the record of what was done."""

from __future__ import annotations

from mutants.guard import guard

_OPERATIONS, _TABLE = "delivery/operations.py", "stores/sql/operations.py"
_RECORDED = "tests/unit/delivery/test_operations.py::"

_BATCH, _ROLES, _DAYS, _STORE, _DATABASE, _PREPARING = (
    "delivery/batch.py",
    "stores/sql/roles.py",
    "stores/sql/archive_days.py",
    "stores/sql/store.py",
    "stores/sql/database.py",
    "cli/setup.py",
)
_ROLE = "tests/unit/delivery/test_roles.py::"

_BY_HAND, _CLI = "airflow/manual_replay.py", "tests/unit/cli/test_operations.py::"
_HAND = "tests/unit/airflow_parts/test_by_hand.py::"

GUARDS = (
    guard(
        "that an operation begins is durable before the change",
        _OPERATIONS,
        "    if within is None:\n        kept.append(begun)\n    elif",
        "    if within is None:\n        pass\n    elif",
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
    guard(
        "what could not be settled is not claimed",
        _BATCH,
        "        self._require_rights()\n        held =",
        "        held =",
        f"{_ROLE}test_what_could_not_be_settled_is_not_claimed[INSERT ON homing_orders_failures]",
        f"{_ROLE}test_what_could_not_be_settled_is_not_claimed[UPDATE ON homing_orders__ledger]",
    ),
    guard(
        "what a user may not do is his database's fault, not an error of the store like others",
        _DATABASE,
        "            if is_denied(error):\n                raise NotPermittedError(",
        "            if is_denied(error):\n                raise StoreError(",
        f"{_ROLE}test_a_producer_reads_no_message_and_changes_none",
    ),
    guard(
        "where a user may not make the tables, the error names homing init",
        "stores/sql/required_tables.py",
        "            if not is_denied(error):\n                raise\n",
        "            raise\n",
        f"{_ROLE}test_tables_that_are_missing_are_a_fault_that_names_homing_init",
    ),
    guard(
        "a producer has no say in what becomes of a message",
        _ROLES,
        "tuple(c.name for c in messages.c if c.name not in _FATE)",
        "tuple(c.name for c in messages.c)",
        f"{_ROLE}test_a_producer_reads_no_message_and_changes_none",
    ),
    guard(
        "only those who may archive make and drop the days of an archive",
        _DAYS,
        'f"REVOKE ALL ON FUNCTION {signature(archive)} FROM PUBLIC"',
        '"SELECT 1"',
        f"{_ROLE}test_a_consumer_of_an_archive_needs_no_right_to_make_its_days",
    ),
    guard(
        "the days of an archive are made with its owner's rights",
        _DAYS,
        " SECURITY DEFINER",
        "",
        f"{_ROLE}test_a_consumer_of_an_archive_needs_no_right_to_make_its_days",
    ),
    guard(
        "whoever asks for an archive makes it",
        _STORE,
        "            self.access.make_archive()",
        "            pass",
        f"{_ROLE}test_whoever_asks_for_an_archive_must_be_able_to_make_it",
    ),
    guard(
        "a name is quoted in a grant",
        _ROLES,
        """name.replace('"', '""')""",
        "name",
        f"{_ROLE}test_a_name_is_quoted_in_a_grant",
    ),
    guard(
        "an init that has nothing to do leaves no record",
        _PREPARING,
        "    if not incomplete:\n        return []\n",
        "",
        f"{_ROLE}test_the_second_init_has_nothing_to_do_and_leaves_no_record",
    ),
    guard(
        "who asked for a replay cannot approve it",
        _BY_HAND,
        "    if asker in names:\n",
        "    if asker == '':\n",
        f"{_HAND}test_who_asked_cannot_approve[ann-responder0]",
        f"{_HAND}test_who_asked_cannot_approve[ann-responder1]",
    ),
    guard(
        "who slips messages into a cleared run cannot approve them",
        _BY_HAND,
        "        if not _clears(context) or any(event.what == RETRY",
        "        if True or any(event.what == RETRY",
        f"{_HAND}test_who_slips_messages_into_a_cleared_run_cannot_approve_them",
    ),
    guard(
        "that the pipeline asked for an approval is written down as its own question",
        _BY_HAND,
        "        kept.append(replace(event, event=ASKED, what=RETRY))\n",
        "",
        f"{_HAND}test_what_the_pipeline_asked_for_itself_is_approved_by_anybody_also_when_it_is_cleared",
    ),
    guard(
        "a replay of which it is not known who asked for it is not approved",
        _BY_HAND,
        "    if asker is None or not names:\n",
        "    if asker == '':\n",
        f"{_HAND}test_who_asked_cannot_approve[None-responder4]",
        f"{_HAND}test_who_asked_cannot_approve[ann-None]",
    ),
    guard(
        "replays by hand are counted together",
        _TABLE,
        "int(used) + (event.messages or 0) <= most",
        "(event.messages or 0) <= most",
        f"{_HAND}test_replays_by_hand_are_counted_together",
        f"{_CLI}test_a_replay_that_needs_an_approval_is_not_made_here",
    ),
    guard(
        "of replays at once each counts for the others",
        _TABLE,
        "            self._take_turns(connection)\n            c = self._table.c\n            story",
        "            c = self._table.c\n            story",
        f"{_CLI}test_of_replays_at_once_no_more_are_made_than_are_allowed[postgresql]",
    ),
    guard(
        "the command line keeps to the rule of a pipeline",
        "cli/failures.py",
        "            within=rule_of(stores.store),\n",
        "",
        f"{_CLI}test_a_replay_that_needs_an_approval_is_not_made_here",
    ),
    guard(
        "only what was allowed or approved is replayed",
        "airflow/operators/spark.py",
        "if not manual_replay.may_replay(stores.store, self.pipeline, context, self._names):",
        "if False:",
        f"{_HAND}test_messages_that_were_slipped_in_are_not_replayed",
        f"{_HAND}test_who_asked_cannot_approve[ann-responder0]",
    ),
    guard(
        "the command line knows the rule before anything has failed",
        "airflow/operators/settle.py",
        "        if self.pipeline.approve_replays_above is not None:\n",
        "        if False:\n",
        f"{_HAND}test_the_command_line_learns_the_rule_before_anything_fails",
    ),
    guard(
        "what the pipeline replays by itself does not count",
        _BY_HAND,
        "    kept.append(replace(event, what=RETRY))\n",
        "    kept.append(event)\n",
        f"{_HAND}test_what_the_pipeline_replays_itself_does_not_count",
    ),
    guard(
        "what is slipped into a run of the pipeline and cleared counts",
        _BY_HAND,
        "    if is_by_hand(context) or _clears(context):\n",
        "    if is_by_hand(context):\n",
        f"{_HAND}test_what_is_slipped_into_a_run_of_the_pipeline_that_is_cleared_counts",
    ),
    guard(
        "a run of the pipeline replays only what it began with",
        _BY_HAND,
        "    if pipeline.approve_replays_above is None:\n        return begin(",
        "    if pipeline.approve_replays_above is None or not is_by_hand(context):\n        return begin(",
        f"{_HAND}test_a_run_of_the_pipeline_replays_only_what_it_began_with",
    ),
    guard(
        "require_tls looks at every host",
        "stores/sql/tls.py",
        'for place in text.split(",")]',
        'for place in text.split(",")[:1]]',
        "tests/tls/test_databases.py::test_a_url_that_contradicts_itself_is_refused_without_connecting",
    ),
    guard(
        "of an error of the system a log tells the number and not the text",
        "invocation/error_info.py",
        '    return f"{_type_of(error)} ({os.strerror(number)})" if known',
        '    return f"{_type_of(error)} ({error})" if known',
        "tests/unit/invocation/test_traces.py::test_of_an_error_of_the_system_the_number_is_told_and_not_its_text",
    ),
    guard(
        "what a purge removes from the ledger is written down",
        "cli/maintenance.py",
        "                outcome.update(_trim_ledger(arguments, context, retention))\n",
        "                _trim_ledger(arguments, context, retention)\n",
        "tests/unit/cli/test_forgetting.py::test_purge_removes_what_the_retention_of_the_ledger_says",
    ),
    guard(
        "a clear is written down",
        _BY_HAND,
        "    if not cleared:\n        return\n",
        "    return\n",
        f"{_HAND}test_a_clear_is_an_operation",
    ),
)
