"""The guards of what runs on Spark's executors and in its driver. They are tried without a Spark session."""

from __future__ import annotations

from mutants.guard import guard

_RECORDER, _STEP, _ENTRIES, _ALONE = (f"delivery/{name}.py" for name in ("recorder", "step", "entries", "local_engine"))
_KEEPER = "delivery/lease_keeper.py"
_APP, _WRITING = "spark/jobs.py", "spark/writer.py"
_ATTEMPTS, _KEEPING, _SMALL = (
    f"tests/unit/executors/test_{name}.py::" for name in ("task_attempts", "lease_keeper", "alone")
)
_SOURCE = "tests/unit/executors/test_data_source.py::"
_SESSIONS = "spark/sessions.py"
_NATIVE = (
    "tests/spark/test_native.py::test_messages_that_cannot_be_read_are_left_out_by_no_rule_though_spark_may_skip_files"
)
_RENAMED = (
    "tests/spark/test_native.py::"
    "test_a_message_that_a_handler_returns_under_another_name_fails_with_that_reason_and_no_other_does"
)
_RENAMING = ("by_a_filter", "for_one")
_WHOLE = "tests/unit/executors/test_whole_batch.py::"
_ARCHIVE, _ARCHIVES = "spark/submit/class_archive.py", "tests/unit/executors/test_class_archive.py::"

