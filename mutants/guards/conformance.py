"""What was asked for: for rows of docs/conformance.md, the behaviour taken out, and the test that the row names."""

from __future__ import annotations

from mutants.guard import guard

_CONFIG, _LISTENER, _ATTEMPT = "listener/config.py", "listener/store_listener.py", "pipeline/attempt.py"
_LIFECYCLE_OF, _OUTCOMES = "listener/lifecycle.py", "listener/settlement.py"
_ENDS = "tests/unit/listener/test_outcomes.py::"
_CLAIMS, _PROPERTIES, _DUE = "stores/sql/claims.py", "stores/sql/properties.py", "stores/sql/claim_query.py"
_CONFIGURED, _LIFECYCLE = "tests/unit/listener/test_config.py::", "tests/unit/listener/test_lifecycle.py::"
_SOURCE = "tests/unit/pipeline/test_chain_source_flow.py::"
_DESTINATIONS = "tests/unit/pipeline/test_chain_destinations.py::"
_DATABASES = "tests/unit/stores/test_sql_databases.py::"

GUARDS = (
    # -- the message store proposal and the messaging specification ----------------------------------------------
    guard(
        "intervals are positive",
        "constraints.py",
        "Duration = Annotated[float | timedelta, Meta(gt=0)]",
        "Duration = Annotated[float | timedelta, Meta(gt=-9)]",
        f"{_CONFIGURED}test_intervals_must_be_positive_whatever_else_is_set",
    ),
    guard(
        "the two spellings are one switch",
        _CONFIG,
        "            release = not drop\n",
        "            release = True\n",
        f"{_CONFIGURED}test_both_spellings_set_the_one_switch",
    ),
    guard(
        "a contradiction between the spellings is an error",
        _CONFIG,
        "if release is not None and release == drop:",
        "if False:",
        f"{_CONFIGURED}test_spellings_that_contradict_each_other_are_an_error",
    ),
    guard(
        "a listener has one service",
        _LIFECYCLE_OF,
        "            if self._service is not None:\n                raise",
        "            if False:\n                raise",
        f"{_LIFECYCLE}test_second_service_is_refused_and_the_first_stays",
    ),
    guard(
        "detaching ends the polling",
        _LIFECYCLE_OF,
        "        self.graceful_stop()\n        with self._lock:\n            self._service = None",
        "        with self._lock:\n            self._service = None",
        f"{_LIFECYCLE}test_detaching_stops_the_polling",
    ),
    guard(
        "what is not attached cannot be detached",
        _LIFECYCLE_OF,
        "if self._service is None or not _is_same(self._service.attached, service):",
        "if self._service is None:",
        f"{_LIFECYCLE}test_detaching_what_is_not_attached_raises_and_changes_nothing",
    ),
    guard(
        "a listener's oldest age is its store's",
        "listener/store_listener.py",
        "        waiting = self._oldest_waiting()\n",
        "        waiting = None\n",
        "tests/unit/listener/test_outcomes.py::test_oldest_age_is_that_of_the_longest_waiting_message_of_the_store",
    ),
    guard(
        "max_retries is a whole number from zero up",
        "constraints.py",
        "Count = Annotated[int, Meta(ge=0)]",
        "Count = Annotated[int, Meta(ge=-9)]",
        f"{_CONFIGURED}test_max_retries_must_be_a_whole_number_from_zero_up",
    ),
    guard(
        "what was handled is acknowledged as processed",
        _OUTCOMES,
        "            self.settle(delivery, True, metrics.PROCESSED)\n",
        "            self.settle(delivery, False, metrics.PROCESSED)\n",
        f"{_LIFECYCLE}test_started_listener_hands_the_content_to_the_service_and_acknowledges",
    ),
    guard(
        "an error that a service returns is a failure",
        "listener/service.py",
        "            return Answer.of(_awaited(self._compiled(message)))\n",
        "            return Answer(_awaited(self._compiled(message)))\n",
        f"{_ENDS}test_returned_exception_is_a_failure",
    ),
    guard(
        "a listener waits for the polling interval once nothing is due",
        "listener/in_flight.py",
        "            self._next_poll = now if news else now + pause\n",
        "            self._next_poll = now\n",
        f"{_ENDS}test_listener_drains_what_is_due_and_then_waits_for_the_polling_interval",
    ),
    guard(
        "a listener's retry interval passes",
        _OUTCOMES,
        "        self._retry(delivery, decision.delay)\n",
        "        self._retry(delivery, 0.0)\n",
        f"{_ENDS}test_retry_interval_passes_between_attempts",
    ),
    guard(
        "without a dead-letter store, what failed for good is acknowledged with failure",
        _OUTCOMES,
        "            self.settle(delivery, False, metrics.RELEASED)\n",
        "            self.settle(delivery, True, metrics.RELEASED)\n",
        f"{_ENDS}test_without_dead_letter_store_the_message_is_acknowledged_with_failure",
    ),
    guard(
        "with the drop switch, it is acknowledged with success",
        _OUTCOMES,
        "        elif config.drop_message_after_max_retries:\n",
        "        elif False:\n",
        f"{_ENDS}test_drop_switch_acknowledges_with_success",
    ),
    guard(
        "with a dead-letter store it goes there, whatever the switch says",
        _OUTCOMES,
        "        if config.dead_letter_store is not None:\n            dead",
        "        if config.dead_letter_store and not config.drop_message_after_max_retries:\n            dead",
        f"{_ENDS}test_dead_letter_store_is_used_whatever_the_switch_says",
    ),
    # -- the pipeline proposal -----------------------------------------------------------------------------------
    guard(
        "a filter that returns False drops",
        _ATTEMPT,
        "        if not returned:\n",
        "        if False:\n",
        f"{_SOURCE}test_filter_that_returns_false_drops_the_message_with_success",
    ),
    guard(
        "a filter returns a bool",
        _ATTEMPT,
        "        if type(returned) is not bool:\n",
        "        if False:\n",
        f"{_SOURCE}test_filter_that_returns_no_bool_is_a_failure_and_not_a_drop",
    ),
    guard(
        "a processor returns nothing",
        _ATTEMPT,
        "    elif returned is not None:\n",
        "    elif False:\n",
        f"{_SOURCE}test_processor_that_returns_something_is_a_failure",
    ),
    guard(
        "what a transformer returns is the content",
        _ATTEMPT,
        "        _replace_content(handler, ctx, returned)\n",
        "        pass\n",
        f"{_SOURCE}test_result_of_the_last_transformer_is_the_message_of_the_result",
    ),
    guard(
        "a processor router that returns None goes on",
        _ATTEMPT,
        "        if chosen is None:\n            return handler\n",
        "        if chosen is None:\n            continue\n",
        f"{_SOURCE}test_router_that_returns_none_goes_on_to_the_next_processor",
    ),
    guard(
        "a processor router returns a processor",
        _ATTEMPT,
        "if not isinstance(chosen, Handler) or chosen.kind not in PROCESSORS:",
        "if not isinstance(chosen, Handler):",
        f"{_SOURCE}test_router_that_returns_what_is_no_processor_is_a_failure",
    ),
    guard(
        "whatever a handler raises is a failure",
        _ATTEMPT,
        "    except BaseException as error:\n        if is_user_interrupt(error):",
        "    except Exception as error:\n        if is_user_interrupt(error):",
        "tests/unit/pipeline/test_chain_failures.py::"
        "test_base_exception_in_a_handler_fails_the_message_and_not_the_process",
    ),
    guard(
        "each attempt of a destination has its own copy",
        _ATTEMPT,
        "        trial = ctx.copy()\n",
        "        trial = ctx\n",
        "tests/unit/pipeline/test_chain_isolation.py::test_each_attempt_of_a_destination_gets_its_own_copy",
    ),
    guard(
        "a handler's content is its own",
        "pipeline/context.py",
        "self._shown_content = clone(self._content)",
        "self._shown_content = self._content",
        "tests/unit/pipeline/test_chain_isolation.py::"
        "test_content_changed_in_place_by_a_destination_is_changed_for_no_other",
    ),
    guard(
        "a False filter of a destination flow ends that destination only",
        "pipeline/flows.py",
        "            return DeliveryOutcome(self.name, FILTERED)\n",
        "            raise\n",
        f"{_DESTINATIONS}test_false_filter_of_a_destination_flow_ends_only_that_destination",
    ),
    guard(
        "a chain has a destination",
        "pipeline/flows.py",
        "if not isinstance(written, (list, tuple)) or not written:",
        "if not isinstance(written, (list, tuple)):",
        "tests/unit/pipeline/test_chain_building.py::test_chain_needs_a_destination",
    ),
    guard(
        "handlers have names of their own",
        "pipeline/chain.py",
        "        if twin is not handler:\n",
        "        if False:\n",
        "tests/unit/pipeline/test_chain_building.py::test_two_handlers_of_one_name_are_refused",
    ),
    # -- Vitess messaging ----------------------------------------------------------------------------------------
    guard(
        "a lease doubles with each delivery",
        _CLAIMS,
        "else_=last) if growing else last",
        "else_=last) if not growing else growing[0]",
        f"{_DATABASES}test_a_lease_doubles_with_each_delivery_up_to_its_cap_and_is_spread[sqlite]",
    ),
    guard(
        "what was released is leased no more, so it did not crash its consumer",
        "stores/sql/settlements.py",
        '        free = {"lock_token": None, "batch_id": None}\n',
        '        free = {"batch_id": None}\n',
        "tests/unit/stores/test_sql_store.py::test_a_message_that_is_only_released_is_never_kept_aside",
    ),
    guard(
        "what crashes its consumer is kept aside in the end",
        _CLAIMS,
        "crashes + 1 >= wanted.properties.max_deliveries",
        "crashes < 0",
        "tests/conformance/test_abilities.py::"
        "test_what_crashed_its_consumer_too_often_is_kept_aside_with_its_reason[sqlite]",
    ),
    guard(
        "what plain SQL scheduled waits for its time",
        _CLAIMS,
        "        if due == 0 and scheduled > now:\n",
        "        if False:\n",
        f"{_DATABASES}test_plain_sql_with_a_future_time_scheduled_is_delivered_when_it_is_due[sqlite]",
    ),
    guard(
        "a rate is kept",
        "invocation/rate_limit.py",
        "            taken = max(0, min(wanted, math.floor((now - self._next) * self.per_second + 1e-6)))\n",
        "            taken = wanted\n",
        f"{_DATABASES}test_claiming_keeps_to_the_rate",
        "tests/unit/stores/test_vitess_messaging.py::test_a_store_takes_messages_in_while_nobody_takes_any_out",
    ),
    guard(
        "properties that were changed reach who runs",
        _PROPERTIES,
        "time.monotonic() - self._looked > _REFRESH",
        "False",
        f"{_DATABASES}test_changed_properties_reach_a_running_consumer[sqlite]",
    ),
    guard(
        "what was acknowledged long ago is purged by itself",
        "stores/sql/paced_claims.py",
        "        if properties.purge_after and",
        "        if False and",
        f"{_DATABASES}test_acknowledged_messages_are_purged_by_themselves_after_purge_after[sqlite]",
    ),
    guard(
        "a purge counts from the acknowledgement",
        "stores/sql/queries.py",
        "        since = c.time_acked if state",
        "        since = c.time_created if state",
        "tests/unit/stores/test_vitess_messaging.py::test_purging_counts_from_the_acknowledgement",
    ),
    guard(
        "an acknowledgement in the application's transaction counts on its commit",
        "stores/sql/settlements.py",
        "            if transaction is None:\n                for now in archived:",
        "            if True:\n                for now in archived:",
        f"{_DATABASES}test_an_acknowledgement_in_a_transaction_counts_only_on_commit[sqlite]",
    ),
    guard(
        "a consumer that asks for a part of a store gets that part",
        _DUE,
        "    if share is None:\n",
        "    if True:\n",
        "tests/conformance/test_order.py::test_consumers_share_a_store_out_by_partition[sqlite]",
    ),
    # -- Service Bus ---------------------------------------------------------------------------------------------
    guard(
        "what was received and deleted cannot be settled",
        "bus/receiver.py",
        "        if self._options.mode is ReceiveMode.RECEIVE_AND_DELETE:\n            raise NotInFlight",
        "        if False:\n            raise NotInFlight",
        "tests/bus/test_errors.py::test_settling_what_was_received_and_deleted_is_refused_and_takes_nothing_else[embedded]",
    ),
    guard(
        "exponential delays double",
        "bus/options.py",
        "growth = 2.0 if",
        "growth = 1.0 if",
        "tests/bus/test_connections.py::test_retry_options_say_what_the_two_modes_do",
    ),
    guard(
        "a receiver waits as long as was said",
        "bus/receiver.py",
        "_WAIT = 60.0",
        "_WAIT = 1.0",
        "tests/unit/bus/test_differences.py::test_a_receiver_waits_sixty_seconds_for_one_or_a_batch_unless_it_is_said",
    ),
)
