"""The guards of chains run in this process, and of their replay."""

from __future__ import annotations

from mutants.guard import guard

_CHAIN, _REPLAY, _FAILURE = "pipeline/chain.py", "pipeline/replay.py", "failure.py"
_EXECUTION, _RUNNER = "pipeline/execution.py", "pipeline/runner.py"
_LISTENER_IS_RETURNED = (
    "tests/unit/invocation/test_returned.py::test_a_message_for_which_a_listener_is_returned_it_has_failed"
)
_HEADERS = "tests/unit/pipeline/test_headers_and_context.py::"
_REPLAYS, _LISTENER = "tests/unit/pipeline/test_chain_replay.py::", "tests/unit/pipeline/test_replay_listener.py::"
_FAILURES = "tests/unit/pipeline/test_chain_failures.py::"

GUARDS = (
    guard(
        "a failure that is named by a number of another library is that of the message at that position",
        "invocation/batch_result.py",
        "if not isinstance(key, bool) and isinstance(key, Integral):",
        "if type(key) is int:",
        "tests/unit/pipeline/test_batch_destinations.py::test_a_position_of_numpys_is_a_position_and_no_id",
    ),
    guard(
        "an error that is its own cause does not keep its batch for ever",
        "invocation/interrupts.py",
        "while cause is not None and id(cause) not in seen:",
        "while cause is not None:",
        "tests/unit/invocation/test_interrupts.py::"
        "test_an_error_that_is_its_own_cause_fails_its_message_and_does_not_hang",
    ),
    guard(
        "a replay knows what is done already",
        _CHAIN,
        "Execution(record.message, record.properties, dict(record.done))",
        "Execution(record.message, record.properties, {})",
        f"{_REPLAYS}test_replay_runs_all_processors_and_only_the_destinations_not_done",
    ),
    guard(
        "a chain does not replay what failed in another",
        _CHAIN,
        'if record.chain not in ("", self.name):',
        "if record.chain == '':",
        f"{_REPLAYS}test_record_of_another_chain_is_refused",
    ),
    guard(
        "a message that fails twice is kept twice",
        _CHAIN,
        "copy = new_copy(record, self.failure_store.identity)",
        "copy = replace(new_copy(record, self.failure_store.identity), id=message_id)",
        "tests/unit/cli/test_one_dead_letter_path.py::test_two_failures_of_one_id_are_two_messages",
    ),
    guard(
        "a failure is kept in the failure store",
        _CHAIN,
        '        if self.failure_store is None:\n            return message_id, ""\n',
        '        if self.failure_store is not record:\n            return message_id, ""\n',
        f"{_FAILURES}test_error_carries_the_entry_of_the_failure_store",
    ),
    guard(
        "what a replay got done is durable before the next attempt",
        _REPLAY,
        'durable=set(record["done"]) > set(before), ',
        "durable=False, ",
        f"{_LISTENER}test_progress_of_a_replay_is_durable_before_the_next_attempt",
    ),
    guard(
        "a replay that failed again is not acknowledged",
        _REPLAY,
        "            raise progress from error\n",
        "            assert progress\n",
        f"{_LISTENER}test_message_is_replayed_once_plus_max_retries_times_and_then_dead_lettered",
    ),
    guard(
        "what is no failure record goes to the dead letters at once",
        _REPLAY,
        "never=(*policy.never, UnreadableMessageError)",
        "never=policy.never",
        f"{_LISTENER}test_what_is_no_failure_record_goes_to_the_dead_letter_store_at_once",
    ),
    guard(
        "a record of another version is not taken for ours",
        _FAILURE,
        "    if written.version != VERSION:\n",
        "    if written.version is None:\n",
        "tests/unit/pipeline/test_failure_record.py::test_damaged_record_is_unreadable_and_says_why",
    ),
    guard(
        "what is done already is not delivered again",
        _RUNNER,
        "waiting = [flow for flow in flows if flow.name not in done]",
        "waiting = list(flows)",
        f"{_REPLAYS}test_replay_runs_all_processors_and_only_the_destinations_not_done",
    ),
    guard(
        "a destination that failed is not done",
        _EXECUTION,
        "            self.errors[flow] = outcome.error\n",
        "            self.errors[flow], self.done[flow] = outcome.error, None\n",
        f"{_FAILURES}test_record_of_a_failed_destination_names_the_destinations_done",
    ),
    guard(
        "a record starts from the message as it was, not as a handler left it",
        _CHAIN,
        "        return ctx\n",
        "        execution.message = ctx.processed_message()\n        return ctx\n",
        f"{_REPLAYS}test_replay_starts_from_the_original_content_with_the_original_id",
    ),
    guard(
        "headers that a processor changed reach the destinations",
        "pipeline/context.py",
        "        twin._headers = self._headers\n",
        "",
        f"{_HEADERS}test_headers_changed_by_a_processor_reach_every_destination_and_the_result",
    ),
    guard(
        "what a processor may set as a header, a store takes",
        "pipeline/context.py",
        "            written = copy_json({key: value}, levels=DEEPEST_PART)\n",
        "            written = {key: value}\n",
        f"{_HEADERS}test_a_header_that_no_store_takes_fails_the_processor_that_sets_it",
    ),
    guard(
        "the context of a result shares nothing with the handlers",
        _EXECUTION,
        "        ctx.begin_attempt()  # so that",
        "        # so that",
        f"{_HEADERS}test_what_a_handler_still_holds_changes_nothing_in_the_context_of_the_result",
    ),
    guard(
        "the error of a destination flow's own processor names the destination",
        "pipeline/flows.py",
        "            if self.destination:\n",
        "            if False:\n",
        "tests/unit/pipeline/test_chain_destinations.py::"
        "test_error_of_an_own_processor_names_its_destination_which_others_may_share_it_with",
    ),
    guard(
        "what one destination's processors do, no other destination sees",
        "pipeline/flows.py",
        "            own = ctx.copy()\n            if (ended := self._process(own)) is not None:",
        "            if (ended := self._process(own)) is not None:",
        "tests/unit/pipeline/test_chain_destinations.py::"
        "test_own_processors_work_on_the_copy_of_their_destination_only",
    ),
    guard(
        "what was returned and has run nothing is no result",
        "invocation/invalid_return.py",
        "isgenerator(returned) or inspect.isasyncgen(returned) or _is_lazy(returned):",
        "isgenerator(returned) and returned is None:",
        "tests/unit/invocation/test_returned.py::test_a_destination_that_returns_it_has_failed",
        f"{_LISTENER_IS_RETURNED}[generator]",
    ),
    guard(
        "a Future that was returned is no result",
        "invocation/invalid_return.py",
        "    if isinstance(returned, _FUTURES):\n",
        "    if returned is _FUTURES:\n",
        "tests/unit/invocation/test_returned.py::test_a_destination_that_returns_it_has_failed",
        f"{_LISTENER_IS_RETURNED}[future of a thread]",
    ),
    guard(
        "an exception that was returned is no result",
        "invocation/invalid_return.py",
        "    if isinstance(returned, BaseException):\n        return returned\n",
        "",
        "tests/unit/invocation/test_returned.py::test_a_destination_that_returns_it_has_failed[exception]",
        f"{_LISTENER_IS_RETURNED}[exception]",
    ),
    guard(
        "a request that a client made, and nobody awaited, is no result",
        "invocation/invalid_return.py",
        "    if isinstance(returned, Awaitable):",
        "    if inspect.iscoroutine(returned):",
        "tests/unit/invocation/test_returned.py::test_a_destination_that_returns_it_has_failed[request of a coroutine]",
    ),
    guard(
        "a task whose time is up fails no message",
        "invocation/interrupts.py",
        "if isinstance(cause, KeyboardInterrupt) or _ran_through(cause, codes):",
        "if isinstance(cause, KeyboardInterrupt):",
        "tests/unit/invocation/test_interrupts.py::test_airflows_timeout_ends_the_task_and_fails_no_message",
    ),
    guard(
        "an argument that does not exist is named with the one that was meant",
        "arguments.py",
        "        if not arguments.keys() <= set(known):\n",
        "        if not arguments:\n",
        "tests/unit/test_arguments.py::"
        "test_an_argument_that_does_not_exist_is_named_with_the_one_that_was_meant[ListenerConfig]",
    ),
    guard(
        "an error of the command line repeats no value, which may be a store's URL",
        "cli/main.py",
        'word.partition("=")[0]',
        "word",
        "tests/unit/test_arguments.py::"
        "test_so_is_a_word_of_the_command_line_and_no_value_is_repeated"
        "[words2-send has no option '--stroe'; did you mean --store?]",
    ),
)
