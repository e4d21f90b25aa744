"""The guards of what others must not steer, and must not see."""

from __future__ import annotations

from mutants.guard import guard

_WORK, _TRACES, _BINDING = "delivery/work_files.py", "invocation/error_info.py", "binding.py"
_LEDGER, _DATABASE, _COMPLAINTS, _DIALECTS = (
    f"stores/sql/{name}.py" for name in ("ledger", "database", "error_text", "dialects")
)
_FILES, _SMALL = "tests/unit/delivery/test_work_dir.py::", "tests/unit/executors/test_alone.py::"
_TOLD, _LOGGED = "tests/unit/stores/test_sql_complaints.py::", "tests/unit/invocation/test_traces.py::"
_URLS = "tests/unit/stores/test_open_store.py::"
_SPARK = "tests/unit/executors/"

GUARDS = (
    guard(
        "a password with an @ in it is not taken for a host, which errors name",
        "store_ref.py",
        'place.count("@") > 1 and',
        "False and",
        f"{_URLS}test_a_password_with_an_at_sign_is_not_taken_for_the_host[a@geheim-postgresql]",
    ),
    guard(
        "a URL is looked at before others take it apart, and quote it",
        "store_ref.py",
        "        _check_parts(url)\n        return url\n",
        "        return url\n",
        "tests/unit/airflow_parts/test_connection.py::"
        "test_a_password_that_is_not_escaped_is_in_no_error_of_a_task_nor_of_a_dag_file[a[s3cret]b-postgresql]",
        f"{_URLS}test_a_password_that_is_not_escaped_is_in_no_error_of_the_bus[a?geheim=1-postgresql]",
    ),
    guard(
        "the URL that the form of a connection makes is looked at like any other",
        "store_ref.py",
        "            url = find_connection(self._text)\n",
        "            return find_connection(self._text)\n",
        "tests/unit/airflow_parts/test_connection.py::"
        "test_a_form_whose_host_is_none_is_refused_without_its_password[postgresql-[::1]",
    ),
    guard(
        "what Python says of a port, and quotes of it, is not shown",
        "stores/rabbitmq/options.py",
        "        _ = parts.port\n",
        "",
        f"{_URLS}test_a_password_without_a_host_is_in_no_traceback[user:geheim-amqp]",
    ),
    guard(
        "a hostile id steers no terminal and forges no line in an application's log",
        "__init__.py",
        "\nmake_log_records_printable()\n",
        "\n",
        "tests/unit/test_printable.py::"
        "test_a_hostile_id_neither_steers_a_terminal_nor_forges_a_line_in_the_applications_log",
    ),
    guard(
        "a group that all users share does not make a folder one's own",
        "delivery/private_folder.py",
        "    return bool(users - {_ROOT, os.geteuid()})\n",
        "    return not users\n",
        "tests/unit/delivery/test_private_folder.py::"
        "test_a_level_that_ones_own_group_can_write_to_is_refused_when_other_users_are_in_it[others1-members1]",
    ),
    guard(
        "the SQLite file that a link leads to is made for its owner alone",
        "stores/sql/private_file.py",
        "os.path.realpath(database)",
        "database",
        f"{_URLS}test_a_file_that_a_link_leads_to_is_for_its_owner_alone_too",
    ),
    guard(
        "what SQLAlchemy says of a URL, and quotes of it, is not shown",
        "stores/sql/store.py",
        'such as sqlite:///inbox.db?store=orders") from None\n',
        'such as sqlite:///inbox.db?store=orders")\n',
        f"{_URLS}test_a_password_where_a_port_should_be_is_not_shown_by_a_traceback[geheim]",
    ),
    guard(
        "a work file is read by Spark only when it holds what the ledger says",
        _WORK,
        "            _require_same(name, self._digest(name), digest)\n",
        "            assert digest\n",
        f"{_FILES}test_a_file_that_is_not_what_was_left_is_not_read[sqlite-change]",
    ),
    guard(
        "a work file is read by a plain process only when it holds what the ledger says",
        _WORK,
        "        _require_same(name, _digest_of(copy), digest)\n",
        "        assert digest\n",
        f"{_FILES}test_a_file_that_is_not_what_was_left_is_not_read[sqlite-cut]",
        f"{_SMALL}test_of_a_forged_work_file_nothing_is_delivered_and_nothing_is_lost[of another batch]",
    ),
    guard(
        "what a plain process reads of a work file is the copy that was checked",
        _WORK,
        "        copy.seek(0)\n        yield copy\n",
        "        copy.seek(0)\n        yield Path(name).open('rb')\n",
        f"{_FILES}test_what_is_read_is_what_was_checked_whatever_becomes_of_the_file_meanwhile[sqlite]",
    ),
    guard(
        "the ledger names no work file outside the run's own folder",
        _WORK,
        "        if not all(map(_OUTPUT.fullmatch, left)):\n",
        "        if not isinstance(left, dict):\n",
        f"{_FILES}test_what_is_published_names_nothing_outside_the_runs_own_folder[sqlite-../../etc/passwd]",
    ),
    guard(
        "what a process left is read only when it was not given up",
        _LEDGER,
        "            self._check(connection, fence)\n            connection.execute(replace, [values])\n",
        "            connection.execute(replace, [values])\n",
        f"{_SMALL}test_what_a_process_left_whose_step_was_taken_over_is_not_read_by_the_next",
        f"{_FILES}test_of_two_tries_the_one_that_was_given_up_publishes_nothing[sqlite]",
    ),
    guard(
        "what was left of a run that is settled is not read again",
        _LEDGER,
        "for table in (self._steps, self._work):",
        "for table in (self._steps,):",
        f"{_FILES}test_the_ledger_forgets_what_was_left_when_the_run_is_settled[sqlite]",
    ),
    guard(
        "the driver's error, which quotes the row, is not told as a cause",
        _DATABASE,
        "            raise StoreError(text) from None\n",
        "            raise StoreError(text) from error\n",
        f"{_TOLD}test_a_row_that_breaks_a_constraint_is_told_by_the_constraints_name[postgresql-check]",
    ),
    guard(
        "of PostgreSQL's texts only those are told that quote no value",
        _COMPLAINTS,
        "    if is_away(error) or code.startswith(_ABOUT_NAMES):\n",
        "    if code:\n",
        f"{_TOLD}test_whatever_the_server_refuses_is_told_without_a_value[postgresql]",
    ),
    guard(
        "of MySQL's texts only those are told that quote no value",
        _COMPLAINTS,
        "        if is_away(error) or code in _NAME_NUMBERS:\n",
        "        if code:\n",
        f"{_TOLD}test_whatever_the_server_refuses_is_told_without_a_value[mariadb]",
    ),
    guard(
        "a text of SQLite that is none is not quoted",
        _COMPLAINTS,
        '        return _SQLITE_VALUE.sub("", str(original))\n',
        "        return str(original)\n",
        f"{_TOLD}test_a_text_of_sqlite_that_is_none_is_not_quoted",
    ),
    guard(
        "a message that a unique index of the application's refuses is not taken for one that is there (MariaDB)",
        _DIALECTS,
        "on_duplicate_key_update(id=same)",
        "on_duplicate_key_update(id=table.c.id)",
        f"{_TOLD}test_a_row_that_breaks_a_constraint_is_told_by_the_constraints_name[mariadb-unique]",
    ),
    guard(
        "what an author's error says is not logged",
        _TRACES,
        "    if isinstance(error, _OURS):\n",
        "    if error:\n",
        f"{_LOGGED}test_an_authors_error_is_told_by_its_type_and_its_line",
        f"{_LOGGED}test_a_listener_logs_its_service_s_error_without_its_text_and_the_dead_letter_has_it",
        f"{_LOGGED}test_a_chain_logs_what_its_failure_store_took_without_the_text",
    ),
    guard(
        "an error that nobody expected ends a job without its text",
        "spark/jobs.py",
        "failed:\\n{frames_of(error)}",
        "failed:\\n{error!r} {frames_of(error)}",
        f"{_SMALL}test_an_error_that_nobody_expected_is_told_by_its_stack_and_without_its_text",
    ),
    guard(
        "what pydantic shows of a content is not told as a cause",
        _BINDING,
        'fit {describe_type(model)}: {_reasons(error)}") from None',
        'fit {describe_type(model)}: {_reasons(error)}") from error',
        f"{_TOLD}test_what_pydantic_shows_of_a_content_is_not_told_as_a_cause",
    ),
    guard(
        "a hostile id steers no terminal by an error that nobody caught",
        "errors.py",
        "        return printable(super().__str__())\n",
        "        return super().__str__()\n",
        "tests/unit/test_printable.py::"
        "test_an_error_that_nobody_caught_shows_a_hostile_id_without_steering_the_terminal",
    ),
    guard(
        "a URL with a password is no part of what is printed of an address",
        "spark/options.py",
        "    url: str = field(repr=False)\n",
        "    url: str\n",
        f"{_SPARK}test_data_source.py::test_what_travels_to_executors_shows_no_password_when_it_is_printed",
    ),
    guard(
        "what stands in a file's URL where a server would is not handed to a driver, which repeats it",
        "stores/sql/properties.py",
        "elsewhere = url.host or url.username or url.password or url.port",
        "elsewhere = url.host",
        f"{_URLS}test_what_stands_in_a_files_url_where_a_server_would_is_refused_and_not_repeated[geheim@]",
    ),
    guard(
        "a URL tells a driver nothing but how to reach its server",
        "stores/sql/properties.py",
        '    refuse_unknown(url.query, [*OPTION_NAMES, *sorted(allowed)], of=f"a store on {backend}")\n',
        "",
        f"{_URLS}test_an_option_of_the_driver_that_a_url_is_not_to_set_is_refused[mysql://host/db?local_infile=1]",
        f"{_URLS}test_an_option_of_the_driver_that_a_url_is_not_to_set_is_refused[postgresql://host/db?service=other]",
        f"{_URLS}test_an_option_of_the_driver_that_a_url_is_not_to_set_is_refused[sqlite:////tmp/x.db?mode=memory]",
    ),
    guard(
        "the password of a connection of another type is not taken for a store's URL",
        "airflow/hooks/connection.py",
        "    if connection.conn_type != OURS:\n",
        "    if connection.conn_type is None:\n",
        "tests/unit/airflow_parts/test_connection.py::"
        "test_a_connection_of_another_type_is_no_store_and_its_password_is_not_shown[postgres]",
    ),
    guard(
        "another user's archive of classes is not run",
        "spark/submit/class_archive.py",
        "    make_private_folder(folder)  # an archive is code: another user's would be run\n",
        "    make_private_folder(folder) if not folder.exists() else None\n",
        f"{_SPARK}test_class_archive.py::test_an_archive_that_another_user_may_have_put_there_is_not_run",
    ),
    guard(
        "a Spark that is one process lets nobody in",
        "airflow/operators/spark.py",
        "        self.conf = {**settings_of(master), **(self.conf or {})}\n",
        "",
        "tests/unit/airflow_parts/test_defaults.py::test_only_a_spark_that_is_one_process_is_told_to_let_nobody_in",
    ),
    guard(
        "a stranger on the network is given no block of a Spark that is one process",
        "spark/submit/master.py",
        '{"spark.authenticate": "true"} if alone else {}',
        "{} if alone else {}",
        "tests/spark/test_bystanders.py::test_a_stranger_on_the_network_is_given_no_block",
    ),
    guard(
        "what Spark keeps on the disk of this machine is its user's alone",
        "spark/submit/job.py",
        "class_archive(options=scratch) as start",
        "class_archive() as start",
        "tests/spark/test_bystanders.py::"
        "test_what_a_job_keeps_on_the_disk_another_user_cannot_read_and_it_goes_with_the_job",
    ),
    guard(
        "another user's zip of code is not sent to executors",
        "spark/submit/py_files.py",
        "    make_private_folder(folder)\n",
        "    folder.mkdir(exist_ok=True)\n",
        f"{_SPARK}test_py_files.py::test_a_zip_that_another_user_may_have_put_there_is_not_sent",
    ),
    guard(
        "only modules are sent to executors, and no secret that lies beside them",
        "spark/submit/py_files.py",
        "        if path.is_file() and path.name.endswith(_MODULES):\n",
        "        if path.is_file():\n",
        f"{_SPARK}test_py_files.py::test_only_modules_are_sent_and_no_secret_that_lies_beside_them",
    ),
    guard(
        "a work file is written where no other user can read or replace it",
        _WORK,
        "        make_private_folder(name)\n",
        "        Path(name).mkdir(parents=True, exist_ok=True)\n",
        "tests/unit/delivery/test_private_folder.py::"
        "test_what_a_run_leaves_in_a_shared_folder_another_user_cannot_read_or_replace",
        "tests/unit/delivery/test_private_folder.py::test_a_folder_that_another_user_made_first_is_refused",
    ),
    guard(
        "a record among the messages of producers does not say which message it is",
        "failure.py",
        'for key, value in content.items() if key != "taken_in"',
        "for key, value in content.items()",
        "tests/unit/pipeline/test_chain_as_service.py::"
        "test_a_record_that_a_producer_forged_takes_no_place_of_anothers_dead_letter[False]",
    ),
    guard(
        "nor is it read as a listener's dead letter, whose id says which message it is",
        "pipeline/chain.py",
        "                self._replay(before, message.id)\n",
        "                self.replay(message)\n",
        "tests/unit/pipeline/test_chain_as_service.py::"
        "test_a_record_that_a_producer_forged_takes_no_place_of_anothers_dead_letter[True]",
    ),
    guard(
        "a password in an argument is warned of",
        "cli/main.py",
        "    if any(map(shows_password, _references(arguments))):\n",
        "    if False:\n",
        "tests/unit/cli/test_looking.py::test_a_password_in_an_argument_is_warned_of",
    ),
    guard(
        "a URL in the wrong place of a command line is not repeated",
        "cli/main.py",
        'super().error(printable(_URL.sub("…", message)))',
        "super().error(message)",
        "tests/unit/cli/test_looking.py::test_a_url_in_the_wrong_place_is_refused_and_not_repeated[argv0]",
        "tests/unit/cli/test_looking.py::test_a_url_in_the_wrong_place_is_refused_and_not_repeated[argv4]",
    ),
    guard(
        "a value that Spark quotes is the fault of its message, whatever it says",
        "spark/error_kinds.py",
        " and not _ABOUT_VALUES.search(text)",
        "",
        "tests/unit/executors/test_signs.py::"
        "test_a_value_that_spark_quotes_is_a_fault_of_its_message_whatever_it_says[22018-[SPARK_JOB_CANCELLED]]",
        "tests/spark/test_strangers.py::"
        "test_a_message_that_speaks_like_an_outage_or_a_crash_is_found_and_the_rest_goes_on[[SPARK_JOB_CANCELLED]]",
    ),
    guard(
        "only the line of a traceback says that a store is away",
        "spark/error_kinds.py",
        r'r"^homing\.errors',
        r'r"homing\.errors',
        "tests/unit/executors/test_signs.py::test_an_authors_error_may_speak_of_ours",
    ),
    guard(
        "what a handler prints of a message does not say where a task's link leads",
        "airflow/operators/spark.py",
        "if not self.spark_application and (found := find_ui(str(line))):",
        "if found := find_ui(str(line)):",
        "tests/unit/airflow_parts/test_observing.py::"
        "test_what_a_handler_prints_of_a_message_does_not_say_where_the_link_to_spark_leads",
    ),
    guard(
        "a SQLite file that another user put where everybody can is not a store's",
        "stores/sql/private_file.py",
        "            if owner not in (_ROOT, os.geteuid(), folder.st_uid):\n",
        "            if False:\n",
        f"{_URLS}test_a_file_that_another_user_put_where_everybody_can_is_not_taken_for_the_stores[inbox.db]",
        f"{_URLS}test_a_file_that_another_user_put_where_everybody_can_is_not_taken_for_the_stores[inbox.db-wal]",
        f"{_URLS}test_a_file_that_another_user_put_where_everybody_can_is_not_taken_for_the_stores[a link]",
    ),
)
