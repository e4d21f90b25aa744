"""The same DAG shape of stock operators: a deferrable sensor that looks once a second, Spark jobs that do nothing."""

import os
from datetime import datetime, timezone

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.providers.standard.sensors.filesystem import FileSensor
from airflow.sdk import DAG

JOB = os.environ["BENCH_NOTHING"]

with DAG(
    "stock", schedule="@continuous", max_active_runs=1, start_date=datetime(2025, 1, 1, tzinfo=timezone.utc)
) as dag:
    listen = FileSensor(task_id="listen", filepath=os.environ["BENCH_SIGNAL"], poke_interval=1, deferrable=True)
    process = SparkSubmitOperator(task_id="process", application=JOB, conn_id="spark_default")
    deliver = [
        SparkSubmitOperator(task_id=f"deliver_{name}", application=JOB, conn_id="spark_default")
        for name in ("crm", "lake")
    ]
    settle = PythonOperator(task_id="settle", python_callable=lambda: None)
    listen >> process >> deliver >> settle
