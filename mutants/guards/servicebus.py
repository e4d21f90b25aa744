"""The guards of the Service Bus store."""

from __future__ import annotations

from mutants.guard import guard

_STORE = "stores/servicebus/store.py"
_OWN = "tests/servicebus/test_store.py::"
_VERBS = "tests/conformance/test_verbs.py::"

GUARDS = (
    guard(
        "a store that was closed and is used again keeps its leases",
        _STORE,
        "        leases, self._leases = self._leases, self._new_leases()",
        "        leases = self._leases",
        f"{_OWN}test_a_store_that_was_closed_and_is_used_again_keeps_its_leases",
    ),
    guard(
        "a lease that ran out here settles nothing",
        _STORE,
        "if held is not None and held.deadline > time.monotonic():",
        "if held is not None:",
        f"{_OWN}test_a_lease_that_ran_out_is_lost_before_anybody_has_looked",
    ),
    guard(
        "a lock lost at the service is a lost lease, and the message is let go of",
        _STORE,
        "        except LeaseLostError:\n            self._lose([token])\n            raise\n",
        "        except LeaseLostError:\n            self._lose([token])\n",
        f"{_OWN}test_a_lock_lost_at_the_service_is_never_a_silent_success",
    ),
    guard(
        "a lock is kept for as long as the lease lasts",
        _STORE,
        "                    return sdk.seconds_until(self._receiver().renew_message_lock(held.received))\n",
        "                    return sdk.seconds_until(held.received.locked_until_utc)\n",
        f"{_OWN}test_a_lease_longer_than_the_lock_is_kept_by_renewing_it",
    ),
    guard(
        "what is held for longer than its lease is given back",
        _STORE,
        "            if self._held.get(token) is held and held.deadline <= time.monotonic():\n",
        "            if self._held.get(token) is held and held.deadline <= 0:\n",
        f"{_OWN}test_a_lease_shorter_than_the_lock_ends_with_the_message_given_back",
    ),
    guard(
        "what cannot be decoded is a dead letter",
        _STORE,
        "            self._dead_letter(LockedMessage(received, message, 0.0), contract.UNREADABLE, str(error))\n",
        "            assert message\n",
        f"{_OWN}test_what_cannot_be_decoded_is_a_dead_letter_and_holds_up_nothing",
    ),
    guard(
        "what was handed out too often is a dead letter",
        _STORE,
        "if limit and message.delivery_count > limit:",
        "if limit and message.delivery_count > 10**9:",
        f"{_OWN}test_what_is_handed_out_too_often_is_a_dead_letter_of_the_stores",
    ),
    guard(
        "what is postponed is stored for later before it is finished",
        _STORE,
        "            self._send([envelope.pack_again(held.message, due, attempts)])\n"
        '            with self._settling("finish", held):\n'
        "                self._receiver().complete_message(held.received)\n",
        '            with self._settling("finish", held):\n'
        "                self._receiver().complete_message(held.received)\n"
        "            self._send([envelope.pack_again(held.message, due, attempts)])\n",
        f"{_OWN}test_a_message_is_finished_only_when_its_postponed_copy_is_there",
    ),
    guard(
        "what is postponed is no duplicate to its queue",
        "stores/servicebus/envelope.py",
        "message, id=new_id(), headers=",
        "message, headers=",
        f"{_OWN}test_what_is_postponed_comes_when_it_is_due_with_its_attempts_and_is_no_crash[600.0]",
    ),
    guard(
        "what is postponed in a subscription does not go to the others",
        _STORE,
        "        if self._options.subscription is not None:\n            return False",
        "        if self._options.subscription is None:\n            pass",
        f"{_OWN}test_a_subscription_cannot_postpone_since_its_topic_has_others",
    ),
    guard(
        "what is released comes again",
        _STORE,
        "(receiver.complete_message if success else receiver.abandon_message)(held.received)",
        "receiver.complete_message(held.received)",
        f"{_VERBS}test_a_released_message_can_be_retrieved_again_at_once[servicebus]",
    ),
)
