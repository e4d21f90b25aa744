"""The guards of the protocol of a run: claim, settle, replay, dead-letter, audit, intake."""

from __future__ import annotations

from mutants.guard import guard

_SETTLING, _HOLDING, _BATCH, _BOOKS = (
    f"delivery/{name}.py" for name in ("settlement", "leased_part", "batch", "audit")
)
_INTAKE, _SUSPECTS, _REPLAYING, _RECORDS = (
    f"delivery/{name}.py" for name in ("intake", "crash_tracking", "local_replay", "records")
)
_GIVING_UP = "delivery/dead_letter.py"
_WORKERS = "tests/unit/pipeline/test_workers.py::"

_BATCHES, _MOVES, _AGAIN, _CRASHES = (
    f"tests/unit/delivery/test_{name}.py::" for name in ("batch", "dead_moves", "ids_again", "crashes")
)
_BY_HAND, _AUDIT = "tests/unit/delivery/test_by_hand.py::", "tests/unit/delivery/test_books.py::"
_SESSIONS = "tests/unit/delivery/test_sessions.py::"
_TAKEN_IN, _NEIGHBOURS = "tests/intake/test_intake.py::", "tests/intake/test_bad_neighbours.py::"

_REFUSED = (
    "tests/unit/delivery/test_refused_copies.py::"
    "test_a_dead_letter_that_its_store_refuses_is_released_and_the_others_are_dead_lettered"
)

