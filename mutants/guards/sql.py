"""The guards of the SQL store and of the ledger beside it. They are tried on SQLite, where the code is the same."""

from __future__ import annotations

from mutants.guard import guard

_SETTLEMENTS, _CLAIMS, _FINDING = (f"stores/sql/{name}.py" for name in ("settlements", "claims", "due_query"))
_BATCHES, _STORE, _INSERT, _VIEWS = (f"stores/sql/{name}.py" for name in ("batches", "store", "insert", "queries"))
_LEDGER, _DIALECTS = (f"stores/sql/{name}.py" for name in ("ledger", "dialects"))
_DURABILITY, _OUTAGES = (f"stores/sql/{name}.py" for name in ("durability", "outages"))

_OWN, _WINDOW = "tests/unit/stores/test_sql_store.py::", "tests/unit/stores/test_duplicate_window.py::"
_ABILITIES, _CRASHES = "tests/conformance/test_abilities.py::", "tests/conformance/test_crashes.py::"
_VERBS = "tests/conformance/test_verbs.py::"
_DATABASES, _ACKNOWLEDGED = "tests/unit/stores/test_sql_databases.py::", "tests/unit/stores/test_sql_acknowledged.py::"
_SESSIONS = "tests/unit/delivery/test_sessions.py::"
_LEDGERS, _BATCH = "tests/unit/delivery/test_ledger.py::", "tests/unit/delivery/test_batch.py::"
_COLUMNS, _HEADERS = "stores/sql/header_columns.py", "tests/unit/stores/test_header_columns.py::"