GUARDS = (
    guard(
        "a failure stands until all of the flow has had the message, and not only its beginning",
        _STEP,
        "if self.ends and before is not None and not before.done:",
        "if before is not None and not before.done:",
        "tests/unit/executors/test_batch_step.py::test_what_is_only_begun_is_not_said_to_have_failed_no_more",
    ),
    guard(
        "a message that failed once and is left out by a DataFrame handler now is dropped, and does not wait for ever",
        "spark/dataframe_flow.py",
        "entry.state != PROCESSED and ",
        "",
        f"{_WHOLE}test_a_message_that_failed_before_and_is_left_out_now_is_dropped",
    ),
    guard(
        "what a DataFrame handler returns under another name is no other message, and none that was dropped",
        "spark/dataframe_handlers.py",
        "return _unsealed(handler, _returned(handler, _call(handler, _sealed(given))))",
        "return _returned(handler, _call(handler, given))",
        *(f"{_RENAMED}[renamed_{way}]" for way in _RENAMING),
    ),
    guard(
        "the batch is kept while the job runs, and not the step alone",
        _KEEPER,
        "                held.store.renew(held.lease, self._lease)\n",
        "                assert held\n",
        f"{_KEEPING}test_a_batch_that_somebody_else_holds_stops_the_job",
    ),
    guard(
        "the step is kept while the job runs, and not the batch alone",
        _KEEPER,
        "            self._ledger.renew_step(self._fence, self._lease)\n",
        "",
        f"{_KEEPING}test_a_step_that_was_taken_over_stops_the_job",
    ),
    guard(
        "a job that lost its lease is stopped",
        _KEEPER,
        "        self._on_lost()\n",
        "        pass\n",
        f"{_KEEPING}test_a_step_that_was_taken_over_stops_the_job",
    ),
    guard(
        "the end of a job that lost its lease is no success",
        _KEEPER,
        "        if self._lost is not None:\n            raise self._lost\n",
        "",
        f"{_KEEPING}test_a_step_that_was_taken_over_stops_the_job",
    ),
    guard(
        "a database that is away for a moment is no lost lease",
        "lease_renewer.py",
        "        except (LeaseLostError, NotInFlightError) as error:\n",
        "        except Exception as error:\n",
        f"{_KEEPING}test_a_database_that_is_away_for_a_moment_is_no_loss",
    ),
    guard(
        "entries whose recording failed are recorded on the way out",
        _RECORDER,
        "        with self._lock:\n            if suspect:\n",
        "        with self._lock:\n            pending, self._pending = self._pending, []\n            if suspect:\n",
        f"{_ATTEMPTS}test_what_could_not_be_recorded_is_recorded_with_what_comes_next",
    ),
    guard(
        "what was delivered before an error is recorded",
        _RECORDER,
        "        self._flush(suspect=self.careful)\n",
        "        if kind is None:\n            self._flush(suspect=self.careful)\n",
        f"{_ATTEMPTS}test_a_task_that_is_tried_again_delivers_only_what_was_not_recorded",
    ),
    guard(
        "of two copies of a task the first gives way",
        _RECORDER,
        "for right in filter(None, (self._fence, self._turn)):",
        "for right in filter(None, (self._fence,)):",
        f"{_ATTEMPTS}test_the_first_of_two_copies_gives_way_to_the_second_and_nothing_is_delivered_twice",
    ),
    guard(
        "a delivery that hangs while its step is taken over is the last one",
        _RECORDER,
        "        self._error = error  # raised where deliveries are made\n",
        "        assert error  # raised where deliveries are made\n",
        f"{_ATTEMPTS}test_a_delivery_that_hangs_while_the_step_is_taken_over_is_the_last_one",
    ),
    guard(
        "after a crash, each message is named before it is handled",
        _RECORDER,
        "            self._ledger.suspect(self._fence, crash_tracking.name_message(entry))\n",
        "            assert entry\n",
        f"{_SMALL}test_what_a_message_that_kills_was_part_of_goes_on_without_it",
    ),
    guard(
        "what is recorded a second time, because the answer was lost, is known by its time",
        _RECORDER,
        "entry._replace(at=time.time_ns(), ",
        "entry._replace(",
        f"{_ATTEMPTS}test_a_delivery_that_is_recorded_again_because_the_answer_was_lost_is_counted_once",
    ),
    guard(
        "what a process of long ago left is delivered only as far as the run holds it",
        _ALONE,
        "self._step(held=held)",
        "self._step()",
        f"{_SMALL}test_what_an_earlier_process_left_is_delivered_only_as_far_as_the_run_holds_it",
    ),
    guard(
        "a destination that has a message does not get it again",
        _ENTRIES,
        "((before.done and before.state != PROCESSED) or died_in_this_run(before, fence))",
        "died_in_this_run(before, fence)",
        f"{_SMALL}test_a_replay_skips_what_was_delivered_and_ends_with_one_while_a_message_fails",
    ),
    guard(
        "a message that killed its worker is left out",
        _ENTRIES,
        "((before.done and before.state != PROCESSED) or died_in_this_run(before, fence))",
        "(before.done and before.state != PROCESSED)",
        f"{_SMALL}test_what_a_message_that_kills_was_part_of_goes_on_without_it",
    ),
    guard(
        "a source flow that failed before and went well now is recorded as such",
        _STEP,
        "if self.ends and before is not None and not before.done:",
        "if self.ends and before is not None and before.state is None:",
        f"{_SMALL}test_what_was_dropped_stays_dropped_and_what_failed_is_not_unfinished_when_it_goes_well[failed]",
    ),
    guard(
        "a replay ends well only when nothing fails any more",
        _APP,
        "    if left:\n        raise StillFailingError(",
        "    if left < 0:\n        raise StillFailingError(",
        f"{_SMALL}test_a_replay_skips_what_was_delivered_and_ends_with_one_while_a_message_fails",
    ),
    guard(
        "a task of Spark's writer that is tried again stores nothing twice",
        _WRITING,
        "digest = hashlib.sha256(text.encode()).hexdigest()",
        "digest = hashlib.sha256(text.encode() + new_id().encode()).hexdigest()",
        f"{_SOURCE}test_rows_without_an_id_get_one_that_another_try_makes_again_in_whatever_order",
    ),
    guard(
        "rows of a lake that cannot be read back are not delivered",
        "spark/parquet_destination.py",
        "    if rows != readable:\n",
        "    if rows is None:\n",
        "tests/spark/test_lake.py::test_rows_that_cannot_be_read_back_are_not_delivered",
    ),
    guard(
        "a message of another pipeline is not taken for one that is in the lake",
        "spark/parquet_destination.py",
        '_IDENTITY = ("id", "sequence", "table_id")',
        '_IDENTITY = ("id", "sequence")',
        "tests/spark/test_lake.py::test_messages_of_two_tables_are_two_though_batch_id_and_number_are_the_same",
    ),
    guard(
        "each job that adds to a lake stages its rows apart",
        "spark/staged_files.py",
        'return f"{int(time.time())}-{random_hex(32)}"',
        'return "0"',
        "tests/spark/test_lake.py::test_a_job_paused_while_another_commits_loses_no_row",
    ),
    guard(
        "a file of the work directory that is gone is an error, also where Spark is set to skip such files",
        _SESSIONS,
        '"ignoreMissingFiles": "false"',
        '"mode": "PERMISSIVE"',
        f"{_NATIVE}[gone]",
    ),
    guard(
        "a file of the work directory that is damaged is an error, also where Spark is set to skip such files",
        _SESSIONS,
        '"ignoreCorruptFiles": "false"',
        '"mode": "PERMISSIVE"',
        f"{_NATIVE}[damaged]",
    ),
    guard(
        "a stream goes past no number whose transaction is still open",
        "stores/sql/commit_horizon.py",
        "    while writers:\n",
        "    while False:\n",
        "tests/unit/executors/test_data_source.py::"
        "test_a_stream_skips_nothing_that_is_committed_after_higher_numbers[postgresql]",
    ),
    guard(
        "nor where the database shows what is not committed",
        "stores/sql/commit_horizon.py",
        "stop = min(filter(None, (min(open_ones, default=None), first_young)), default=None)",
        "stop = first_young",
        "tests/unit/executors/test_data_source.py::"
        "test_a_stream_skips_nothing_that_is_committed_after_higher_numbers[mariadb]",
    ),
    guard(
        "a job whose messages failed leaves its class archive, too",
        _ARCHIVE,
        "        _keep(new, archive, start)  # the messages failed, not the job\n",
        "",
        f"{_ARCHIVES}test_a_job_whose_messages_failed_leaves_its_archive",
    ),
    guard(
        "an archive that is made removes its own old ones and nobody else's",
        _ARCHIVE,
        'archive.parent.glob(f"{place}-*")',
        'archive.parent.glob("spark-*")',
        f"{_ARCHIVES}test_each_installation_keeps_one_archive_and_leaves_those_of_others_alone",
    ),
    guard(
        "an archive is never made twice at once",
        _ARCHIVE,
        "            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)\n",
        f"{_ARCHIVES}test_only_one_job_at_a_time_makes_the_archive",
    ),
    guard(
        "a job without a session makes no archive",
        _ARCHIVE,
        "start.ready_after is None or not new.is_file()",
        "not new.is_file()",
        f"{_ARCHIVES}test_a_job_that_never_ran_had_no_session_or_was_ended_leaves_no_archive",
    ),
    guard(
        "an empty map is stored as an object and not as an array",
        "spark/writer.py",
        "        return {key: _plain(item, kind.item_type) for key, item in value}\n",
        "        return {key: _plain(item, kind.item_type) for key, item in value} if value else value\n",
        f"{_SOURCE}test_a_map_is_an_object_wherever_it_stands_be_it_empty_and_an_array_of_pairs_is_an_array",
    ),
    guard(
        "what has failed before is not tried together with everything else",
        "spark/bisection.py",
        "size or (1 if any(map(self.has_failed, items)) else len(items))",
        "size or len(items)",
        "tests/unit/executors/test_bisection.py::"
        "test_what_has_failed_before_is_tried_in_small_parts_first_and_says_nothing_about_the_others",
    ),
)
