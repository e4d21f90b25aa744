"""The worked example: the pipeline `orders` and its replay, as Airflow DAGs."""

import os
from pathlib import Path

from homing.airflow import delivery_dag

home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()
# By the ids of Airflow connections, of type homing, where they exist; else in a file.
has_connections = "AIRFLOW_CONN_ORDERS_STORE" in os.environ and "AIRFLOW_CONN_ORDERS_DEAD_LETTERS" in os.environ
has_source = "AIRFLOW_CONN_ORDERS_SOURCE" in os.environ

delivery_dag(
    "orders",
    chain="orders_chain:chain",
    store="orders_store" if has_connections else f"sqlite:///{home}/orders.db?store=orders",
    dead_letter_store="orders_dead_letters" if has_connections else f"sqlite:///{home}/orders.db?store=orders_dead",
    source="orders_source" if has_source else None,
    polling_interval=1,
    max_retries=1,
    retry_interval=5,
    batch_size=1000,
    work_dir=str(home / "work" / "orders"),
)
