"""The worked example: the pipeline `orders` and its replay, as Airflow DAGs."""

import os
from pathlib import Path

from homing.airflow import delivery_dag

home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()

delivery_dag(
    "orders",
    chain="orders_chain:chain",
    # By name: what a URL says, passwords included, stays where the variable is set.
    store="env:ORDERS_STORE" if "ORDERS_STORE" in os.environ else f"sqlite:///{home}/orders.db?store=orders",
    dead_letter_store=(
        "env:ORDERS_DEAD_LETTERS"
        if "ORDERS_DEAD_LETTERS" in os.environ
        else f"sqlite:///{home}/orders.db?store=orders_dead"
    ),
    source="env:ORDERS_SOURCE" if "ORDERS_SOURCE" in os.environ else None,
    polling_interval=1,
    max_retries=1,
    retry_interval=5,
    batch_size=1000,
    work_dir=str(home / "work" / "orders"),
)
