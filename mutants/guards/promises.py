"""What was asked for of stores, listeners and the bus: for rows of docs/conformance.md, the behaviour taken out."""

from __future__ import annotations

from mutants.guard import guard

_SENDING, _CATALOG, _ROWS = (f"bus/embedded/{name}.py" for name in ("sender", "catalog", "rows"))
_WORKERS, _VIEWS, _ROW = "listener/workers.py", "stores/sql/queries.py", "stores/sql/new_row.py"
_ABILITIES, _STORE = "tests/conformance/test_abilities.py::", "tests/unit/stores/test_sql_store.py::"
_ADVERSITY, _ENDS, _SERVICES = (
    f"tests/unit/listener/test_{name}.py::" for name in ("adversity", "outcomes", "services")
)
_MESSAGES, _TOPICS = "tests/bus/test_messages.py::", "tests/bus/test_topics.py::"

GUARDS = (
    # -- stores ------------------------------------------------------------------------------------------------
    guard(
        "what was stored is there for others",
        "stores/sql/database.py",
        "                    with self._engine.begin() as connection:\n",
        "                    with self._engine.connect() as connection:\n",
        f"{_STORE}test_a_stored_message_is_there_for_another_process",
    ),
    guard(
        "a text comes back as a text",
        "message.py",
        "        return Encoded(TEXT, content)\n",
        "        return Encoded(JSON, content)\n",
        "tests/unit/test_message.py::test_any_json_value_text_or_bytes_comes_back_equal_and_of_the_same_type",
    ),
    guard(
        "an acknowledged message is finished",
        "stores/sql/store.py",
        "changes = [(done, self._settlements.finish(properties)),",
        "changes = [(done, self._settlements.release(properties)),",
        f"{_STORE}test_an_acknowledged_message_never_comes_back",
    ),
    guard(
        "a scheduled message is not delivered before it is due",
        _ROW,
        '        row["time_next"] = max(row["time_scheduled"], 1)\n',
        "",
        f"{_ABILITIES}test_a_scheduled_message_is_delivered_when_it_is_due[sqlite]",
    ),
    guard(
        "waiting ends when a message is due",
        "stores/sql/notify.py",
        "                if due is not None and due <= now:\n",
        "                if False:\n",
        f"{_ABILITIES}test_waiting_ends_when_a_message_is_stored_and_when_a_scheduled_one_is_due[sqlite]",
    ),
    guard(
        "every state is counted",
        _VIEWS,
        "            return {row[0]: row[1] for row in connection.execute(statement)}\n",
        "            return {row[0]: 0 for row in connection.execute(statement)}\n",
        f"{_ABILITIES}test_every_state_is_counted[sqlite]",
    ),
    guard(
        "the oldest age is for how long the longest-waiting message has been due",
        _VIEWS,
        "else (now - due) / NANOSECONDS",
        "else 0.0",
        f"{_ABILITIES}test_the_oldest_age_is_for_how_long_the_longest_waiting_available_message_has_been_due[sqlite]",
    ),
    guard(
        "the application's own columns are filled from the headers",
        _ROW,
        "    return {**row, **columns.values(message)} if columns else row\n",
        "    return row\n",
        "tests/unit/stores/test_sql_databases.py::test_columns_of_the_application_are_filled_from_the_headers[sqlite]",
    ),
    guard(
        "a store's name that cannot be one is refused",
        "stores/sql/properties.py",
        "        if not _NAME.fullmatch(self.name):\n",
        "        if False:\n",
        "tests/unit/stores/test_open_store.py::test_a_bad_option_is_refused",
    ),
    guard(
        "a table that was dropped is told as one",
        "stores/sql/database.py",
        "            if is_missing_table(error):\n",
        "            if False:\n",
        "tests/unit/stores/test_sql_outages.py::test_a_dropped_table_is_told_as_one[sqlite-store]",
    ),
    # -- listeners ---------------------------------------------------------------------------------------------
    guard(
        "an error that a service raises is a failure",
        "listener/service.py",
        "see `call`\n            return Answer(error=error)\n",
        "see `call`\n            return Answer()\n",
        f"{_ENDS}test_content_named_fail_fails_and_others_are_received",
        f"{_ENDS}test_binding_failure_is_tried_again_like_any_other_before_the_switch_drops_it",
    ),
    guard(
        "as many handlers run at the same time as the concurrency says",
        _WORKERS,
        "        for _ in range(self._config.concurrency):\n",
        "        for _ in range(1):\n",
        f"{_ENDS}test_handlers_run_at_the_same_time_when_concurrency_says_so",
    ),
    guard(
        "a service that asks for the message gets it",
        "invocation/signature.py",
        "    if is_envelope == [True]:\n        return function\n",
        "    if is_envelope == [True]:\n        return lambda envelope, *rest: function(content_of(envelope), *rest)\n",
        f"{_SERVICES}test_service_that_asks_for_the_message_gets_its_id_and_headers",
    ),
    guard(
        "a store that cannot be reached is polled again",
        _WORKERS,
        "a store that is away must not end the listener\n            log.warning(",
        "a store that is away must not end the listener\n            raise\n            log.warning(",
        f"{_ADVERSITY}test_store_that_cannot_be_reached_is_polled_again",
    ),
    guard(
        "what is no message is not handled as one",
        _WORKERS,
        "[item for item in found if isinstance(item, Message) and type(item.id) is str]",
        "list(found)",
        f"{_ADVERSITY}test_rubbish_behind_good_messages_neither_loses_nor_stalls_them",
    ),
    guard(
        "a listener's defaults are those of the specification",
        "listener/config.py",
        "    polling_interval: Duration = 1.0\n",
        "    polling_interval: Duration = 2.0\n",
        "tests/unit/listener/test_config.py::test_defaults_are_those_of_the_specification",
    ),
    guard(
        "a graceful stop lets what is in flight finish",
        "listener/lifecycle.py",
        "        in_time = run.drain(timeout, give_back=not retries)\n",
        "        in_time = False\n",
        "tests/unit/listener/test_lifecycle.py::test_graceful_stop_lets_what_is_in_flight_finish_and_acknowledges_it",
    ),
    guard(
        "what was released waits for the next poll",
        "listener/settlement.py",
        "            self._in_flight.remember(delivery.id, wait)\n            self.settle",
        "            self.settle",
        f"{_ENDS}test_released_message_does_not_make_the_listener_run_hot",
    ),
    guard(
        "a message of a batch that cannot be bound fails alone",
        "listener/service.py",
        "                answers[place] = Answer(error=error)\n",
        "                raise\n",
        "tests/unit/listener/test_poison.py::test_base_exception_in_binding_fails_its_message_alone",
    ),
    # -- the bus -----------------------------------------------------------------------------------------------
    guard(
        "every field of a message arrives",
        _ROWS,
        "        subject=message.label,\n",
        "        subject=None,\n",
        f"{_MESSAGES}test_every_field_arrives_and_the_sent_message_is_not_changed[embedded]",
    ),
    guard(
        "a message that is too large is refused, and so is such a batch",
        _SENDING,
        "        if size > limit:\n",
        "        if False:\n",
        f"{_MESSAGES}test_a_message_that_is_too_large_is_refused[embedded]",
        f"{_MESSAGES}test_a_batch_that_does_not_fit_is_refused_whole[embedded]",
    ),
    guard(
        "a message is scheduled for when it is to come",
        _SENDING,
        "        kept = self._prepared(entry, message, at)\n",
        "        kept = self._prepared(entry, message)\n",
        f"{_MESSAGES}test_a_scheduled_message_comes_when_it_is_due[embedded]",
    ),
    guard(
        "what was cancelled does not come",
        _SENDING,
        "        if not mine or not store.cancel(mine[0]):\n",
        "        if not mine:\n",
        f"{_MESSAGES}test_a_scheduled_message_is_cancelled_once[embedded]",
    ),
    guard(
        "an entity that is missing is named",
        _CATALOG,
        'f"unknown {_kind_of(path)} {path!r}: create',
        'f"unknown {_kind_of(path)}: create',
        f"{_TOPICS}test_a_missing_entity_is_named_by_sender_and_receiver[embedded]",
    ),
    guard(
        "a payload that was received is done with",
        "bus/receiver.py",
        "            self.complete(message)\n        return message.body\n",
        "            pass\n        return message.body\n",
        f"{_MESSAGES}test_a_payload_is_received_alone_and_is_done_with[embedded]",
    ),
    guard(
        "a dead letter has its reason",
        _ROWS,
        "        dead_letter_reason=kept.dead_letter_reason,\n",
        "        dead_letter_reason=None,\n",
        f"{_MESSAGES}test_a_dead_letter_has_its_reason_and_its_source[embedded]",
    ),
    guard(
        "what an administrator changes is changed",
        _CATALOG,
        "lambda entry: replace(entry, entity=entity)",
        "lambda entry: entry",
        f"{_TOPICS}test_a_queue_is_made_changed_listed_and_removed[embedded]",
        f"{_TOPICS}test_a_topic_its_subscriptions_and_rules_are_made_changed_listed_and_removed[embedded]",
    ),
    guard(
        "filters filter",
        "bus/rules.py",
        "        if not rule.filter.matches(message):\n            continue\n",
        "",
        f"{_TOPICS}test_sql_and_correlation_filters_really_filter[embedded]",
    ),
    guard(
        "an action changes the copy",
        "bus/rules.py",
        "            changed = compile_action(rule.action)(message)\n",
        "            changed = message\n",
        f"{_TOPICS}test_an_action_changes_the_copy_and_not_the_others[embedded]",
    ),
)
