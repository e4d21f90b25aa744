"""The guards of retention and erasure: what is removed is gone, and nothing else is."""

from __future__ import annotations

from mutants.guard import guard

_RETENTION, _ERASURE, _BOOKS, _WORK = (
    f"delivery/{name}.py" for name in ("retention", "erasure", "audit", "work_files")
)
_LEDGER, _REMOVAL, _SCRUB = (f"stores/sql/{name}.py" for name in ("ledger", "removal", "scrub"))

_KEPT, _FORGOTTEN = (f"tests/unit/delivery/test_{name}.py::" for name in ("retention", "erasure"))
_REMOVED = "tests/unit/stores/test_sql_removal.py::"
_HALF_WAY = f"{_FORGOTTEN}test_who_dies_half_way_has_lost_nothing_and_the_next_one_finishes"
_NOTHING_LEFT = f"{_FORGOTTEN}test_nothing_of_a_forgotten_message_is_left_and_its_neighbour_is_whole"

GUARDS = (
    # -- retention ---------------------------------------------------------------------------------------------
    guard(
        "a message that is still there keeps its ledger",
        _RETENTION,
        "    refs = [ref for ref in refs if ref not in here]\n",
        "",
        f"{_KEPT}test_the_ledger_of_a_message_that_is_done_with_goes_after_the_message[sqlite]",
    ),
    guard(
        "a message whose failure has a copy left keeps its ledger",
        _RETENTION,
        "for ref in refs if ref.name not in failed}",
        "for ref in refs}",
        f"{_KEPT}test_a_copy_that_a_replay_left_when_it_died_is_not_delivered_again[sqlite-failures]",
    ),
    guard(
        "a message whose dead letter is left keeps its ledger",
        _RETENTION,
        "for letter, ref in letters.items() if letter not in dead]",
        "for letter, ref in letters.items()]",
        f"{_KEPT}test_a_copy_that_a_replay_left_when_it_died_is_not_delivered_again[sqlite-dead letters]",
    ),
    guard(
        "a message that failed keeps its ledger, also where its dead letter is out of sight",
        _LEDGER,
        "kept = c.state.not_in(DONE_STATES) | (c.time_recorded > until)",
        "kept = c.time_recorded > until",
        f"{_KEPT}test_a_message_that_failed_keeps_its_ledger_wherever_it_is[sqlite]",
    ),
    guard(
        "a message with one young record keeps all of them",
        _LEDGER,
        "kept = c.state.not_in(DONE_STATES) | (c.time_recorded > until)",
        "kept = c.state.not_in(DONE_STATES)",
        f"{_KEPT}test_a_message_with_one_young_record_keeps_all[sqlite]",
    ),
    guard(
        "old records are removed a portion at a time",
        _LEDGER,
        "upto = until if end is None else end",
        "upto = until",
        f"{_KEPT}test_many_are_removed_in_portions[sqlite]",
    ),
    guard(
        "a ledger that cannot be trimmed holds up no settlement",
        _RETENTION,
        "    except HomingError as error:\n",
        "    except ZeroDivisionError as error:\n",
        f"{_KEPT}test_a_ledger_that_cannot_be_trimmed_holds_up_no_settlement[sqlite]",
    ),
    # -- erasure -----------------------------------------------------------------------------------------------
    guard(
        "that a message is being forgotten is durable before anything of it is removed",
        _ERASURE,
        "    tombstones.begin(refs, reason)\n",
        "",
        f"{_HALF_WAY}[sqlite-the ledger]",
    ),
    guard(
        "a message is noted as forgotten only once nothing of it is left",
        _ERASURE,
        "    tombstones.begin(refs, reason)\n",
        "    tombstones.begin(refs, reason)\n    tombstones.finish(refs)\n",
        f"{_HALF_WAY}[sqlite-the scrubbing]",
    ),
    guard(
        "the ledger goes last: what may be replayed is not delivered twice",
        _ERASURE,
        "    tombstones.begin(refs, reason)\n",
        "    tombstones.begin(refs, reason)\n    stores.ledger.remove(refs)\n",
        f"{_FORGOTTEN}test_a_claim_between_the_look_and_the_removal_is_seen_and_the_ledger_stays[sqlite]",
    ),
    guard(
        "a message is removed in the direction in which it travels",
        _ERASURE,
        '{"store": stores.store, "failure store": stores.failures, "dead-letter store": stores.dead_letters}',
        '{"dead-letter store": stores.dead_letters, "failure store": stores.failures, "store": stores.store}',
        f"{_FORGOTTEN}test_a_message_that_moves_on_meanwhile_is_found_where_it_comes_to[sqlite]",
    ),
    guard(
        "nothing is begun for a message that somebody works on",
        _ERASURE,
        "        store.erasure.require_free(_rows(stores, store, ref))\n",
        "        pass\n",
        f"{_FORGOTTEN}test_what_somebody_works_on_is_not_forgotten[sqlite-orders]",
    ),
    guard(
        "a run that may still record is waited for",
        _ERASURE,
        "    if until is not None:\n",
        "    if False:\n",
        f"{_FORGOTTEN}test_a_run_that_lost_the_message_but_may_still_record_is_waited_for[sqlite]",
    ),
    guard(
        "what another pipeline has under the id of a copy is not removed",
        _ERASURE,
        "for each in _browse(store, copy_id) if ref_in(each) == ref}",
        "for each in _browse(store, copy_id)}",
        f"{_FORGOTTEN}test_a_dead_letter_that_another_pipeline_has_under_the_same_id_stays[sqlite]",
    ),
    guard(
        "the files that a message's runs left are removed",
        _ERASURE,
        "folders = erase_folders(runs)\n",
        "folders = erase_folders(())\n",
        f"{_NOTHING_LEFT}[sqlite]",
    ),
    guard(
        "files that cannot be removed are no success",
        _WORK,
        'raise WorkDirError(f"the folder {each} of a run cannot be removed: {error.strerror}") from error',
        "del error",
        f"{_FORGOTTEN}test_a_folder_that_cannot_be_removed_is_an_error",
    ),
    guard(
        "who died with a forgotten message in hand does not bring it back into the ledger",
        _LEDGER,
        "                if _in_hand(suspect) in wanted:\n",
        "                if False:\n",
        f"{_FORGOTTEN}test_who_died_with_it_in_hand_does_not_bring_it_back_into_the_ledger[sqlite]",
    ),
    guard(
        "the books know what was forgotten from what is lost",
        _BOOKS,
        'outcome = "forgotten" if outcome == "unaccounted" else outcome',
        "pass",
        f"{_FORGOTTEN}test_books_that_are_kept_while_a_message_is_forgotten_miss_nothing[sqlite]",
    ),
    guard(
        "a message that is being forgotten is counted once",
        _BOOKS,
        "                forgotten.remove(digest(ref))\n",
        "",
        f"{_HALF_WAY}[sqlite-the message]",
    ),
    # -- in the database ---------------------------------------------------------------------------------------
    guard(
        "what somebody holds is not removed",
        _REMOVAL,
        "                self._refuse_held(connection, chunk, lock=self._database.dialect.locks_rows)\n",
        "",
        f"{_REMOVED}test_what_is_held_stays_with_all_that_is_asked_for_and_the_refusal_says_until_when[sqlite]",
    ),
    guard(
        "who claims a message while it is being removed keeps it",
        _REMOVAL,
        "lock=self._database.dialect.locks_rows)",
        "lock=False)",
        f"{_REMOVED}test_who_claims_it_at_the_same_time_keeps_it[postgresql]",
    ),
    guard(
        "another message of the same number is not taken for it",
        _REMOVAL,
        "return among(table.c.sequence, numbers) & among(table.c.id, names)",
        "return among(table.c.sequence, numbers)",
        f"{_REMOVED}test_a_number_under_which_another_message_lies_is_not_taken_for_it[sqlite]",
    ),
    guard(
        "what is archived is removed too",
        _REMOVAL,
        "if self._archive is not None and self._archive.is_there(connection):",
        "if False:",
        f"{_REMOVED}test_what_is_archived_goes_too",
    ),
    guard(
        "a SQLite file keeps nothing on its free pages",
        _SCRUB,
        '        cursor.execute("VACUUM")\n',
        "",
        f"{_NOTHING_LEFT}[sqlite]",
    ),
    guard(
        "a SQLite file keeps nothing in its log, or it is said",
        _SCRUB,
        'while cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:',
        "while False:",
        f"{_REMOVED}test_a_sqlite_file_that_others_read_is_said_not_to_be_clean",
    ),
    guard(
        "who forgot how many, and why, is kept",
        "cli/forget.py",
        "            with begun as outcome:\n",
        "            for outcome in [{}]:\n",
        "tests/unit/cli/test_forgetting.py::test_who_forgot_how_many_and_why_is_kept_without_the_ids",
    ),
)
