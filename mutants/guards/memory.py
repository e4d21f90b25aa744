"""The guards of the memory store."""

from __future__ import annotations

from mutants.guard import guard

_STORE, _INDEX = "stores/memory/store.py", "stores/memory/index.py"
_ABILITIES, _CRASHES, _VERBS = (f"tests/conformance/test_{name}.py::" for name in ("abilities", "crashes", "verbs"))
_OWN, _WINDOW = "tests/unit/stores/test_memory_store.py::", "tests/unit/stores/test_duplicate_window.py::"

GUARDS = (
    guard(
        "who holds a message by an older token settles nothing",
        _STORE,
        "if entry.lock_token != token or entry.state != LEASED:",
        "if entry.state != LEASED:",
        f"{_CRASHES}test_a_lease_lost_before_acknowledge_changes_nothing[memory]",
    ),
    guard(
        "a lease that ran out settles nothing, though nobody else has taken the message",
        _STORE,
        "if entry.lock_token != token or entry.state != LEASED:",
        "if entry.lock_token != token:",
        f"{_OWN}test_a_lease_that_ran_out_settles_nothing_although_nobody_took_over",
    ),
    guard(
        "settling many is all or none",
        _STORE,
        "            held = [self._held(*self._claimed_as(message)) for message in messages]\n",
        "            held: list[Any] = []\n"
        "            for message, outcome in zip(messages, outcomes, strict=True):\n"
        "                self._settle_one(self._held(*self._claimed_as(message)), outcome, now)\n",
        "tests/conformance/test_claims.py::test_settling_many_is_all_or_none[memory]",
    ),
    guard(
        "one message given twice is settled by neither",
        _STORE,
        "if len(set(map(id, held))) < len(held):",
        "if not held and messages:",
        f"{_OWN}test_a_message_given_twice_is_not_settled",
    ),
    guard(
        "a batch is renewed by the token it is held under",
        _STORE,
        "entries = [entry for entry in batch if entry.lock_token == held.lock_token]",
        "entries = batch",
        f"{_OWN}test_a_batch_that_another_holds_by_now_is_not_renewed",
    ),
    guard(
        "a message is renewed by the token it is held under",
        _STORE,
        "entries = [self._held(message.id, message.lock_token) for message in messages]",
        "entries = [self._index.entries[message.id] for message in messages]",
        "tests/conformance/test_claims.py::test_renewing_keeps_a_lease_and_fails_once_it_is_lost[memory]",
    ),
    guard(
        "what is due already is not cancelled",
        _STORE,
        "if entry is None or entry.state != SCHEDULED or entry.deliveries:",
        "if entry is None or entry.deliveries:",
        f"{_ABILITIES}test_a_scheduled_message_can_be_cancelled_until_it_is_due[memory]",
    ),
    guard(
        "what was handed out before is not cancelled",
        _STORE,
        "if entry is None or entry.state != SCHEDULED or entry.deliveries:",
        "if entry is None or entry.state != SCHEDULED:",
        f"{_ABILITIES}test_a_message_that_was_handed_out_before_cannot_be_cancelled[memory]",
    ),
    guard(
        "deferring is fenced by the lease",
        _STORE,
        "            entry = self._held(*self._claimed_as(message))\n            self._index.leave_batch(entry)\n",
        "            entry = self._index.entries[self._claimed_as(message)[0]]\n"
        "            self._index.leave_batch(entry)\n",
        f"{_ABILITIES}test_every_other_end_is_fenced_by_the_lease_too[memory]",
    ),
    guard(
        "dead-lettering is fenced by the lease",
        _STORE,
        "            entry = self._held(*self._claimed_as(message))\n            self._index.dead_letter(",
        "            entry = self._index.entries[self._claimed_as(message)[0]]\n            self._index.dead_letter(",
        f"{_ABILITIES}test_every_other_end_is_fenced_by_the_lease_too[memory]",
    ),
    guard(
        "what somebody holds, and what is finished, is not rescheduled",
        _STORE,
        "if entry.state in (AVAILABLE, SCHEDULED)]",
        "if entry.state]",
        f"{_ABILITIES}test_rescheduling_brings_a_message_forward_and_leaves_held_ones_alone[memory]",
    ),
    guard(
        "purging dead letters removes nothing else",
        _STORE,
        "if entry.state == DEAD and entry.time_settled <= before]",
        "if entry.time_settled <= before]",
        f"{_ABILITIES}test_purging_dead_letters_leaves_everything_else[memory]",
    ),
    guard(
        "an id is stored once",
        _STORE,
        "if not self._knows(message.id, now):",
        "if self._knows(message.id, now) is not None:",
        f"{_VERBS}test_an_id_is_stored_once[memory]",
    ),
    guard(
        "an id does not come again while its message is unfinished",
        _STORE,
        "or entry.state != ACKNOWLEDGED or",
        "or",
        f"{_OWN}test_an_id_does_not_come_again_after_the_window_while_its_message_is_unfinished",
    ),
    guard(
        "an id is known for as long as its window lasts",
        _STORE,
        "self._index.forget_settled(now - _span(self._options.kept_for))",
        "self._index.forget_settled(now - _span(self._options.purge_after))",
        f"{_WINDOW}test_a_memory_store_forgets_nothing_within_the_window",
    ),
    guard(
        "what is stored is nobody's to change",
        _STORE,
        "headers=_copied_headers(entry.message),",
        "headers=entry.message.headers,",
        f"{_OWN}test_nobody_can_change_what_is_stored",
    ),
    guard(
        "a batch claimed again keeps the lease it has",
        _STORE,
        "token = live.pop() if len(live) == 1 else None",
        "token = None",
        "tests/conformance/test_claims.py::test_claiming_again_with_the_same_batch_id_returns_the_same_batch[memory]",
    ),
    guard(
        "a lease that ran out counts as a crash",
        _INDEX,
        "entry.crashes += 1",
        "entry.crashes += 0",
        f"{_ABILITIES}test_what_crashed_its_consumer_too_often_is_kept_aside_with_its_reason[memory]",
    ),
    guard(
        "a batch does not get back what others took when its lease had run out",
        _INDEX,
        "        self.leave_batch(entry)\n        entry.batch_id = batch_id\n",
        "        entry.batch_id = batch_id\n",
        "tests/conformance/test_claims.py::test_a_batch_whose_lease_ran_out_does_not_get_back_what_others_hold[memory]",
    ),
    guard(
        "a batch claimed again has only what is not finished",
        _INDEX,
        "if entry.state in (LEASED, AVAILABLE)]",
        "if entry.state]",
        "tests/conformance/test_claims.py::test_claiming_again_with_the_same_batch_id_returns_the_same_batch[memory]",
    ),
    guard(
        "only the first of a session goes",
        _INDEX,
        "return entry.session_id is None or self._sessions",
        "return True or self._sessions",
        "tests/conformance/test_order.py::test_a_session_is_delivered_one_at_a_time_in_order[memory]",
    ),
    guard(
        "a session of which somebody holds a message is nobody else's",
        _INDEX,
        "            if entry.state == LEASED:\n                return []\n",
        "            if entry.state == LEASED:\n                continue\n",
        "tests/conformance/test_order.py::test_a_session_claimed_by_its_id_comes_whole_and_in_order_to_one_consumer[memory]",
    ),
    guard(
        "what a heap says of an earlier state is stale",
        _INDEX,
        "            if entry.stamp == stamp:\n                yield entry\n",
        "            yield entry\n",
        "tests/conformance/test_claims.py::test_renewing_keeps_a_lease_and_fails_once_it_is_lost[memory]",
    ),
)
