"""The guards of what authors test with, and of the project that they begin with."""

from __future__ import annotations

from mutants.guard import guard

_TRIAL, _STAND_INS, _DAGS, _NEW = "testing/trial.py", "testing/stand_ins.py", "testing/dags.py", "cli/new.py"
_TRIALS = "tests/unit/testing/test_trial.py::"
_ON_AIRFLOW = "tests/unit/testing/test_dags.py::"
_PROJECTS = "tests/unit/cli/test_new.py::"

GUARDS = (
    guard(
        "a recorder holds a content to the type that its destination asks for",
        _STAND_INS,
        "        function=take_any if destination.dataframe else take,\n",
        "        function=take_any,\n",
        f"{_TRIALS}test_a_recorder_fails_where_the_content_does_not_fit_the_destination",
    ),
    guard(
        "a trial without the connection of a handler is an error of the test, and no failed message",
        _TRIAL,
        "                handler.connections.require()\n",
        "                pass\n",
        f"{_TRIALS}test_a_connection_that_nobody_gave_is_an_error_of_the_trial",
    ),
    guard(
        "a recorder needs no connection",
        _TRIAL,
        "            if handler not in recorded or handler.name in self.real:\n",
        "            if True:\n",
        f"{_TRIALS}test_a_destination_that_is_recorded_needs_no_connection",
    ),
    guard(
        "a recorder makes no client",
        _STAND_INS,
        "        client=None if destination.client is None else _NoClient(),\n",
        "",
        f"{_TRIALS}test_a_recorder_makes_no_client_and_keeps_to_no_rate",
    ),
    guard(
        "a destination that is tried again in a trial is not waited for",
        _STAND_INS,
        "        return replace(super().decide(error, attempt, key=key), delay=0.0)\n",
        "        return super().decide(error, attempt, key=key)\n",
        f"{_TRIALS}test_a_real_destination_is_tried_as_often_as_it_says_without_waiting[error0]",
    ),
    guard(
        "a destination that no router may choose fails in a trial too",
        _TRIAL,
        "        is_real = destination.name in self.real or (destination.dataframe and routed)\n",
        "        is_real = destination.name in self.real\n",
        f"{_TRIALS}test_a_destination_for_dataframes_fails_behind_a_router_as_it_does_on_spark",
    ),
    guard(
        "a misspelled destination in real= is not passed over",
        _TRIAL,
        "        if unknown := self.real - set(self.trial.destinations):\n",
        "        if unknown := self.real - self.real:\n",
        f"{_TRIALS}test_a_real_destination_that_is_not_there_is_refused[real0-real= names cmr]",
    ),
    guard(
        "no test ends green because there was no message",
        _TRIAL,
        "    if not messages:\n",
        "    if False:\n",
        f"{_TRIALS}test_messages_that_say_nothing_are_refused[messages0-there are no messages]",
    ),
    guard(
        "no test ends green because a misspelled destination got nothing",
        _TRIAL,
        '        raise KeyError(f"nothing is known of a destination',
        '        return [] or KeyError(f"nothing is known of a destination',
        f"{_TRIALS}test_to_ask_for_a_destination_that_is_not_there_is_an_error_that_says_which_was_meant",
    ),
    guard(
        "a failure that a test did not look for is shown",
        _TRIAL,
        '        log.warning("message %s failed in %s", ctx.get_id(), handler, exc_info=error)\n',
        "",
        f"{_TRIALS}test_a_failure_is_logged_with_its_trace_for_whoever_did_not_look_for_one",
    ),
    guard(
        "a client that a trial made is closed",
        _TRIAL,
        "            called.close()\n",
        "            pass\n",
        f"{_TRIALS}test_a_real_destinations_client_is_made_and_closed",
    ),
    guard(
        "a test's Airflow knows no connection and no setting of another one",
        _DAGS,
        '    for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:\n',
        "    for name in ():\n",
        f"{_ON_AIRFLOW}test_nothing_that_the_environment_says_of_another_airflow_reaches_the_tests",
    ),
    guard(
        "an Airflow that is imported already is not taken for the test's own",
        _DAGS,
        '    if "airflow.configuration" in sys.modules:\n',
        "    if False:\n",
        f"{_ON_AIRFLOW}test_it_is_refused_once_airflow_is_imported",
    ),
    guard(
        "a test runs a DAG on no Airflow but its own",
        _DAGS,
        "    if not home.name.startswith(_PREFIX):\n",
        "    if False:\n",
        f"{_ON_AIRFLOW}test_a_dag_is_not_run_on_an_airflow_that_is_not_the_tests_own[/opt/airflow]",
    ),
    guard(
        "a task that is tried again in a test is not waited for",
        _DAGS,
        "        task.retry_delay, task.retry_exponential_backoff, task.retry_policy = timedelta(0), 0, None\n",
        "        pass\n",
        f"{_ON_AIRFLOW}test_no_task_waits_for_its_next_try_and_the_dag_is_left_as_it_was",
    ),
    guard(
        "a project overwrites nothing",
        _NEW,
        "    if folder.exists() or folder.is_symlink():\n",
        "    if False:\n",
        f"{_PROJECTS}test_what_is_there_is_never_overwritten[empty folder]",
        f"{_PROJECTS}test_what_is_there_is_never_overwritten[file]",
    ),
    guard(
        "a project is written whole or not at all",
        _NEW,
        "            shutil.rmtree(draft, ignore_errors=True)\n",
        "            pass\n",
        f"{_PROJECTS}test_a_project_that_cannot_be_written_whole_is_not_written_at_all",
    ),
    guard(
        "a project has a name that its DAG, its modules and its stores can have",
        _NEW,
        "    if not _NAME.fullmatch(name) or len(name) > _LONGEST:\n",
        "    if not _NAME.match(name):\n",
        f"{_PROJECTS}test_a_name_that_its_dag_or_its_stores_could_not_have_is_refused[web-shop]",
        f"{_PROJECTS}test_a_name_that_its_dag_or_its_stores_could_not_have_is_refused[{'s' * 26}]",
    ),
)
