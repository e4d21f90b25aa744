"""What was asked for of chains: for rows of docs/conformance.md, the behaviour taken out, and a test of the row."""

from __future__ import annotations

from mutants.guard import guard

_ATTEMPT, _CHAIN, _CONTEXT = "pipeline/attempt.py", "pipeline/chain.py", "pipeline/context.py"
_EXECUTION, _FLOWS, _RUNNER = "pipeline/execution.py", "pipeline/flows.py", "pipeline/runner.py"
_BUILDING, _SOURCE, _DESTINATIONS, _FAILING, _REPLAYED, _LISTENING, _IN_CONTEXT, _HANDLERS, _POLICY = (
    f"tests/unit/pipeline/test_{name}.py::"
    for name in (
        "chain_building",
        "chain_source_flow",
        "chain_destinations",
        "chain_failures",
        "chain_replay",
        "replay_listener",
        "context",
        "handlers",
        "retry",
    )
)

GUARDS = (
    # -- the context -------------------------------------------------------------------------------------------
    guard(
        "every execution gets an id of its own",
        _CHAIN,
        "Message(new_id() if id is None else id, accept(content)",
        'Message("1" if id is None else id, accept(content)',
        f"{_SOURCE}test_every_execution_gets_an_id_of_its_own",
    ),
    guard(
        "any content enters as it is",
        _CHAIN,
        "Message(new_id() if id is None else id, accept(content)",
        "Message(new_id() if id is None else id, accept(str(content))",
        f"{_SOURCE}test_any_content_enters_as_it_is_and_of_the_same_type",
    ),
    guard(
        "the content comes as the type that is asked for",
        _CONTEXT,
        "bind(kind)(self.get_content())",
        "self.get_content()",
        f"{_IN_CONTEXT}test_content_with_type_is_an_object_of_that_type",
    ),
    guard(
        "and so does a property",
        _CONTEXT,
        "bind(kind)(value)",
        "value",
        f"{_IN_CONTEXT}test_property_with_type_is_an_object_of_that_type",
    ),
    guard(
        "a property that was removed is gone",
        _CONTEXT,
        "self._properties.pop(key, _UNSET) is _UNSET",
        "self._properties.get(key, _UNSET) is _UNSET",
        f"{_IN_CONTEXT}test_property_that_was_set_is_there_until_it_is_removed",
    ),
    guard(
        "the record of a context has its properties",
        _CONTEXT,
        '            "properties": clone(self._properties),\n',
        '            "properties": {},\n',
        f"{_IN_CONTEXT}test_record_shows_id_content_headers_and_properties",
    ),
    # -- the source flow ---------------------------------------------------------------------------------------
    guard(
        "processors run in the order they are written",
        _FLOWS,
        "            for processor in self.processors:\n",
        "            for processor in reversed(self.processors):\n",
        f"{_SOURCE}test_processors_run_in_the_order_they_are_written",
    ),
    guard(
        "a message that a processor failed on reaches no destination",
        _RUNNER,
        "    if outcome.state == PROCESSED:\n        waiting",
        "    if True:\n        waiting",
        f"{_FAILING}test_failing_processor_keeps_the_message_from_every_destination",
    ),
    guard(
        "a handler has the name that its decorator is given",
        "pipeline/handlers.py",
        'chosen = getattr(function, "__name__", None) if name is None else name',
        'chosen = getattr(function, "__name__", None)',
        f"{_HANDLERS}test_decorator_works_bare_with_parentheses_and_with_a_name",
    ),
    guard(
        "a function without a decorator is no processor",
        _FLOWS,
        "        if not isinstance(item, Handler) or item.kind not in PROCESSORS:\n",
        "        if False:\n",
        f"{_BUILDING}test_function_without_decorator_is_refused_by_name",
    ),
    guard(
        "a single handler stands for a list of one",
        _FLOWS,
        "        written = [written]\n    if not isinstance",
        "        pass\n    if not isinstance",
        f"{_BUILDING}test_single_handler_stands_for_a_list_of_one",
    ),
    guard(
        "a handler may take the content as a type",
        "invocation/signature.py",
        "        return lambda envelope, *rest: function(convert(content_of(envelope)), *rest)\n",
        "        return lambda envelope, *rest: function(content_of(envelope), *rest)\n",
        f"{_HANDLERS}test_typed_parameter_gets_the_content_as_that_type",
        "tests/unit/listener/test_services.py::test_content_is_bound_to_the_annotation",
    ),
    guard(
        "a handler may take the context behind the content",
        "invocation/signature.py",
        "function(convert(content_of(envelope)), envelope, *rest)\n",
        "function(envelope, convert(content_of(envelope)), *rest)\n",
        f"{_HANDLERS}test_parameter_annotated_so_gets_the_context_wherever_it_stands",
    ),
    # -- destinations ------------------------------------------------------------------------------------------
    guard(
        "destinations run at the same time",
        _RUNNER,
        "workers.run_all([partial(_run_flow, flow, ctx) for flow in waiting])",
        "[_run_flow(flow, ctx) for flow in waiting]",
        f"{_DESTINATIONS}test_destinations_run_in_parallel",
    ),
    guard(
        "results are those that the destinations returned",
        _EXECUTION,
        "else delivery.destination] = delivery.result",
        "else delivery.destination] = None",
        f"{_DESTINATIONS}test_results_are_keyed_by_destination_name",
    ),
    guard(
        "a destination is tried once and then max_retries times, and so is a service",
        "retry.py",
        "if attempt > self.max_retries or not mendable:",
        "if attempt >= self.max_retries or not mendable:",
        f"{_DESTINATIONS}test_destination_is_tried_once_plus_max_retries_times",
        "tests/unit/listener/test_outcomes.py::test_failed_message_is_tried_once_plus_max_retries_times",
    ),
    guard(
        "a destination's retry interval passes",
        _ATTEMPT,
        "            time.sleep(decision.delay)\n",
        "",
        f"{_DESTINATIONS}test_retry_interval_passes_between_attempts",
    ),
    guard(
        "a router delivers to the destination that it returns",
        _FLOWS,
        "return DeliveryOutcome(self.name, DROPPED) if flow is None else flow.deliver(own)",
        "return DeliveryOutcome(self.name, DROPPED)",
        f"{_DESTINATIONS}test_router_delivers_only_to_the_destination_it_returns",
    ),
    guard(
        "a router that returns None delivers nowhere",
        _FLOWS,
        "        if chosen is None:\n            return None\n",
        "",
        f"{_DESTINATIONS}test_router_that_returns_none_delivers_nowhere_and_counts_as_dropped",
    ),
    guard(
        "destinations keep the order they are written in",
        _FLOWS,
        "    return tuple(_as_flow(item) for item in written)\n",
        "    return tuple(_as_flow(item) for item in reversed(written))\n",
        f"{_BUILDING}test_flows_keep_their_order",
    ),
    # -- failures and replays ----------------------------------------------------------------------------------
    guard(
        "an error says why handlers failed",
        _EXECUTION,
        "failed in chain {chain!r}: {reasons}",
        "failed in chain {chain!r}",
        f"{_FAILING}test_error_names_message_chain_handlers_and_reasons",
    ),
    guard(
        "failures are counted",
        _EXECUTION,
        "            counted.append(FAILED)\n",
        "            pass\n",
        f"{_FAILING}test_failures_are_counted",
    ),
    guard(
        "a replay takes the message of the failure store",
        _CHAIN,
        "        if isinstance(failed, Message):\n            return self._replay",
        "        if False:\n            return self._replay",
        f"{_REPLAYED}test_replay_takes_the_message_of_the_failure_store",
    ),
    guard(
        "what failed is replayed by itself, and only where it failed",
        "pipeline/replay.py",
        "            self._chain.replay(message)\n",
        "            self._chain.execute(before.message.content)\n",
        f"{_LISTENING}test_failed_message_is_replayed_by_itself_and_only_where_it_failed",
    ),
    guard(
        "where there is a replay store, that is listened to",
        "pipeline/replay.py",
        "    store = chain.failure_store if config.replay_store is None else config.replay_store\n",
        "    store = chain.failure_store\n",
        f"{_LISTENING}test_replay_store_is_listened_to_instead_of_the_failure_store",
    ),
    guard(
        "the listener of replays starts with its chain",
        _CHAIN,
        "            self.replay_listener.start()\n",
        "            pass\n",
        f"{_LISTENING}test_listener_starts_with_the_chain_and_ends_with_close",
    ),
    # -- what decisions say ------------------------------------------------------------------------------------
    guard(
        "Drop stops with success in any processor",
        _RUNNER,
        "        return DeliveryOutcome(SOURCE_FLOW, left_out, str(drop), 1)\n",
        "        return _PROCESSED\n",
        f"{_SOURCE}test_drop_raised_by_any_processor_stops_with_success_and_is_counted",
    ),
    guard(
        "a filter that raises has failed, and has not dropped",
        _ATTEMPT,
        "            raise\n        raise fail(handler, ctx, error) from error\n\n\ndef process",
        "            raise\n        raise Drop(str(error)) from error\n\n\ndef process",
        f"{_SOURCE}test_filter_that_raises_is_a_failure",
    ),
    guard(
        "a chain that is loaded for a job starts no listener",
        _CHAIN,
        "if self.replay_listener is not None and not self.by_reference:",
        "if self.replay_listener is not None:",
        f"{_LISTENING}test_chain_loaded_for_a_job_never_starts_its_listener",
    ),
    guard(
        "what the failure store did not take is the listener's to keep",
        _CHAIN,
        "            if error.kept:\n",
        "            if True:\n",
        "tests/unit/pipeline/test_chain_as_service.py::test_failure_store_that_is_down_loses_nothing",
    ),
    guard(
        "the first replay waits as long as the destination asked for",
        _CHAIN,
        "        if delay and replays and",
        "        if False and",
        f"{_LISTENING}test_delay_that_a_destination_asks_for_holds_for_the_first_replay_too",
    ),
    guard(
        "a result that cannot be written is kept as its repr",
        "failure.py",
        '        "done": explained(done),\n',
        '        "done": copy_json(dict(done)),\n',
        "tests/unit/pipeline/test_unwritable_results.py::"
        "test_result_that_cannot_be_written_does_not_keep_the_failure_from_being_recorded",
    ),
    guard(
        "a whole policy takes the place of its short form",
        "retry.py",
        "    return retry\n\n\ndef spread",
        "    return counted\n\n\ndef spread",
        "tests/unit/listener/test_config.py::test_whole_policy_takes_the_place_of_its_short_form",
    ),
    guard(
        "a dead letter that does not fit its store is stored with content, id and headers",
        "listener/settlement.py",
        "            if FULL_MESSAGE not in dead.features:\n                raise\n",
        "            if True:\n                raise\n",
        "tests/unit/listener/test_outcomes.py::"
        "test_dead_letter_that_does_not_fit_its_store_is_stored_with_content_id_and_headers",
    ),
    guard(
        "a message cannot be changed",
        "message.py",
        "@dataclass(frozen=True)\nclass Message:",
        "@dataclass(frozen=False)\nclass Message:",
        "tests/unit/listener/test_services.py::test_message_is_frozen_and_its_content_is_its_payload",
    ),
)
