"""The guards of the listener."""

from __future__ import annotations

from mutants.guard import guard

_SETTLING, _IN_FLIGHT, _RUN, _DELIVERY = (
    f"listener/{name}.py" for name in ("settlement", "in_flight", "workers", "delivery")
)
_ADVERSITY, _OUTCOMES, _LIFECYCLE = (
    f"tests/unit/listener/test_{name}.py::" for name in ("adversity", "outcomes", "lifecycle")
)
_SUPERSEDING, _TWICE, _WAITING = (
    f"tests/unit/listener/test_{name}.py::" for name in ("superseding", "one_id_twice", "waiting")
)
_WAKE_UP, _KILLED = (f"tests/unit/listener/test_{name}.py::" for name in ("wake_up", "killed"))
_POISON, _HELD, _SERVICES = (f"tests/unit/listener/test_{name}.py::" for name in ("poison", "in_flight", "services"))

GUARDS = (
    guard(
        "a listener takes messages of its own partitions only",
        "listener/workers.py",
        "self._store.claim(limit, lease=config.lease_seconds, **config.share)",
        "self._store.claim(limit, lease=config.lease_seconds)",
        "tests/unit/listener/test_config.py::"
        "test_two_listeners_share_a_store_out_by_partition[memory://shared_out?partitions=4]",
    ),
    guard(
        "a group whose settlement failed is not counted as processed",
        _SETTLING,
        "            else:\n                for delivery in deliveries:\n"
        "                    self._done(delivery, metrics.PROCESSED)\n                return\n",
        "            for delivery in deliveries:\n                self._done(delivery, metrics.PROCESSED)\n"
        "            return\n",
        f"{_SUPERSEDING}test_a_group_whose_settlement_failed_is_settled_one_by_one",
    ),
    guard(
        "there is no dead letter of a message that was taken from its handler",
        _SETTLING,
        "        if delivery.lost:\n",
        "        if delivery.lost is None:\n",
        f"{_SUPERSEDING}test_a_handler_that_fails_after_its_message_was_taken_from_it_makes_no_dead_letter",
    ),
    guard(
        "while the dead-letter store is away a message is released, never acknowledged",
        _SETTLING,
        "                self._let_go(delivery)\n            else:\n",
        "                self.settle(delivery, True, metrics.DEAD_LETTERED)\n            else:\n",
        f"{_ADVERSITY}test_message_is_released_and_never_acknowledged_while_the_dead_letter_store_is_down[switch0]",
    ),
    guard(
        "a dead letter is stored before its message is acknowledged",
        _SETTLING,
        "                self._store_dead(dead, delivery, describe(",
        "                self.settle(delivery, True, metrics.DEAD_LETTERED)\n"
        "                self._store_dead(dead, delivery, describe(",
        f"{_ADVERSITY}test_message_is_released_and_never_acknowledged_while_the_dead_letter_store_is_down[switch0]",
    ),
    guard(
        "what is left of a message is stored before the message is finished",
        _SETTLING,
        "        try:\n            # Other listeners are to wait as well.\n",
        "        self.settle(delivery, True, metrics.RETRIED if attempts else metrics.RELEASED)\n"
        "        try:\n            # Other listeners are to wait as well.\n",
        f"{_SUPERSEDING}test_a_message_is_finished_only_when_what_is_left_of_it_is_stored",
    ),
    guard(
        "a message has one dead letter, however often its consumer dies after storing it",
        _SETTLING,
        "return dead_letter_id(store, ref.name) if ref.table_id else",
        "return str(uuid.uuid4()) if ref.table_id else",
        f"{_SUPERSEDING}test_a_message_dead_lettered_by_one_who_died_then_is_one_dead_letter_in_the_end",
    ),
    guard(
        "what the dead-letter store refuses of the dead holds up no other",
        _SETTLING,
        "                    continue\n                self._store.finish_dead(",
        "                    raise\n                self._store.finish_dead(",
        "tests/unit/listener/test_killed.py::test_what_the_dead_letter_store_refuses_of_the_dead_holds_up_no_other",
    ),
    guard(
        "a message of a memory store has one dead letter, however often it comes again",
        _SETTLING,
        "if number is None or delivery.has_moved:",
        "if number is None or delivery.id:",
        f"{_OUTCOMES}test_a_message_that_comes_again_after_it_was_dead_lettered_is_one_dead_letter",
    ),
    guard(
        "two messages of one id, of two stores, have two dead letters",
        _SETTLING,
        "return dead_letter_id(store, ref.name) if ref.table_id else",
        "return written.id if ref.table_id else",
        f"{_OUTCOMES}test_two_messages_of_one_id_are_both_dead_lettered",
    ),
    guard(
        "two messages of one id, of two memory stores, have two dead letters",
        _SETTLING,
        'place = f"{self._store_name}/{delivery.id}/{number}"\n'
        '        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{place}/{delivery.stored_at}"))',
        "return str(uuid.uuid5(uuid.NAMESPACE_URL, delivery.id))",
        f"{_OUTCOMES}test_two_messages_of_one_id_of_stores_that_nothing_outlives_are_both_dead_lettered",
    ),
    guard(
        "who lost his lease has processed nothing",
        _SETTLING,
        "NotInFlightError) as error:\n            self._lost(delivery, outcome, error)\n",
        "NotInFlightError):\n            self._done(delivery, outcome)\n",
        f"{_ADVERSITY}test_handler_that_outlives_its_lease_changes_nothing_and_the_message_comes_back",
    ),
    guard(
        "an outcome that the store did not take is told again",
        _SETTLING,
        "                self._in_flight.settle_again(delivery, self._config.polling_seconds)\n",
        "                self._done(delivery, outcome)\n",
        f"{_ADVERSITY}test_outcome_is_told_again_to_a_store_that_did_not_answer_and_nothing_is_handled_twice",
    ),
    guard(
        "a message that waits for its retry in a session keeps its place",
        _SETTLING,
        "if RESCHEDULE not in features or (in_session and SESSIONS in features):",
        "if RESCHEDULE not in features:",
        f"{_WAITING}test_message_of_a_session_keeps_its_place",
    ),
    guard(
        "after an immediate stop nothing is settled",
        _IN_FLIGHT,
        "allowed = self._phase != STOPPED",
        "allowed = True",
        f"{_LIFECYCLE}test_immediate_stop_acknowledges_nothing_that_is_in_flight",
    ),
    guard(
        "two messages of one id are not taken for one",
        _IN_FLIGHT,
        "return message.id, message.lock_token if message.sequence_number is None else message.sequence_number",
        "return message.id, None",
        f"{_TWICE}test_the_second_message_of_an_id_is_handled_and_not_taken_for_the_first",
    ),
    guard(
        "a message that comes back while it is handled is settled under its new lease",
        _IN_FLIGHT,
        "held.message, news = message, True",
        "news = True",
        f"{_ADVERSITY}test_message_that_comes_back_while_it_is_handled_is_not_handled_twice",
    ),
    guard(
        "what is retrieved too late is given back",
        _IN_FLIGHT,
        "return self._part(fresh) if self._phase == RUNNING else ([], fresh)",
        "return self._part(fresh) if self._phase == RUNNING else ([], [])",
        f"{_LIFECYCLE}test_message_that_is_retrieved_too_late_is_given_back_and_not_handled",
    ),
    guard(
        "what the listener does not hold any more is not handed out",
        _IN_FLIGHT,
        "            if following.lost:\n                continue\n",
        "",
        f"{_HELD}test_what_is_no_longer_held_is_not_handed_out",
    ),
    guard(
        "what may have killed its last consumer is handled alone",
        _IN_FLIGHT,
        "        for delivery in suspects[1:]:\n"
        "            self._redeliveries[delivery.id] = Redelivery(0.0, delivery.attempts, isolated=True)\n"
        "        return suspects[:1], suspects[1:]\n",
        "        return suspects, []\n",
        f"{_POISON}test_what_came_back_by_itself_is_handled_alone_and_its_like_wait_in_the_store",
    ),
    guard(
        "a lease is renewed while its handler runs",
        "listener/leases.py",
        "            self._store.renew(delivery.message, self._lease)\n",
        "            assert delivery\n",
        f"{_ADVERSITY}test_lease_is_renewed_for_as_long_as_the_handler_runs",
    ),
    guard(
        "what lost its lease in its handler is asked about again, and let go of when the handler has failed",
        _RUN,
        "        elif not delivery.lost:\n            self._leases.keep(delivery)\n",
        "",
        f"{_ADVERSITY}test_what_lost_its_lease_in_a_handler_that_then_failed_is_not_handled_here_again",
    ),
    guard(
        "only what was handled well is acknowledged",
        _RUN,
        "for delivery, answer in ended if answer.error is None])",
        "for delivery, answer in ended])",
        f"{_SERVICES}test_only_the_failed_messages_of_a_batch_are_tried_again_and_dead_lettered",
    ),
    guard(
        "a batch that failed without a word about which message is taken one by one",
        _RUN,
        "            delivery.take_back_attempt()\n            self._outcomes.keep(delivery, 0.0)\n",
        "            self._outcomes.settle(delivery, True, metrics.PROCESSED)\n",
        f"{_SERVICES}test_batch_that_fails_without_saying_which_is_handed_over_one_by_one",
    ),
    guard(
        "each attempt has a copy of the content of its own",
        _DELIVERY,
        '"content": clone(self.content)',
        '"content": self.content',
        f"{_OUTCOMES}test_each_attempt_gets_its_own_copy_of_the_content",
    ),
    guard(
        "a store is not its own dead-letter store",
        "listener/store_listener.py",
        "if self._config.dead_letter_store is listened:",
        "if self._config.dead_letter_store is self:",
        "tests/unit/listener/test_config.py::test_store_cannot_be_its_own_dead_letter_store",
    ),
    guard(
        "a store that had nothing wakes the listener when it has",
        _RUN,
        "            self._waker.listen()\n",
        "            pass\n",
        f"{_WAKE_UP}test_message_of_a_memory_store_is_handled_when_it_is_stored",
    ),
    guard(
        "a store that wakes in vain, or is away, does not make the listener run hot",
        "listener/wake_up.py",
        "            if self._in_vain:\n",
        "            if self._in_vain < 0:\n",
        f"{_WAKE_UP}test_store_that_is_mistaken_or_away_does_not_make_the_listener_run_hot",
    ),
    guard(
        "a listener that was stopped is not woken any more",
        "listener/wake_up.py",
        "if has_come and not self._is_ended:",
        "if has_come:",
        f"{_WAKE_UP}test_a_waker_that_was_stopped_wakes_no_more",
    ),
    guard(
        "what is committed just before the listening begins wakes the listener",
        "stores/sql/notify.py",
        "                    continue  # with another look, so that nothing falls in between\n",
        "",
        f"{_WAKE_UP}test_message_that_is_committed_just_before_the_listening_begins_is_handled",
    ),
    guard(
        "who is woken by the database and was cut off listens again",
        "stores/sql/notify.py",
        "            self._listen()  # and what was said meanwhile is seen by the look that follows\n",
        "            time.sleep(seconds)\n",
        f"{_WAKE_UP}test_listener_whose_connection_was_cut_listens_again",
    ),
    guard(
        "nothing wakes a connection that nobody reads",
        "stores/sql/notify.py",
        "UNLISTEN *",
        "LISTEN again",
        f"{_WAKE_UP}test_idle_connection_hears_nothing_that_nobody_reads",
    ),
    guard(
        "what its store gives up comes to the dead-letter store that a listener was given",
        _RUN,
        "            self._outcomes.bring_dead()\n",
        "            pass\n",
        f"{_KILLED}test_what_a_store_gives_up_is_brought_to_the_dead_letter_store[sql]",
    ),
    guard(
        "what its store gave up is finished only when its dead letter is there",
        _SETTLING,
        "                try:\n                    self._store_dead(dead, Delivery(message), error)\n",
        "                try:\n                    self._store.finish_dead([message.id])\n"
        "                    self._store_dead(dead, Delivery(message), error)\n",
        f"{_KILLED}test_a_dead_letter_store_that_is_down_leaves_what_is_dead_where_it_is",
    ),
    guard(
        "what waits for a retry in a SQL store is in nobody's hand",
        _SETTLING,
        "            self._store.rest(delivery.message, resting=True)\n",
        "            pass\n",
        f"{_KILLED}test_what_is_given_back_while_it_waits_is_forgiven_nothing",
    ),
    guard(
        "the store knows that a message is in a handler's hand before it is",
        _SETTLING,
        "        if not delivery.is_resting:\n            return True\n",
        "        if delivery:\n            return True\n",
        f"{_KILLED}test_an_attempt_waits_while_the_store_cannot_be_told_of_it",
    ),
    guard(
        "what was forgiven in advance is not forgiven twice",
        _SETTLING,
        "            with suppress(Exception):\n                self._store.rest(delivery.message, resting=False)\n",
        "",
        f"{_KILLED}test_what_is_given_back_while_it_waits_is_forgiven_nothing",
    ),
)
