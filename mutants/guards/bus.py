"""The guards of the bus."""

from __future__ import annotations

from mutants.guard import guard

_RECEIVING, _BROKER, _CATALOG = (f"bus/embedded/{name}.py" for name in ("receiver", "broker", "catalog"))
_EMBEDDED, _MESSAGES, _TOPICS = (f"tests/bus/test_{name}.py::" for name in ("embedded", "messages", "topics"))
_ERRORS, _LISTENER = (f"tests/bus/test_{name}.py::" for name in ("errors", "listener"))

GUARDS = (
    guard(
        "what is received and deleted is deleted",
        _RECEIVING,
        "                self._store(entry).settle(kept)\n",
        "",
        f"{_ERRORS}test_what_was_received_and_deleted_does_not_come_again_when_its_lock_would_have_ended[embedded]",
    ),
    guard(
        "a deferred message that is received and deleted is deleted",
        _RECEIVING,
        "            store.settle(messages)\n",
        "",
        f"{_ERRORS}test_what_was_received_and_deleted_does_not_come_again_when_its_lock_would_have_ended[embedded]",
    ),
    guard(
        "what was handed out as often as it may be is a dead letter",
        _RECEIVING,
        "        if self._dead or message.delivery_count <= allowed:\n",
        "        if allowed:\n",
        f"{_MESSAGES}test_a_message_whose_receivers_never_settle_it_is_a_dead_letter[embedded]",
    ),
    guard(
        "who lost the lock on a session receives nothing of it",
        _RECEIVING,
        "        if not self._broker.catalog.keep(entry.store, key, self._me, _lock_duration(entry)):\n",
        "        if self._broker.catalog.keep(entry.store, key, self._me, _lock_duration(entry)) is None:\n",
        f"{_EMBEDDED}test_who_lost_a_session_receives_nothing_more_of_it",
    ),
    guard(
        "a session is held by one receiver at a time",
        _CATALOG,
        "free = (self._holds.c.owner == owner) | (self._holds.c.time_expires <= now)",
        "free = self._holds.c.time_expires > 0",
        f"{_TOPICS}test_a_session_is_received_in_order_by_whoever_holds_it[embedded]",
    ),
    guard(
        "only the holder keeps a session",
        _CATALOG,
        "(c.what == what) & (c.owner == owner) & (c.time_expires > now)",
        "(c.what == what)",
        f"{_EMBEDDED}test_who_lost_a_session_receives_nothing_more_of_it",
    ),
    guard(
        "only the holder lets a session go",
        _CATALOG,
        "where(c.store == store, c.what == what, c.owner == owner)",
        "where(c.store == store, c.what == what)",
        f"{_TOPICS}test_who_lost_a_session_does_not_let_it_go_for_its_holder[embedded]",
    ),
    guard(
        "what goes to many is stored for all of them or for none",
        _BROKER,
        # Each copy in a transaction of its own. Outside of any it would wait for SQLite's one writer, itself.
        "            for goes_to, kept in copies:\n                goes_to.store_many([kept], transaction=connection)\n"
        "            store.settle(batch, transaction=connection)\n",
        "            store.settle(batch, transaction=connection)\n\n"
        "        for goes_to, kept in copies:\n"
        "            self.transact(lambda each, to=goes_to, one=kept: to.store_many([one], transaction=each))\n",
        f"{_EMBEDDED}test_a_fan_out_that_breaks_half_way_reaches_nobody_and_then_everybody",
    ),
    guard(
        "what is passed on is finished with its copies, and not before",
        _BROKER,
        "        self.transact(work)\n        return {place.store",
        "        store.settle(batch)\n        self.transact(lambda connection: [\n"
        "            goes_to.store_many([kept], transaction=connection) for goes_to, kept in copies\n"
        "        ])\n        return {place.store",
        f"{_EMBEDDED}test_a_fan_out_that_breaks_half_way_reaches_nobody_and_then_everybody",
    ),
    guard(
        "what could not be passed on is tried again at once",
        _BROKER,
        "                    store.settle(batch, success=False)  # available again",
        "                    assert batch  # available again",
        f"{_EMBEDDED}test_a_fan_out_that_breaks_half_way_reaches_nobody_and_then_everybody",
    ),
    guard(
        "what this process does not hold any more is not moved to the dead letters",
        _BROKER,
        "            store.acknowledge(held, transaction=connection)\n",
        "",
        f"{_EMBEDDED}test_a_dead_letter_whose_lock_is_lost_is_not_moved",
    ),
    guard(
        "what a store found to be dead is finished only when its copy is there",
        _BROKER,
        "            dead.store_many(letters)\n",
        "            store.finish_dead([kept.id for kept in found])\n            dead.store_many(letters)\n",
        f"{_EMBEDDED}test_collecting_the_dead_that_breaks_half_way_is_completed_by_the_next[store_many]",
    ),
    guard(
        "a dead letter that is collected twice is one",
        _BROKER,
        'return rows.to_store(letter, f"{kept.sequence_number}:{kept.id}", in_session=False, expires=False)',
        "return rows.to_store(letter, new_id(), in_session=False, expires=False)",
        f"{_EMBEDDED}test_collecting_the_dead_that_breaks_half_way_is_completed_by_the_next[finish_dead]",
    ),
    guard(
        "a duplicate within the window is taken once",
        _BROKER,
        "                if age <= _window(entry):\n",
        "                if age < 0:\n",
        f"{_MESSAGES}test_a_duplicate_within_the_window_is_taken_once[embedded]",
    ),
    guard(
        "an id that waits for longer than its window refuses no other message",
        _BROKER,
        "usable = [one for one in ids if one not in found or found[one].state == m.ACKNOWLEDGED]",
        "usable = ids",
        f"{_EMBEDDED}test_a_message_id_comes_again_when_its_window_is_over",
    ),
    guard(
        "what was sent is not sent again because it could not be passed on yet",
        "bus/embedded/sender.py",
        "        except HomingError as error:\n",
        "        except ZeroDivisionError as error:\n",
        f"{_EMBEDDED}test_a_fan_out_that_breaks_half_way_reaches_nobody_and_then_everybody",
    ),
    guard(
        "a message whose service failed is not completed",
        "bus/listener.py",
        "            self._settle(caller, caller.abandon)\n",
        "            self._settle(caller, caller.complete)\n",
        f"{_LISTENER}test_messages_are_completed_and_failing_ones_become_dead_letters[embedded]",
    ),
    guard(
        "after an immediate stop nothing is settled",
        "bus/listener.py",
        "        if caller.settled or self._is_stopped.is_set():\n",
        "        if caller.settled:\n",
        f"{_LISTENER}test_an_immediate_stop_settles_nothing[embedded]",
    ),
    guard(
        "a lock is renewed while the work goes on",
        "lease_renewer.py",
        "            lasts = lease.renew()\n",
        "            lasts = lease.every\n",
        f"{_MESSAGES}test_a_lock_is_renewed_while_the_work_goes_on[embedded]",
    ),
    guard(
        "a lease whose time starts anew just as it ends is kept",
        "lease_renewer.py",
        "            if self._leases.get(key) is not lease or not is_ended:\n",
        "            if self._leases.get(key) is not lease:\n",
        "tests/unit/test_lease_renewer.py::test_a_lease_whose_time_started_anew_just_as_it_ended_is_kept",
    ),
    guard(
        "of two forked receivers each is another one",
        "ids.py",
        "    _random.seed()\n",
        "    assert _random\n",
        "tests/bus/test_forks.py::test_of_two_children_only_one_gets_the_session_that_both_ask_for[embedded]",
    ),
    guard(
        "a body that does not fit is abandoned, and not completed",
        "bus/receiver.py",
        "            self.abandon(message)\n",
        "            self.complete(message)\n",
        f"{_MESSAGES}test_a_body_that_does_not_fit_stays_and_is_a_dead_letter_in_the_end[embedded]",
    ),
    guard(
        "a removal that the service has not confirmed is none",
        "bus/azure/receiver.py",
        "                break\n            deleted.append(message)\n",
        "            deleted.append(message)\n",
        f"{_MESSAGES}test_what_was_deleted_before_the_service_failed_is_handed_out",
    ),
)
