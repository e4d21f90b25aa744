"""The same chain twice: on Spark, and in one plain process. One whose connection comes late, and a DAG that leaks on
purpose, to be found."""

import base64
import os
import subprocess
import sys

from airflow.sdk import DAG, task

from homing.airflow import delivery_dag

EVENT_LOG = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": f"file://{os.environ['SCAN_EVENTS']}",
    "spark.eventLog.compress": "false",
    # What the scan must find: in the arguments, in the rendered fields, in the task's log and in the event log.
    "spark.homing.planted": os.environ["SCAN_PLANTED"],
}

for name, above in (("spark", 0), ("plain", 1000)):
    delivery_dag(
        f"marked_{name}",
        chain="marked_chain:chain",
        store=f"marked_{name}",
        dead_letter_store=f"marked_{name}_dead",
        max_retries=0,
        retry_interval=0.1,
        polling_interval=0.5,
        spark_above=above,
        spark_conf=EVENT_LOG,
    )

delivery_dag(
    "marked_late",
    chain="marked_chain:late",
    store=f"{os.environ['SCAN_LATE']}?store=late",
    dead_letter_store=f"{os.environ['SCAN_LATE']}?store=late_dead",
    polling_interval=0.5,
)

with DAG("leak", schedule=None):

    @task
    def say() -> str:
        mark = os.environ["SCAN_PLANTED"].encode()
        sys.stdout.write(f"{mark.hex()}\n")
        subprocess.run([sys.executable, "-c", "import time; time.sleep(1)", mark.decode()], check=True)
        return base64.b64encode(b"x" + mark).decode()

    say()
