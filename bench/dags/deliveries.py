"""Our pipeline, as an Airflow DAG."""

import os

from homing.airflow import delivery_dag

delivery_dag(
    "deliveries",
    chain="deliveries_chain:chain",
    store="env:BENCH_STORE",
    dead_letter_store="env:BENCH_DEAD_LETTERS",
    polling_interval=1,
    batch_size=int(os.environ["BENCH_BATCH"]),
    work_dir=os.environ["BENCH_WORK"],
)
