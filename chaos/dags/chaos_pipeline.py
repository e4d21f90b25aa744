"""The pipeline of the chaos run on Airflow, with its replay and its safety net."""

import os
from datetime import timedelta

from homing.airflow import delivery_dag, reconcile_dag

STORES = {"store": "env:CHAOS_STORE", "dead_letter_store": "env:CHAOS_DEAD_LETTERS"}

delivery_dag(
    "chaos",
    chain="chaos.chain:chain",
    polling_interval=1,
    max_retries=1,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=1)},
    retry_interval=1,
    batch_size=500,
    lease=float(os.environ["CHAOS_LEASE"]),
    work_dir=os.environ["CHAOS_WORK"],
    spark_above=20,  # both ways are to be harmed
    **STORES,
)
reconcile_dag([{"name": "chaos", "chain": "chaos.chain:chain", **STORES}], schedule=timedelta(seconds=30), after=60)
