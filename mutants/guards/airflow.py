"""The guards of the operators, sensors and callbacks on Airflow."""

from __future__ import annotations

from mutants.guard import guard

_CALLBACKS, _SETTLE, _SENSOR = (f"airflow/{name}.py" for name in ("callbacks", "operators/settle", "sensors/store"))
_RECONCILE = "airflow/dags/reconcile_dag.py"
_CALLED, _SENSED, _REPLAYED = (
    f"tests/unit/airflow_parts/test_{name}.py::" for name in ("callbacks", "sensor", "replaying")
)
_RECONCILED = "tests/unit/airflow_parts/test_reconciling.py::"
_PAGE, _NOTES, _XCOMS, _HOOK = (
    f"airflow/{name}.py" for name in ("plugin/messages_page", "task_notes", "xcoms", "hooks/store")
)
_WOKEN = "tests/unit/airflow_parts/test_wake_up.py::"
_SERIALIZED = "airflow/serialized_dag.py"
_OBSERVED, _CONNECTED = (f"tests/unit/airflow_parts/test_{name}.py::" for name in ("observing", "connection"))
_FUZZED = "tests/fuzz/test_xcoms.py::"
_ROUTED, _FORGED = (f"tests/trust/test_{name}.py::" for name in ("routes", "forged"))

_DEFAULTS = "tests/unit/airflow_parts/test_defaults.py::"