GUARDS = (
    guard(
        "an error that says anything keeps no message from being dead-lettered",
        "row.py",
        'return None if text is None else text.replace("\\0", "\\N{REPLACEMENT CHARACTER}")',
        "return text",
        "tests/unit/delivery/test_odd_errors.py::"
        "test_an_error_whose_text_holds_a_nul_keeps_no_message_from_being_dead_lettered[postgresql]",
    ),
    # -- settling ----------------------------------------------------------------------------------------------
    guard(
        "what an interrupt leaves behind begins with nothing that would not be recorded",
        "delivery/recorder.py",
        '        self._break(self._error or LeaseLostError(f"the step of batch {self._fence.run_id} has ended"))\n',
        "",
        "tests/unit/delivery/test_by_hand.py::"
        "test_what_an_interrupt_leaves_behind_begins_with_nothing_that_would_not_be_recorded",
    ),
    guard(
        "what failed is copied before it is acknowledged",
        _SETTLING,
        "            there = self._copy(small, to)\n            self._finish(held, there)\n",
        "            self._finish(held, small.keys())\n            there = self._copy(small, to)\n",
        f"{_BATCHES}test_a_settlement_that_dies_half_way_is_completed_by_the_next[sqlite-before the copy]",
    ),
    guard(
        "the record of a failure has the session of its message, which waits for it",
        _RECORDS,
        'session_id=text_of(row["session_id"])',
        "session_id=None",
        f"{_SESSIONS}test_who_is_killed_between_copy_and_acknowledgement_lets_nothing_overtake[sqlite]",
    ),
    guard(
        "a session that no record can have holds up no settlement",
        _RECORDS,
        'session_id=text_of(row["session_id"])',
        'session_id=row["session_id"]',
        f"{_SESSIONS}test_a_session_that_only_sqlite_takes_holds_up_no_batch[long]",
    ),
    guard(
        "a dead letter is of no session",
        _RECORDS,
        "    return to_dead_letter(_record(row, entries, chain, batch_id, copies), store)",
        "    letter = to_dead_letter(_record(row, entries, chain, batch_id, copies), store)\n"
        "    return replace(letter, session_id=text_of(row['session_id']))",
        f"{_SESSIONS}test_a_dead_letter_that_somebody_replays_holds_up_no_session[sqlite]",
    ),
    guard(
        "a copy that its store refuses holds up no other of its portion",
        _SETTLING,
        "        return _store(copies[:half], to) | _store(copies[half:], to)\n",
        "        raise\n",
        *(f"{_REFUSED}[{database}]" for database in ("sqlite", "postgresql", "mariadb")),
    ),
    guard(
        "a copy that its store refuses alone does not stop the settlement",
        _SETTLING,
        "        if len(copies) == 1:\n",
        "        if len(copies) == 1:\n            raise\n",
        f"{_REFUSED}[sqlite]",
    ),
    guard(
        "a store that lacks its table is not asked for each message alone, nor said to have refused one",
        _SETTLING,
        "    except _NO_MESSAGES_FAULT:\n        raise\n",
        "",
        "tests/unit/delivery/test_refused_copies.py::test_a_store_without_its_table_refuses_no_single_message[sqlite]",
    ),
    guard(
        "a copy that its store did not keep is noticed",
        _SETTLING,
        "return copies.keys() - missing",
        "return set(copies)",
        f"{_MOVES}test_what_a_dead_letter_store_has_no_room_for_is_not_finished[sqlite]",
    ),
    guard(
        "only what is complete is acknowledged",
        _SETTLING,
        "self._finish(held, [message.row_id for message in found.complete])\n            gone",
        "self._finish(held, [message.row_id for message in (*found.complete, *found.untouched)])\n            gone",
        f"{_BATCHES}test_a_message_nobody_got_to_is_released_and_claimed_again[sqlite]",
    ),
    guard(
        "what could not be moved is released, not acknowledged",
        _SETTLING,
        "held.store.settle_batch(held.lease, kept, success=False)",
        "held.store.settle_batch(held.lease, kept)",
        f"{_BATCHES}test_a_message_nobody_got_to_is_released_and_claimed_again[sqlite]",
    ),
    guard(
        "a message is complete when every destination is done",
        _SETTLING,
        "return bool(flows) and all(",
        "return bool(flows) and any(",
        f"{_BATCHES}test_a_message_with_one_destination_left_is_not_acknowledged[sqlite]",
    ),
    guard(
        "who names no destinations knows of no message that it is complete",
        _SETTLING,
        "return bool(flows) and all(",
        "return all(",
        "tests/unit/airflow_parts/test_reconciling.py::"
        "test_a_chain_that_cannot_be_imported_proves_nothing_complete_and_strands_nothing",
    ),
    guard(
        "a source flow that went well delivers nothing by itself",
        _SETTLING,
        "_COMPLETE = DONE_STATES - {PROCESSED}",
        "_COMPLETE = DONE_STATES",
        f"{_BATCHES}test_a_source_flow_that_succeeded_completes_no_message[sqlite-flows1]",
    ),
    guard(
        "a replay dead-letters what failed in it, and not what was merely there",
        _SETTLING,
        "if not tried or self._failed_here(found.entries[message.row_id])]",
        "]",
        f"{_BATCHES}test_an_outage_is_not_a_poison_message[sqlite]",
    ),
    guard(
        "a task that still runs when its batch is settled may record no more",
        _SETTLING,
        "        self._stores.ledger.close_steps(self._holding.run_id)\n",
        "",
        f"{_BATCHES}test_settling_ends_the_turn_of_every_task_that_still_runs[sqlite]",
    ),
    guard(
        "the message in hand of a step that died has failed",
        _SETTLING,
        "crashed = self._take_over()",
        "crashed: list[Fence] = []",
        f"{_CRASHES}test_the_message_in_hand_of_a_job_that_died_has_failed_and_the_others_are_released[sqlite]",
    ),
    guard(
        "where nobody knows which message it was, a crash is counted for each",
        _SETTLING,
        "held.store.count_crash(held.lease, [message.row_id for message in died])",
        "assert died is not None",
        f"{_CRASHES}test_where_nobody_knows_which_message_it_was_a_crash_is_counted_for_each_that_is_not_done[sqlite]",
    ),
    guard(
        "a settlement that is done again does not count a death again",
        _SETTLING,
        "            self._stores.ledger.close_step(fence)\n",
        "            assert fence\n",
        f"{_CRASHES}test_a_settlement_that_is_done_again_counts_no_death_twice[sqlite-nobody knows]",
    ),
    guard(
        "a settlement that is done again blames nobody for what the one in hand did",
        _SETTLING,
        "                ledger.close_step(fence)  # or",
        "                assert fence  # or",
        f"{_CRASHES}test_a_settlement_that_is_done_again_counts_no_death_twice[sqlite-one in hand]",
    ),
    guard(
        "a part that was in hand is suspected, and no other",
        _SETTLING,
        "any(span is None or span.covers(message.row_id, message.message_id) for span in spans)",
        "any(span is None or span for span in spans)",
        f"{_CRASHES}test_of_a_part_that_was_in_hand_only_its_messages_are_suspected[sqlite]",
    ),
    guard(
        "what is there at too many deaths has failed",
        _SETTLING,
        "if message.crashes + 1 >= most]",
        "if message.crashes + 1 >= most + 10**6]",
        f"{_CRASHES}test_a_message_that_was_there_at_too_many_deaths_has_failed[sqlite]",
    ),
    # -- what a store gave up ----------------------------------------------------------------------------------
    guard(
        "what a store gave up is finished only when its dead letter is there",
        _SETTLING,
        "there = self._copy(letters, self._stores.dead_letters)",
        "store.finish_dead(open_ids), (there := self._copy(letters, self._stores.dead_letters))",
        f"{_MOVES}test_moving_the_dead_that_dies_half_way_is_completed_by_the_next[sqlite-before the copy]",
    ),
    guard(
        "what the dead-letter store has no room for is not finished",
        _SETTLING,
        "finished = [*there, *(",
        "finished = [*letters, *(",
        f"{_MOVES}test_what_a_dead_letter_store_has_no_room_for_is_not_finished[sqlite]",
    ),
    guard(
        "what a store gave up is recorded as failed, so that a replay finds it",
        _SETTLING,
        "self._record_as_failed([rows[message.row_id] for message in found.untouched], copies)",
        "assert rows is not None",
        f"{_MOVES}test_what_a_store_gave_up_is_found_by_a_replay_of_its_batch[sqlite]",
    ),
    # -- holding, claiming -------------------------------------------------------------------------------------
    guard(
        "a store that is away is not taken for one that holds nothing",
        _HOLDING,
        "            if store is not self.stores.dead_letters:\n                raise\n",
        "",
        f"{_MOVES}test_a_store_that_is_away_is_not_taken_for_one_that_holds_nothing[sqlite]",
    ),
    guard(
        "a dead-letter store that is away holds up nothing else",
        _HOLDING,
        "            if store is not self.stores.dead_letters:\n                raise\n",
        "            raise\n",
        f"{_BATCHES}test_a_dead_letter_store_that_is_away_does_not_hold_up_good_messages[sqlite]",
    ),
    guard(
        "a run that has messages of its own claims no new ones",
        _BATCH,
        "        if self.is_known():\n",
        "        if self.is_known() is None:\n",
        f"{_BATCHES}test_a_cleared_first_pass_finds_its_own_failures_and_dead_letters_and_no_new_messages[sqlite]",
    ),
    guard(
        "what a settlement that died has copied is finished, and not done twice",
        _SETTLING,
        "moved = {message.row_id for message in messages if message.ref in there}",
        "moved = {message.row_id for message in messages if message.ref in there and not messages}",
        f"{_BATCHES}test_a_run_cleared_after_a_settlement_that_died_holds_each_message_once[sqlite]",
    ),
    guard(
        "a claim does not depend on where the dead are moved to",
        _BATCH,
        '        except HomingError as error:\n            log.warning("the dead messages',
        '        except ZeroDivisionError as error:\n            log.warning("the dead messages',
        f"{_BATCHES}test_a_claim_does_not_depend_on_where_the_dead_are_moved_to[sqlite]",
    ),
    guard(
        "messages that were there at a crash are taken one at a time",
        _BATCH,
        'Condition("crashes", ">", 0)',
        'Condition("crashes", ">", 10**6)',
        f"{_CRASHES}test_where_nobody_knows_which_message_it_was_a_crash_is_counted_for_each_that_is_not_done[sqlite]",
    ),
    guard(
        "a known killer is replayed with care",
        _BATCH,
        "if held.store is not self._stores.store and self._known_to_kill(held):",
        "if held.store is None and self._known_to_kill(held):",
        f"{_CRASHES}test_a_known_killer_is_replayed_with_care_from_the_start[sqlite]",
    ),
    # -- suspects ----------------------------------------------------------------------------------------------
    guard(
        "an exception is no death, and an outage is none",
        _SUSPECTS,
        "        if (isinstance(error, _SAID) or is_user_interrupt(error)) and not is_death(error):\n",
        "        if error is None:\n",
        f"{_CRASHES}test_a_replay_in_the_task_that_loses_the_database_blames_nobody[sqlite]",
        f"{_CRASHES}test_an_exception_that_ends_a_replay_is_no_death_however_often",
        "tests/unit/executors/test_alone.py::test_a_work_directory_that_is_away_for_many_runs_is_no_death_of_any_message",
    ),
    guard(
        "a message of which a worker of this run died is not tried again in it",
        _SUSPECTS,
        'return bool(entry.error["type"] == WORKER_CRASH and entry.run_id == fence.run_id)',
        "return False",
        f"{_CRASHES}test_a_replay_in_the_task_itself_finds_the_message_that_kills_it[sqlite]",
    ),
    # -- replaying ---------------------------------------------------------------------------------------------
    guard(
        "a replay records each delivery before it makes the next",
        _REPLAYING,
        "rate=rate or None, chunk=1)",
        "rate=rate or None)",
        f"{_BY_HAND}test_a_delivery_of_a_replay_is_recorded_before_the_next_one_is_made",
    ),
    guard(
        "a replay delivers nothing that was delivered",
        _REPLAYING,
        "about._replace(flow=flow), known.get(flow))",
        "about._replace(flow=flow), None)",
        f"{_BY_HAND}test_a_replay_that_dies_repeats_at_most_the_delivery_each_destination_had_in_hand",
    ),
    guard(
        "a replay after a crash names each message before it is handled",
        _REPLAYING,
        "crashed=fence.crashed or batch.crashed_before())",
        "crashed=False)",
        f"{_CRASHES}test_a_replay_in_the_task_itself_finds_the_message_that_kills_it[sqlite]",
    ),
    guard(
        "after a crash a replay delivers to one destination after the other",
        _REPLAYING,
        "[[one] for one in backlogs] if recorder.careful else [backlogs]",
        "[backlogs]",
        f"{_CRASHES}test_after_a_crash_a_replay_has_one_delivery_in_hand_at_a_time_and_blames_no_other[sqlite]",
    ),
    guard(
        "after a crash one message is in hand, whatever the destination takes",
        "delivery/step.py",
        "(1, 1) if step.fence.crashed else (flow.batch, flow.threads)",
        "(flow.batch, flow.threads)",
        f"{_CRASHES}test_after_a_crash_a_replay_has_one_delivery_in_hand_at_a_time_and_blames_no_other[sqlite]",
    ),
    guard(
        "a replay delivers to its destinations at the same time",
        _REPLAYING,
        "[[one] for one in backlogs] if recorder.careful else [backlogs]",
        "[[one] for one in backlogs]",
        f"{_BY_HAND}test_destinations_that_wait_for_each_other_are_both_delivered_in_a_replay",
    ),
    guard(
        "what is delivered ends when one thread of it fails",
        "pipeline/workers.py",
        "            errors.append(error)\n",
        "            assert error\n",
        f"{_WORKERS}test_the_first_error_ends_what_all_threads_do_and_is_raised",
    ),
    guard(
        "what is delivered in other threads ends when a person interrupts",
        "pipeline/workers.py",
        "            errors.append(error)  # the other threads take nothing more\n",
        "            assert error  # the other threads take nothing more\n",
        f"{_WORKERS}test_a_person_who_interrupts_is_obeyed_at_once_and_the_other_threads_take_nothing_more",
    ),
    guard(
        "a chain that only Spark can run fails no message here",
        _REPLAYING,
        "    chain.refuse_dataframes()\n",
        "",
        f"{_BY_HAND}test_a_chain_with_dataframe_handlers_is_refused_before_any_message_fails",
    ),
    guard(
        "a replay keeps its batch however long a message takes",
        _REPLAYING,
        "        LeaseKeeper(batch, stores.ledger, fence, lease, recorder.stop),\n",
        "",
        f"{_BY_HAND}test_a_replay_keeps_its_batch_while_a_message_takes_or_waits_longer_than_the_lease",
    ),
    # -- the books ---------------------------------------------------------------------------------------------
    guard(
        "the books balance when every destination's and every batch's do",
        _BOOKS,
        "for totals in (self.total, *self.destinations.values(), *self.batches.values()))",
        "for totals in (self.total,))",
        f"{_AUDIT}test_books_in_which_one_column_does_not_balance_do_not_balance[destinations]",
        f"{_AUDIT}test_books_in_which_one_column_does_not_balance_do_not_balance[batches]",
    ),
    guard(
        "a message found on no side of the audit is unaccounted for",
        "delivery/status.py",
        '        return "unaccounted"\n    return "delivered" if was',
        '        return "delivered"\n    return "delivered" if was',
        f"{_AUDIT}test_a_message_that_is_nowhere_is_named[sqlite]",
    ),
    guard(
        "a second delivery is a duplicate",
        _BOOKS,
        "return max(0, entry.deliveries - 1)",
        "return 0",
        f"{_AUDIT}test_a_second_delivery_is_counted[sqlite]",
    ),
    # -- intake ------------------------------------------------------------------------------------------------
    guard(
        "what a broker holds is committed here before it is acknowledged there",
        _INTAKE,
        "        stored, fresh = _store_or_release(group, source, target)\n",
        "        _acknowledge(group, source)\n        stored, fresh = _store_or_release(group, source, target)\n",
        f"{_TAKEN_IN}test_nothing_is_acknowledged_that_the_target_did_not_commit[memory]",
    ),
    guard(
        "nothing is taken from a broker while its messages could not be stored",
        _INTAKE,
        "        target.require_writable()\n",
        "",
        f"{_TAKEN_IN}test_an_outage_of_the_target_uses_up_no_deliveries_of_the_source",
    ),
    guard(
        "a message that a broker cannot put aside does not hold up those that it handed out before",
        _INTAKE,
        "    except StoreError as error:\n        if not group and",
        "    except StoreUnavailableError as error:\n        if not group and",
        f"{_NEIGHBOURS}test_a_message_that_its_broker_cannot_put_aside_uses_up_no_deliveries_of_those_before_it",
    ),
    guard(
        "messages that could not be taken in are released, not left to a lease that counts as a death",
        _INTAKE,
        "        return _store(group, source, target)\n    except BaseException:\n        _release(group, source)\n",
        "        return _store(group, source, target)\n    except BaseException:\n",
        f"{_TAKEN_IN}test_an_outage_of_the_target_uses_up_no_deliveries_of_the_source",
    ),
    guard(
        "what is in hand when an intake is interrupted is released",
        _INTAKE,
        "    except BaseException:\n        _release(group, source)\n        raise\n    return group\n",
        "    except BaseException:\n        raise\n    return group\n",
        f"{_TAKEN_IN}test_what_is_in_hand_when_the_taking_is_interrupted_is_released[memory]",
    ),
    guard(
        "another message of a known id is not taken for the one that is known",
        _INTAKE,
        "(stored if (message_id, _fingerprint(message)) in held else others).append(message)",
        "(stored if held else others).append(message)",
        f"{_TAKEN_IN}test_another_message_of_a_known_id_is_stored_beside_it[rabbitmq]",
    ),
    guard(
        "another message of a known id gets the same other id when it comes again",
        _INTAKE,
        "_beside(message, known_by[:_MARK])",
        "_beside(message, str(id(message)))",
        f"{_TAKEN_IN}test_another_message_of_a_known_id_is_stored_beside_it[rabbitmq]",
    ),
    guard(
        "an id that is cut to make room is not taken for another that begins so",
        _INTAKE,
        "    if len(message.id) > _ROOM:",
        "    if len(message.id) > 1000:",
        f"{_TAKEN_IN}test_another_message_of_a_known_id_that_has_no_room_beside_it_is_stored[rabbitmq]",
    ),
    guard(
        "a message whose other id somebody has taken is not acknowledged unstored",
        _INTAKE,
        "        stored, new = stored + more, new + fresh\n    if others:\n",
        "        stored, new, others = stored + more + others, new + fresh, []\n    if others:\n",
        f"{_TAKEN_IN}test_a_message_whose_other_id_somebody_worked_out_before_is_stored_all_the_same[rabbitmq]",
    ),
    guard(
        "what the target refuses is a dead letter of the source, and not acknowledged",
        _INTAKE,
        "        source.dead_letter(message, reason=reason, description=str(error))\n",
        "        source.acknowledge(message)\n",
        f"{_TAKEN_IN}test_what_the_target_refuses_is_a_dead_letter_of_the_source_and_holds_up_nothing[memory]",
    ),
    guard(
        "one message that does not fit takes no other with it",
        _INTAKE,
        "            return []\n        half",
        "            return []\n        return group\n        half",
        f"{_NEIGHBOURS}test_of_a_hundred_ten_bad_ones_are_dead_lettered_alone[sqlite]",
    ),
    guard(
        "what was dead-lettered before the target went away does not hold up the others",
        _INTAKE,
        "    except NotInFlightError:\n        pass  # it was, before the target went away for a moment\n",
        "",
        f"{_NEIGHBOURS}test_an_outage_in_the_midst_of_bad_messages_gives_up_no_good_one[sqlite]",
    ),
    guard(
        "a stranger's message is not larger than others because it claims to be a failure record",
        _INTAKE,
        "    if most is not None and size > most:\n",
        "    if most is None:\n",
        f"{_NEIGHBOURS}test_what_is_too_large_is_dead_lettered_alone_whatever_it_claims_to_be[sqlite-to be a record]",
    ),
    guard(
        "nor because it claims to be a dead letter",
        _INTAKE,
        "        dead_letter_reason=None,\n",
        "",
        f"{_NEIGHBOURS}test_what_a_stranger_says_of_its_death_is_not_taken_over",
    ),
    # -- by hand -----------------------------------------------------------------------------------------------
    guard(
        "what is given up by hand has its reason in the ledger",
        _GIVING_UP,
        "    stores.ledger.record(fence, entries)\n",
        "",
        f"{_CRASHES}test_what_is_given_up_by_hand_is_no_crash[sqlite]",
    ),
)
