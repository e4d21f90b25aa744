"""The worked example: the pipeline `orders` and its replay, as Airflow DAGs."""

import os
from pathlib import Path

from homing.airflow import delivery_dag

home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()

delivery_dag(
    "orders",
    chain="orders_chain:chain",
    store=os.environ.get("ORDERS_STORE", f"sqlite:///{home}/orders.db?store=orders"),
    dead_letter_store=os.environ.get("ORDERS_DEAD_LETTERS", f"sqlite:///{home}/orders.db?store=orders_dead"),
    polling_interval=1,
    max_retries=1,
    retry_interval=5,
    batch_size=1000,
    work_dir=str(home / "work" / "orders"),
)
