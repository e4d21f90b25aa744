"""The guards of the connections that handlers declare: who gets them, for how long, and what is kept of them."""

from __future__ import annotations

from mutants.guard import guard

_CONNECTION, _DECLARED, _CHAIN, _CONTEXT = (
    "connection.py",
    "declared_connections.py",
    "pipeline/chain.py",
    "pipeline/context.py",
)
_HANDLERS = "tests/unit/pipeline/test_connections.py::"
_READING = "tests/unit/test_connection.py::"
_TASKS = "tests/unit/airflow_parts/test_handler_connections.py::"
_SPARK = "tests/spark/test_connections.py::"

GUARDS = (
    guard(
        "a handler gets no connection that it does not declare",
        _DECLARED,
        "        if conn_id not in self.ids:\n            raise ChainError(self._refusal(conn_id))\n",
        "",
        f"{_HANDLERS}test_a_connection_that_is_not_declared_is_an_error_that_says_so",
    ),
    guard(
        "the context of a result lends none",
        _CONTEXT,
        "        self._shown_message = None\n        self._connections = _NO_CONNECTIONS\n\n    def lend",
        "        self._shown_message = None\n\n    def lend",
        f"{_HANDLERS}test_a_context_lends_no_handler_the_connections_of_another",
    ),
    guard(
        "a router picks no destination whose connections it does not declare",
        "pipeline/flows.py",
        "                self.router.connections.cover(handler.connections)\n",
        "                pass\n",
        f"{_HANDLERS}test_a_router_picks_no_handler_whose_connections_it_does_not_declare[destination_router]",
    ),
    guard(
        "a router picks no processor whose connections it does not declare",
        "pipeline/attempt.py",
        "            handler.connections.cover(chosen.connections)\n",
        "            pass\n",
        f"{_HANDLERS}test_a_router_picks_no_handler_whose_connections_it_does_not_declare[processor_router]",
    ),
    guard(
        "what a chain's handlers declare is there before any of them runs",
        _CHAIN,
        "        self.require_connections()\n",
        "",
        f"{_HANDLERS}test_a_missing_one_says_who_asks_and_how_to_define_it_and_no_handler_runs",
        f"{_HANDLERS}test_what_a_listener_has_in_hand_when_a_connection_is_gone_is_delivered_once_it_is_there",
    ),
    guard(
        "a listener does not start without the connections of its chain",
        "listener/lifecycle.py",
        "                    require()\n",
        "                    pass\n",
        f"{_HANDLERS}test_a_listener_does_not_start_without_the_connections_of_its_chain",
    ),
    guard(
        "a listener holds a missing connection against no message",
        "listener/settlement.py",
        "        if isinstance(cause, MissingConnectionError):",
        "        if False:",
        f"{_HANDLERS}test_what_a_listener_has_in_hand_when_a_connection_is_gone_is_delivered_once_it_is_there",
        f"{_HANDLERS}test_what_a_chain_replays_by_itself_stays_while_a_connection_is_missing_and_is_no_dead_letter",
    ),
    guard(
        "a client that logged in with what is old is not used",
        "pipeline/clients.py",
        "self.process == os.getpid() and self.connections == connections",
        "self.process == os.getpid()",
        f"{_HANDLERS}test_a_client_is_made_anew_and_the_old_one_left_when_its_connection_says_something_new",
    ),
    guard(
        "the text of an error is freed of secrets before it is kept",
        "invocation/error_info.py",
        "return hide_secrets(str(error))",
        "return str(error)",
        f"{_HANDLERS}test_no_failure_record_holds_the_secrets_of_a_connection_whatever_a_handler_raises",
    ),
    guard(
        "the stack of an error is freed of secrets before it is kept",
        "invocation/error_info.py",
        'stack = hide_secrets("".join(trace.format()))',
        'stack = "".join(trace.format())',
        f"{_HANDLERS}test_no_failure_record_holds_the_secrets_of_a_connection_whatever_a_handler_raises",
    ),
    guard(
        "secrets are hidden in the forms in which an error may quote them",
        _CONNECTION,
        "            _secrets.update(_forms_of(secret))\n",
        "            _secrets.add(secret)\n",
        f"{_READING}test_texts_are_freed_of_secrets_however_these_are_written[repr]",
        f"{_READING}test_texts_are_freed_of_secrets_however_these_are_written[dumps]",
        f"{_READING}test_texts_are_freed_of_secrets_however_these_are_written[quote]",
    ),
    guard(
        "a connection shows no secret",
        _CONNECTION,
        '{self.conn_id!r} of type {self.conn_type!r}>"',
        '{self.conn_id!r} of type {self.conn_type!r} {self.password}>"',
        f"{_READING}test_it_shows_no_secret_and_is_not_pickled",
    ),
    guard(
        "what cannot be read is not quoted by the error's cause",
        _CONNECTION,
        '            "Airflow. No message has failed"\n        ) from None',
        '            "Airflow. No message has failed"\n        ) from error',
        f"{_READING}test_what_cannot_be_read_is_an_error_that_repeats_nothing_of_it[http://u:s3cret@ho\\u2100st-neither]",
    ),
    guard(
        "the process has them no longer than the block lasts",
        _DECLARED,
        "            os.environ.pop(name, None) if earlier is None else os.environ.update({name: earlier})",
        "            pass",
        f"{_HANDLERS}test_nothing_is_left_in_the_environment_when_the_block_has_ended",
    ),
    guard(
        "Airflow can be imported where it keeps a job from its database",
        "spark/submit/job.py",
        "**self._secrets(), **_NO_DATABASE, ",
        "**self._secrets(), ",
        f"{_TASKS}test_a_hook_finds_them_in_a_process_that_airflow_keeps_from_its_database",
    ),
    guard(
        "a job gets the connections of its own handlers alone",
        "airflow/operators/spark.py",
        ".connections(*flows_of(self._step())))",
        ".connections())",
        f"{_TASKS}test_a_missing_one_fails_the_task_that_needs_it_says_who_asked_and_fails_no_message",
    ),
    guard(
        "a replay that is set up wrongly dead-letters nothing",
        "airflow/operators/spark.py",
        "                batch.release()\n",
        "                pass\n",
        f"{_TASKS}test_one_that_is_missing_at_a_later_try_of_a_replay_dead_letters_nothing[None]",
        f"{_TASKS}test_one_that_is_missing_at_a_later_try_of_a_replay_dead_letters_nothing[1000]",
    ),
    guard(
        "the log of a task shows no secret that it looked up",
        "airflow/hooks/handler_connections.py",
        "            mask_secret(secret)\n",
        "            pass\n",
        f"{_TASKS}test_the_log_of_a_task_does_not_show_them",
    ),
    guard(
        "what a job without Spark prints is logged without secrets",
        "airflow/operators/spark.py",
        'self.log.info("%s", hide_secrets(line.rstrip()))',
        'self.log.info("%s", line.rstrip())',
        f"{_TASKS}test_what_a_job_prints_is_logged_without_them",
    ),
    guard(
        "what handlers print in the task's own process goes to no log with secrets",
        "airflow/hooks/handler_connections.py",
        "        self._stream.write(hide_secrets(text))\n",
        "        self._stream.write(text)\n",
        f"{_TASKS}test_a_replay_in_the_task_itself_prints_none_of_them",
    ),
    guard(
        "what spark-submit prints is logged without secrets",
        "airflow/operators/spark.py",
        "yield hide_secrets(str(line))",
        "yield line",
        f"{_TASKS}test_what_a_job_prints_is_logged_without_them",
    ),
    guard(
        "executors are handed the connections",
        "spark/engine.py",
        "            connections=texts_in_environment(self.chain.connections(flow)),\n",
        "",
        f"{_SPARK}test_executors_have_them_while_a_task_runs_and_a_client_is_made_anew_for_what_is_new",
    ),
    guard(
        "the repr of what travels to executors shows no connection",
        "spark/task.py",
        "    connections: Mapping[str, str] = field(default_factory=dict, repr=False)",
        "    connections: Mapping[str, str] = field(default_factory=dict)",
        f"{_SPARK}test_a_flow_is_handed_its_own_connections_and_no_others",
    ),
    guard(
        "a job does not begin without its connections",
        "spark/jobs.py",
        "    chain.require_connections(*flows_of(step))\n",
        "",
        "tests/unit/executors/test_app.py::test_a_missing_connection_is_a_mistake_in_the_set_up_and_holds_nothing_up",
    ),
    guard(
        "a replay on the command line holds no message while a connection is missing",
        "cli/failures.py",
        "        with context.connected(chain), about as answer:",
        "        with about as answer:",
        "tests/unit/cli/test_failing.py::test_a_replay_without_a_connection_of_the_chain_is_refused_before_anything_is_leased",
    ),
)
