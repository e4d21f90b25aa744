"""The DAG file of every scenario: copied once for each, and named after it, so that each can be broken alone."""

import os
from datetime import timedelta
from pathlib import Path

import matrix_holds
from matrix_settings import ONE_TRY

from homing.airflow import delivery_dag

name = Path(__file__).stem
home = Path(os.environ["MATRIX_HOME"], name)
matrix_holds.hold_in_stores()

delivery_dag(
    name,
    chain=f"matrix_chain:{name}",
    store=f"sqlite:///{home}/store.db?store={name}",
    dead_letter_store=f"sqlite:///{home}/store.db?store={name}_dead",
    max_retries=0 if name in ONE_TRY else 1,
    default_args={"retries": 0 if name in ONE_TRY else 1, "retry_delay": timedelta(seconds=1)},
    retry_interval=1,
    work_dir=str(home / "work"),
    spark_above=0,  # what is killed is to be Spark's, however few the messages
    # Jobs as short as these end before a better compiler pays.
    spark_conf={"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
)
