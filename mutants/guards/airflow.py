"""The guards of the operators, sensors and callbacks on Airflow."""

from __future__ import annotations

from mutants.guard import guard

_CALLBACKS, _SETTLING, _SENSOR = (f"airflow/{name}.py" for name in ("callbacks", "settling", "sensor"))
_RECONCILING = "airflow/reconciling.py"
_CALLED, _SENSED, _REPLAYED = (
    f"tests/unit/airflow_parts/test_{name}.py::" for name in ("callbacks", "sensor", "replaying")
)
_RECONCILED = "tests/unit/airflow_parts/test_reconciling.py::"

GUARDS = (
    guard(
        "what waits for a replay of its session starts no run, and the listening does not go round in circles",
        "airflow/trigger.py",
        "            if self.pipeline and isinstance(stores[0], SqlStore):\n",
        "            if False and isinstance(stores[0], SqlStore):\n",
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
        _SETTLING,
        "skip_when_already_exists=True",
        "skip_when_already_exists=False",
        f"{_REPLAYED}test_settling_asks_for_one_replay_of_what_failed",
    ),
    guard(
        "what failed is replayed also when the settlement that moved it died",
        _SETTLING,
        "to_replay, stranded = batch.awaiting_replay(), batch.stranded()",
        "to_replay, stranded = settlement.failed, batch.stranded()",
        f"{_REPLAYED}test_settling_asks_for_one_replay_of_what_failed",
    ),
    guard(
        "what was left over from before is replayed too",
        _SETTLING,
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
        "            if not isinstance(store, SqlStore):\n",
        "            if not store:\n",
        f"{_SENSED}test_a_store_whose_leases_end_with_the_task_is_refused",
    ),
    guard(
        "one batch that cannot be settled holds up nothing else",
        _RECONCILING,
        "        except Exception as error:\n            self.log.exception(what)\n",
        "        except ZeroDivisionError as error:\n            self.log.exception(what)\n",
        f"{_RECONCILED}test_one_batch_that_cannot_be_settled_holds_up_nothing_else",
    ),
    guard(
        "trouble is told, once everything else is done",
        _RECONCILING,
        "        if troubles:\n            raise troubles[0]\n",
        "",
        f"{_RECONCILED}test_trouble_is_told_once_everything_else_is_done",
    ),
    guard(
        "a batch whose lease lasts is left alone",
        _RECONCILING,
        "stores.store.expired_batches(self.after)",
        "stores.store.expired_batches(-10**9)",
        f"{_RECONCILED}test_a_batch_whose_run_is_gone_is_settled_once_its_lease_has_ended",
    ),
)