GUARDS = (
    guard(
        "a pipeline claims messages of its own partitions only",
        "airflow/sensors/store.py",
        "batch.claim(self.batch_size, self.lease, partitions=self.partitions)",
        "batch.claim(self.batch_size, self.lease)",
        "tests/unit/airflow_parts/test_sensor.py::test_two_pipelines_share_a_store_out_by_partition",
    ),
    guard(
        "a store that has something wakes the trigger that waits for it",
        "airflow/triggers/wake_up.py",
        "            waker.listen()\n",
        "            pass\n",
        f"{_WOKEN}test_it_fires_when_a_message_is_committed_and_not_at_the_next_look[StoreTrigger]",
    ),
    guard(
        "a trigger that is cancelled leaves no thread behind",
        "airflow/triggers/wake_up.py",
        "            waker.stop()\n",
        "            pass\n",
        f"{_WOKEN}test_a_trigger_that_is_cancelled_leaves_neither_thread_nor_connection[StoreTrigger]",
    ),
    guard(
        "what waits for a replay of its session starts no run, and the listening does not go round in circles",
        "airflow/triggers/store.py",
        "            if self.pipeline and is_pipeline_store(stores[0]):\n",
        "            if False and is_pipeline_store(stores[0]):\n",
        f"{_SENSED}test_the_trigger_of_a_pipeline_does_not_fire_for_what_waits_for_a_replay_of_its_session",
    ),
    guard(
        "a try that somebody cleared dead-letters nothing",
        _CALLBACKS,
        '        return state == "failed"\n',
        "        return True\n",
        f"{_CALLED}test_a_try_that_somebody_cleared_dead_letters_nothing[restarting]",
    ),
    guard(
        "a late call of the DAG processor leaves a newer try alone",
        _CALLBACKS,
        '    if "exception" not in context:\n        return False\n',
        "",
        f"{_CALLED}test_a_late_call_of_the_dag_processor_leaves_a_newer_try_alone",
    ),
    guard(
        "a try that was left behind leaves the newer one alone",
        _CALLBACKS,
        'return not batch.is_open("replay")',
        "return bool(batch)",
        f"{_CALLED}test_a_try_that_a_killed_scheduler_left_behind_leaves_the_newer_one_alone",
    ),
    guard(
        "settling twice asks for one replay",
        _SETTLE,
        "skip_when_already_exists=True",
        "skip_when_already_exists=False",
        f"{_REPLAYED}test_settling_asks_for_one_replay_of_what_failed",
    ),
    guard(
        "what failed is replayed also when the settlement that moved it died",
        _SETTLE,
        "to_replay, stranded = batch.awaiting_replay(), batch.stranded()",
        "to_replay, stranded = settlement.failed, batch.stranded()",
        f"{_REPLAYED}test_settling_asks_for_one_replay_of_what_failed",
    ),
    guard(
        "what was left over from before is replayed too",
        _SETTLE,
        "        if to_replay or stranded:\n",
        "        if to_replay:\n",
        f"{_REPLAYED}test_settling_often_asks_for_one_replay_of_what_was_left_over",
    ),
    guard(
        "a run that has messages of its own takes in no new ones",
        _SENSOR,
        "if self.pipeline.source and not known:",
        "if self.pipeline.source:",
        f"{_SENSED}test_a_run_that_is_cleared_takes_nothing_in",
    ),
    guard(
        "a broker that is away holds up nothing that is here",
        _SENSOR,
        "        except SourceUnavailableError as error:\n",
        "        except ZeroDivisionError as error:\n",
        f"{_SENSED}test_a_broker_that_is_away_holds_up_nothing_that_is_here",
    ),
    guard(
        "a run whose batch is complete is skipped, and waits for nothing new",
        _SENSOR,
        "        if claim.known:\n",
        "        if claim.known is None:\n",
        f"{_SENSED}test_a_run_whose_batch_is_complete_is_skipped",
    ),
    guard(
        "a store whose leases end with the task is refused",
        _SENSOR,
        "            if not is_pipeline_store(store):\n",
        "            if not store:\n",
        f"{_SENSED}test_a_store_whose_leases_end_with_the_task_is_refused",
    ),
    guard(
        "one batch that cannot be settled holds up nothing else",
        _RECONCILE,
        "        except Exception as error:\n            self.log.exception(what)\n",
        "        except ZeroDivisionError as error:\n            self.log.exception(what)\n",
        f"{_RECONCILED}test_one_batch_that_cannot_be_settled_holds_up_nothing_else",
    ),
    guard(
        "trouble is told, once everything else is done",
        _RECONCILE,
        "        if troubles:\n            raise troubles[0]\n",
        "",
        f"{_RECONCILED}test_trouble_is_told_once_everything_else_is_done",
    ),
    guard(
        "a batch whose lease lasts is left alone",
        _RECONCILE,
        "stores.store.view.expired_batches(self.after)",
        "stores.store.view.expired_batches(-10**9)",
        f"{_RECONCILED}test_a_batch_whose_run_is_gone_is_settled_once_its_lease_has_ended",
    ),
    guard(
        "the page asks for the permission on the DAG it shows",
        _PAGE,
        '        Depends(requires_access_dag("GET", DagAccessEntity.XCOM)),\n',
        "",
        f"{_ROUTED}test_each_role_sees_of_each_dag_what_the_table_says_and_no_more[FAB]",
    ),
    guard(
        "a stranger hears nothing but that a login is needed, whatever is asked for",
        _PAGE,
        "        Depends(requires_authenticated()),\n",
        "",
        f"{_ROUTED}test_tricks_in_the_place_of_names_open_nothing_and_break_nothing[SimpleAuth-nobody]",
    ),
    guard(
        "an index that no column holds is refused before a database is asked",
        _PAGE,
        "Annotated[int, Query(ge=-1, le=_LAST_INDEX)] = -1",
        "int = -1",
        f"{_ROUTED}test_tricks_in_the_place_of_names_open_nothing_and_break_nothing[SimpleAuth-admin]",
    ),
    guard(
        "a task that does not exist has no page",
        _PAGE,
        " or run.get_task_instance(task_id, session=session, map_index=map_index) is None",
        "",
        f"{_ROUTED}test_what_is_not_there_gets_one_answer_whatever_is_missing[SimpleAuth]",
    ),
    guard(
        "a name with a NUL is not asked for",
        _PAGE,
        'if any("\\0" in text for text in request.query_params.values()):',
        "if not request:",
        f"{_OBSERVED}test_a_nul_in_a_name_is_not_found_without_asking_a_database",
    ),
    guard(
        "only a replay chooses what its page shows",
        _PAGE,
        ' if "ids" in task.template_fields else None',
        "",
        f"{_FORGED}test_forged_xcoms_open_make_and_show_nothing[SimpleAuth]",
    ),
    guard(
        "a choice of ids that is very long is not read",
        _PAGE,
        "        func.length(value) <= _LONGEST_IDS,\n",
        "",
        f"{_FUZZED}test_the_page_survives_every_choice_of_ids",
    ),
    guard(
        "no text of others is markup on the page",
        _PAGE,
        "return escape(printable(text))",
        "return printable(text)",
        f"{_FUZZED}test_the_page_survives_every_choice_of_ids",
    ),
    guard(
        "no text of others keeps the page from being sent",
        _PAGE,
        "return escape(printable(text))",
        "return escape(text)",
        f"{_FUZZED}test_the_page_survives_every_choice_of_ids",
    ),
    guard(
        "a refusal tells browsers as much as the page does",
        _PAGE,
        "    answer.headers.update(_HEADERS)\n",
        "",
        f"{_OBSERVED}test_the_page_that_the_plugin_mounts_asks_for_a_login",
    ),
    guard(
        "the page makes no file and no table",
        _PAGE,
        "open_pipeline_stores(*urls, read_only=True)",
        "open_pipeline_stores(*urls)",
        f"{_OBSERVED}test_the_page_makes_neither_a_file_nor_a_table",
    ),
    guard(
        "the Test button makes no file and no table",
        _HOOK,
        "open_store(url, read_only=True)",
        "open_store(url)",
        f"{_CONNECTED}test_test_connection_makes_neither_a_file_nor_a_table",
    ),
    guard(
        "the Test button looks up nothing in the API server's environment",
        _HOOK,
        "_open_to_look(self._get_url(in_environment=False))",
        "_open_to_look(self._get_url())",
        f"{_CONNECTED}test_what_is_in_the_environment_of_the_api_server_is_neither_opened_nor_told[s3cret]",
    ),
    guard(
        "the page looks up nothing in the API server's environment",
        _HOOK,
        "find_url_on_server(reference, in_environment=False)",
        "find_url_on_server(reference)",
        f"{_CONNECTED}test_what_is_in_the_environment_of_the_api_server_is_neither_opened_nor_told[s3cret]",
    ),
    guard(
        "the Test button makes no queue",
        "stores/rabbitmq/publisher.py",
        "        if self._only_looks:\n            return\n",
        "",
        f"{_CONNECTED}test_test_connection_makes_no_queue",
    ),
    guard(
        "a store that a DAG may not name to the web is left out when it is read, too",
        _SERIALIZED,
        "(_public_name(said.get(name)) for name in ",
        "(said.get(name) for name in ",
        f"{_OBSERVED}test_stores_that_a_dag_may_not_name_are_left_out_when_they_are_read_too",
    ),
    guard(
        "a note is written for tasks of ours only",
        _NOTES,
        "for task_id, task in dag.task_dict.items() if is_ours(task)]",
        "for task_id, task in dag.task_dict.items() if task]",
        f"{_OBSERVED}test_a_note_is_written_only_for_our_operators",
    ),
    guard(
        "a note that cannot be written is undone alone",
        _NOTES,
        "            with connection.begin_nested():\n                _write(connection, dag_run, ours)\n",
        "            _write(connection, dag_run, ours)\n",
        f"{_OBSERVED}test_a_note_that_the_database_refuses_is_undone_with_the_others_and_nothing_else",
    ),
    guard(
        "a note that cannot be read costs its neighbours nothing",
        _NOTES,
        "    value = cast(XComModel.value, Text)\n",
        "    value = cast(XComModel.value, Text)\n    value.type = XComModel.value.type\n",
        f"{_FUZZED}test_the_schedulers_session_survives_every_note",
    ),
    guard(
        "a value nested too deeply to read is no value",
        _XCOMS,
        "    except (ValueError, RecursionError):\n        return None\n",
        "    except ValueError:\n        return None\n",
        f"{_FUZZED}test_the_schedulers_session_survives_every_note",
    ),
    guard(
        "a rate that no clock can keep fails no message",
        "airflow/operators/spark.py",
        "        if rate and not _SLOWEST <= rate < math.inf:\n",
        "        if rate is None:\n",
        f"{_REPLAYED}test_a_rate_that_no_clock_can_keep_is_refused_before_a_message_is_held[1e-320]",
    ),
    guard(
        "no XCom tells the scheduler which tasks to skip",
        "airflow/operators/select.py",
        "    inherits_from_skipmixin = False\n",
        "",
        f"{_OBSERVED}test_the_scheduler_asks_no_xcom_of_a_pipeline_which_tasks_to_skip",
    ),
    guard(
        "a task acts on names that `select` can have returned, and on nothing else",
        _XCOMS,
        "    if not isinstance(selected, list | tuple) or not all(\n",
        "    if not isinstance(selected, list | tuple | str | dict) or not any(\n",
        f"{_FUZZED}test_a_task_refuses_what_select_cannot_have_returned_or_finds_nothing",
    ),
    guard(
        "a work directory that cannot be reached, for want of Java, keeps no batch from being settled",
        "spark/submit/hadoop_shell.py",
        "    except ConfigurationError as error:\n",
        "    except ZeroDivisionError as error:\n",
        "tests/unit/airflow_parts/test_work_elsewhere.py::test_its_messages_are_settled_all_the_same[Spark needs Java]",
    ),
    guard(
        "two DAGs of one name in a file are refused",
        "airflow/dags/neighbours.py",
        "    if any(dag.dag_id == dag_id for dag in _dags_of_file()):\n",
        "    if any(dag.dag_id == dag_id for dag in ()):\n",
        f"{_DEFAULTS}test_two_dags_of_one_name_in_a_file_are_refused[twice]",
    ),
    guard(
        "two chains on one store are refused",
        "airflow/dags/neighbours.py",
        "        if other.chain != pipeline.chain:\n",
        "        if not other.chain:\n",
        f"{_DEFAULTS}test_two_chains_on_one_store_are_refused",
    ),
    guard(
        "a callback of the author is called for the replay, too",
        "airflow/dags/delivery_dag.py",
        "[dead_letter_callback, *callbacks_in(dag.default_args)]",
        "[dead_letter_callback]",
        f"{_DEFAULTS}test_callbacks_of_the_author_are_called_after_ours[said2-called2]",
    ),
    guard(
        "a test run waits for no message that nobody stores",
        "airflow/trial_run.py",
        "== _IN_PROCESS:",
        "== 0:",
        f"{_DEFAULTS}test_a_test_run_does_not_wait_for_messages",
    ),
    guard(
        "a connection of Spark that was chosen and does not exist is no local master",
        "airflow/hooks/spark.py",
        "        if connection_id != DEFAULT_CONNECTION:\n",
        "        if not connection_id:\n",
        f"{_DEFAULTS}test_a_connection_that_was_chosen_and_does_not_exist_is_named",
    ),
    guard(
        "a store that takes nothing is not taken for a broker that is away",
        _SENSOR,
        "import ConfigurationError, SourceUnavailableError, UnsupportedError",
        "import ConfigurationError, StoreUnavailableError as SourceUnavailableError, UnsupportedError",
        f"{_SENSED}test_a_store_that_takes_nothing_is_not_taken_for_a_broker_that_is_away",
    ),
)