GUARDS = (
    # -- settling ----------------------------------------------------------------------------------------------
    guard(
        "who holds a message by an older token settles nothing",
        _SETTLEMENTS,
        'return sa.and_(meant, c.lock_token == sa.bindparam("token"), lasts)',
        'return sa.and_(meant, sa.bindparam("token", type_=sa.String) != "", lasts)',
        f"{_OWN}test_a_lost_lease_cannot_acknowledge_and_changes_nothing",
    ),
    guard(
        "a lease that ran out settles nothing, though nobody else has taken the message",
        _SETTLEMENTS,
        'return sa.and_(meant, c.lock_token == sa.bindparam("token"), lasts)',
        'return sa.and_(meant, c.lock_token == sa.bindparam("token"), sa.bindparam("now", type_=sa.BigInteger) > 0)',
        f"{_OWN}test_a_lease_that_ran_out_cannot_acknowledge_even_when_nobody_took_over",
    ),
    guard(
        "settling many is all or none",
        _SETTLEMENTS,
        "                    raise NotHeldError\n",
        "                    continue\n",
        f"{_OWN}test_settling_many_is_all_or_none",
    ),
    guard(
        "a batch is kept when it is acknowledged, because it may be asked for again",
        _SETTLEMENTS,
        "where(self._mine(key), self._table.c.batch_id.is_(None))",
        "where(self._mine(key))",
        f"{_ACKNOWLEDGED}test_a_batch_is_kept_because_it_may_be_asked_for_again",
    ),
    guard(
        "what was released is no part of its batch any more",
        _SETTLEMENTS,
        'free = {"lock_token": None, "batch_id": None}',
        'free = {"lock_token": None}',
        f"{_OWN}test_what_was_released_is_no_part_of_its_batch_any_more",
    ),
    # -- claiming ----------------------------------------------------------------------------------------------
    guard(
        "a session waits while one of its messages has failed and is not done with",
        _FINDING,
        "return sa.or_(c.session_id.is_(None), sa.and_(first, self._none_failed()))",
        "return sa.or_(c.session_id.is_(None), first)",
        f"{_SESSIONS}test_a_session_waits_for_the_replay_of_its_failed_message_and_nothing_else_does[sqlite]",
        f"{_SESSIONS}test_there_is_no_moment_between_copy_and_acknowledgement_at_which_the_session_goes_on[sqlite]",
    ),
    guard(
        "a session that is claimed by its id waits likewise",
        _FINDING,
        "& c.time_next.is_not(None) & self._none_failed()",
        "& c.time_next.is_not(None)",
        f"{_SESSIONS}test_a_session_waits_for_the_replay_of_its_failed_message_and_nothing_else_does[sqlite]",
    ),
    guard(
        "a failure that is done with holds up no session",
        _FINDING,
        "same = (f.session_id == self._table.c.session_id) & f.time_next.is_not(None)",
        "same = f.session_id == self._table.c.session_id",
        f"{_SESSIONS}test_a_failure_that_its_store_gave_up_holds_up_no_session[sqlite]",
    ),
    guard(
        "what somebody holds is not handed out",
        _FINDING,
        'c.time_next <= sa.bindparam("now"))',
        'c.time_next <= sa.bindparam("now") + 10**18)',
        f"{_OWN}test_retrieving_leases_and_does_not_remove",
    ),
    guard(
        "a batch claimed again keeps the lease it has",
        _CLAIMS,
        "claimed.token = token or claimed.token",
        "claimed.token = claimed.token or token",
        f"{_OWN}test_claiming_again_with_the_same_batch_id_returns_the_same_batch",
    ),
    guard(
        "a batch id that was used claims no new messages",
        _CLAIMS,
        "if known is None or wanted.ids is not None:",
        "if not known or wanted.ids is not None:",
        f"{_OWN}test_a_batch_id_never_claims_new_messages_once_it_is_used",
    ),
    guard(
        "a lease that ran out counts as a crash",
        _CLAIMS,
        '"crashes": c.crashes if late else _one_more(c.crashes, ran_out),',
        '"crashes": c.crashes,',
        f"{_OWN}test_what_crashed_its_consumer_too_often_is_kept_aside_with_its_reason",
    ),
    guard(
        "what crashed its consumers too often is kept aside",
        _CLAIMS,
        "            return CRASHED\n",
        "            return None\n",
        f"{_OWN}test_what_crashed_its_consumer_too_often_is_kept_aside_with_its_reason",
    ),
    guard(
        "who comes late to his own batch is no crash of its messages",
        _CLAIMS,
        "late=not wanted.contents)",
        "late=False)",
        f"{_BATCH}test_a_run_that_comes_late_to_its_own_batch_is_no_crash_of_its_messages[sqlite]",
    ),
    guard(
        "what a batch holds does not expire",
        _CLAIMS,
        "wanted.ids is None and not held:",
        "wanted.ids is None:",
        f"{_ABILITIES}test_what_a_batch_holds_does_not_expire[sqlite]",
    ),
    guard(
        "a batch does not get back what others took when its lease had run out",
        _CLAIMS,
        '"batch_id": sa.bindparam("batch", type_=sa.String),',
        '"batch_id": sa.func.coalesce(c.batch_id, sa.bindparam("batch", type_=sa.String)),',
        f"{_ABILITIES}test_a_batch_whose_lease_ran_out_does_not_get_back_what_others_hold[sqlite]",
    ),
    guard(
        "what somebody holds is not made to expire",
        _CLAIMS,
        "sa.or_(c.lock_token.is_(None), c.time_next <= now)",
        "sa.true()",
        f"{_OWN}test_expiring_keeps_aside_what_outlived_its_time_and_nobody_holds",
    ),
    guard(
        "only the first of a session goes",
        _FINDING,
        'first = ~sa.exists(sa.select(sa.literal_column("1")).select_from(e).where(same))',
        "first = sa.true() if same is not None else same",
        f"{_ABILITIES}test_a_session_is_delivered_one_at_a_time_in_order[sqlite]",
    ),
    guard(
        "a session of which somebody holds a message is nobody else's",
        _FINDING,
        "return found if row[_TOKEN] is None else []",
        "continue",
        f"{_ABILITIES}test_a_session_claimed_by_its_id_comes_whole_and_in_order_to_one_consumer[sqlite]",
    ),
    guard(
        "what somebody holds is not claimed by its id",
        _FINDING,
        "free = sa.or_(c.time_next <= now, ",
        "free = sa.or_(c.time_next > 0, ",
        f"{_OWN}test_messages_claimed_by_id_are_those_nobody_else_holds",
    ),
    guard(
        "what is acknowledged, by plain SQL too, is no part of a batch",
        _FINDING,
        "if row[_TOKEN] is not None and row[_NEXT] is not None]",
        "if row[_TOKEN] is not None]",
        "tests/unit/delivery/test_ids_again.py::"
        "test_a_batch_of_which_plain_sql_has_acknowledged_a_message_goes_on[sqlite]",
    ),
    guard(
        "two who claim at once do not get the same rows",
        _DIALECTS,
        "return statement.with_for_update(skip_locked=True)",
        "return statement",
        f"{_CRASHES}test_many_processes_share_a_store_out_and_each_message_is_delivered_once[postgresql]",
    ),
    # -- batches -----------------------------------------------------------------------------------------------
    guard(
        "a batch is renewed, read, counted and forgotten by the token it is held under",
        _BATCHES,
        "c.batch_id == held.batch_id, c.lock_token == held.lock_token, c.time_next",
        "c.batch_id == held.batch_id, c.time_next",
        f"{_OWN}test_who_lost_a_batch_neither_renews_nor_blames_nor_reads_its_messages",
        f"{_OWN}test_forgetting_is_fenced_by_the_lease_and_all_or_none",
    ),
    guard(
        "a batch whose lease ran out is not renewed",
        _BATCHES,
        "where = (*self._mine(held), self._table.c.time_next > self._database.now())",
        "where = self._mine(held)",
        f"{_OWN}test_renewing_keeps_a_batch_and_fails_once_it_is_lost",
    ),
    guard(
        "a renewal that found nothing to renew is a lost lease",
        _STORE,
        "if not self._batches.renew(held_, self._database.now() + int(lease * NANOSECONDS)):",
        "if self._batches.renew(held_, self._database.now() + int(lease * NANOSECONDS)) is None:",
        f"{_OWN}test_renewing_keeps_a_batch_and_fails_once_it_is_lost",
    ),
    guard(
        "a batch whose lease ran out is not forgotten",
        _BATCHES,
        "                    c.time_next > self._database.now(),\n",
        "",
        f"{_OWN}test_forgetting_is_fenced_by_the_lease_and_all_or_none",
    ),
    guard(
        "forgetting is all or none",
        _BATCHES,
        "                connection.rollback()\n",
        "                connection.commit()\n",
        f"{_OWN}test_forgetting_is_fenced_by_the_lease_and_all_or_none",
    ),
    guard(
        "forgetting what is not held is a lost lease",
        _STORE,
        "if not self._batches.forget(held, ids):",
        "if self._batches.forget(held, ids) is None:",
        f"{_OWN}test_forgetting_is_fenced_by_the_lease_and_all_or_none",
    ),
    guard(
        "only what is dead is finished as dead",
        _BATCHES,
        "self._database.dialect.among(c.id, chunk) & (apart(c.time_dead) != NEVER)",
        "self._database.dialect.among(c.id, chunk)",
        f"{_OWN}test_only_what_is_dead_is_finished_as_dead",
    ),
    guard(
        "a batch that is known is found again, though the rate is used up",
        _STORE,
        "if allowed < 1 and not (wanted.batch_id is not None and self.knows_batch(wanted.batch_id)):",
        "if allowed < 1:",
        f"{_DATABASES}test_a_batch_is_found_again_although_the_rate_is_used_up[sqlite]",
    ),
    # -- other ends --------------------------------------------------------------------------------------------
    guard(
        "what was handed out before is not cancelled",
        _STORE,
        "never = c.lock_token.is_(None) & (c.epoch == 0) & future",
        "never = c.lock_token.is_(None) & future",
        f"{_ABILITIES}test_a_message_that_was_handed_out_before_cannot_be_cancelled[sqlite]",
    ),
    guard(
        "what is due already is not cancelled",
        _STORE,
        "never = c.lock_token.is_(None) & (c.epoch == 0) & future",
        "never = c.lock_token.is_(None) & (c.epoch == 0)",
        f"{_ABILITIES}test_a_scheduled_message_can_be_cancelled_until_it_is_due[sqlite]",
    ),
    guard(
        "what somebody holds is not rescheduled",
        _STORE,
        "(due != NEVER) & sa.or_(c.lock_token.is_(None), due <= self._database.now())",
        "(due != NEVER)",
        f"{_ABILITIES}test_rescheduling_brings_a_message_forward_and_leaves_held_ones_alone[sqlite]",
    ),
    guard(
        "what is finished is not rescheduled",
        _STORE,
        "(due != NEVER) & sa.or_(c.lock_token.is_(None), due <= self._database.now())",
        "sa.or_(c.lock_token.is_(None), due <= self._database.now())",
        f"{_ABILITIES}test_what_is_finished_or_dead_is_not_rescheduled[sqlite]",
    ),
    guard(
        "what cannot be read is kept aside, and not handed out as something else",
        _STORE,
        "            self._settlements.apply([([Known(id_of(row), claimed.token, row[0])], bury)])\n",
        "            assert bury\n",
        f"{_OWN}test_an_unreadable_message_is_kept_aside_and_its_neighbours_are_delivered",
    ),
    guard(
        "an id does not come again while its message is unfinished",
        _INSERT,
        "connection.execute(table.delete().where(old, table.c.time_acked.is_not(None)))",
        "connection.execute(table.delete().where(old))",
        f"{_WINDOW}test_an_id_that_waits_is_known_after_its_window[sqlite-1]",
    ),
    guard(
        "an id does not come again within its window",
        _INSERT,
        "self._database.dialect.among(table.c.id, chunk) & (table.c.time_created < since)",
        "self._database.dialect.among(table.c.id, chunk)",
        f"{_DATABASES}test_an_id_may_come_again_after_the_window[sqlite]",
    ),
    guard(
        "messages stored in a transaction of the caller's are there when it commits, and only then",
        _STORE,
        "        if new and transaction is None:\n",
        "        if new:\n",
        f"{_DATABASES}test_a_message_stored_in_a_transaction_is_there_only_on_commit[sqlite]",
    ),
    guard(
        "purging removes what is finished, and nothing that waits",
        _VIEWS,
        "gone = self._table.delete().where(span, finished)",
        "gone = self._table.delete().where(span)",
        f"{_ABILITIES}test_purging_dead_letters_leaves_everything_else[sqlite]",
    ),
    guard(
        "purging dead letters removes no others",
        _VIEWS,
        "        since = c.time_acked if state == ACKNOWLEDGED else c.time_dead\n        finished,",
        "        since = sa.func.coalesce(c.time_acked, c.time_dead)\n        finished,",
        f"{_ABILITIES}test_purging_dead_letters_leaves_everything_else[sqlite]",
    ),
    guard(
        "SQLite waits for the disk",
        "stores/sql/engine.py",
        'cursor.execute("PRAGMA synchronous=FULL")',
        'cursor.execute("PRAGMA synchronous=NORMAL")',
        f"{_OWN}test_sqlite_keeps_a_log_and_waits_for_the_disk_on_every_connection",
    ),
    guard(
        "what is stored in a caller's own transaction waits for the disk too",
        _DURABILITY,
        "if level < _SQLITE_SYNCED and not relaxed:",
        "if level < 0 and not relaxed:",
        "tests/unit/stores/test_sql_durability.py::"
        "test_a_sqlite_transaction_of_ones_own_that_may_be_forgotten_is_refused",
    ),
    guard(
        "a server that forgets what it confirmed is refused",
        _DURABILITY,
        '    raise ConfigurationError(\n        f"{what}:',
        '    assert ConfigurationError(\n        f"{what}:',
        "tests/unit/stores/test_sql_durability.py::test_a_server_that_may_forget_is_refused_unless_that_is_accepted",
    ),
    guard(
        "a database that is full is away",
        _OUTAGES,
        '    "database or disk is full",\n',
        "",
        "tests/unit/stores/test_sql_outages.py::test_a_sqlite_database_that_is_full_is_away_and_takes_messages_again",
    ),
    guard(
        "a pool with no connection left is a database that is away",
        _OUTAGES,
        "    if isinstance(error, PoolTimeoutError):\n        return True\n",
        "    if isinstance(error, PoolTimeoutError):\n        return False\n",
        "tests/unit/stores/test_sql_outages.py::test_a_pool_with_no_connection_left_is_away[sqlite]",
    ),
    # -- the ledger --------------------------------------------------------------------------------------------
    guard(
        "whoever lost a step to another records nothing",
        _LEDGER,
        "row is None or row.owner != fence.owner or row.time_expires <= self._database.now()",
        "row is None or row.time_expires <= self._database.now()",
        f"{_LEDGERS}test_whoever_takes_a_step_over_shuts_the_other_out[sqlite]",
    ),
    guard(
        "whoever showed no sign of life records nothing",
        _LEDGER,
        "row is None or row.owner != fence.owner or row.time_expires <= self._database.now()",
        "row is None or row.owner != fence.owner",
        f"{_LEDGERS}test_a_step_that_shows_no_sign_of_life_may_record_no_more[sqlite]",
    ),
    guard(
        "whoever still runs when the batch is settled records nothing",
        _LEDGER,
        "row is None or row.owner != fence.owner or row.time_expires <= self._database.now()",
        "row is not None and (row.owner != fence.owner or row.time_expires <= self._database.now())",
        f"{_BATCH}test_settling_takes_the_right_to_record_from_whatever_still_runs[sqlite]",
    ),
    guard(
        "a former owner does not close a step",
        _LEDGER,
        "self._steps.delete().where(self._mine(fence), self._steps.c.owner == fence.owner)",
        "self._steps.delete().where(self._mine(fence))",
        f"{_LEDGERS}test_who_lost_a_step_does_not_close_it_for_the_one_who_has_it[sqlite]",
    ),
    guard(
        "a former owner does not name what he has in hand",
        _LEDGER,
        "            self._check(connection, fence)\n            self._write(connection, values)\n"
        "            connection.execute(self._steps",
        "            self._write(connection, values)\n            connection.execute(self._steps",
        f"{_LEDGERS}test_who_lost_a_step_names_nothing_that_he_has_in_hand[sqlite]",
    ),
    guard(
        "a former owner does not renew a step",
        _LEDGER,
        "            self._check(connection, fence)\n            connection.execute(self._steps",
        "            connection.execute(self._steps",
        f"{_LEDGERS}test_whoever_takes_a_step_over_shuts_the_other_out[sqlite]",
    ),
    guard(
        "what is done stays done",
        _LEDGER,
        "return lambda new: sa.case((still_open, new[name]), else_=c[name])",
        "return lambda new: new[name]",
        f"{_LEDGERS}test_a_failure_is_followed_by_its_delivery_and_never_the_other_way_round[sqlite]",
    ),
    guard(
        "a delivery recorded a second time, because the answer was lost, is counted once",
        _LEDGER,
        'sa.case((c.time_recorded == new["time_recorded"], c[name]), else_=c[name] + new[name])',
        "c[name] + new[name]",
        "tests/unit/executors/test_task_attempts.py::"
        "test_a_delivery_that_is_recorded_again_because_the_answer_was_lost_is_counted_once",
    ),
    guard(
        "a part of a step is no step that was left open",
        _LEDGER,
        "return [name for name in names if not name.startswith(PART)]",
        "return names",
        "tests/unit/delivery/test_crashes.py::test_a_part_of_a_step_is_no_step_that_was_left_open[sqlite]",
    ),
    guard(
        "whoever opens a step is told what the one before him had in hand",
        _LEDGER,
        "suspect=found.suspect if found else None)",
        "suspect=None)",
        "tests/unit/delivery/test_crashes.py::"
        "test_the_message_in_hand_of_a_job_that_died_has_failed_and_the_others_are_released[sqlite]",
    ),
    # -- the application's own columns -------------------------------------------------------------------------
    guard(
        "a header that does not fit its column is a fault of its message",
        _COLUMNS,
        "            if fault is not None:\n",
        "            if fault is not None and fault is None:\n",
        "tests/intake/test_bad_neighbours.py::test_of_a_hundred_ten_bad_ones_are_dead_lettered_alone[sqlite]",
    ),
    guard(
        "what the database refuses in a column is a fault of one message",
        _STORE,
        "            fault = self._fault_of_a_header(new, transaction)\n",
        "            fault = None\n",
        f"{_HEADERS}test_a_producer_hears_which_one_the_database_itself_refuses[sqlite-False-3]",
    ),
    guard(
        "a table that refuses everything is not a fault of a message",
        _COLUMNS,
        "if unfit else None\n",
        'if unfit else _unfit(row["id"], list(columns), "")\n',
        "tests/intake/test_bad_neighbours.py::test_a_table_that_refuses_every_message_is_no_fault_of_theirs[sqlite]",
    ),
    guard(
        "a try to find the message at fault stores nothing",
        _COLUMNS,
        "            if attempt.is_active:\n                attempt.rollback()\n",
        "            if attempt.is_active:\n                attempt.commit()\n",
        f"{_HEADERS}test_a_producer_hears_which_one_the_database_itself_refuses[sqlite-True-3]",
    ),
    guard(
        "an id that no database can hold is looked for without an error",
        _VIEWS,
        "chunks(filter(is_keepable, ids), self._database.dialect.chunk)",
        "chunks(ids, self._database.dialect.chunk)",
        "tests/intake/test_bad_neighbours.py::test_an_id_that_no_database_can_hold_is_dead_lettered_alone[postgresql]",
    ),
)
