"""The safety net of the worked example: sweeps every five minutes what a pipeline's own tasks could not settle."""

import os
from pathlib import Path

from homing.airflow import reconcile_dag

home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()
has_connections = "AIRFLOW_CONN_ORDERS_STORE" in os.environ and "AIRFLOW_CONN_ORDERS_DEAD_LETTERS" in os.environ

reconcile_dag(
    [
        {
            "name": "orders",
            "chain": "orders_chain:chain",
            "store": "orders_store" if has_connections else f"sqlite:///{home}/orders.db?store=orders",
            "dead_letter_store": (
                "orders_dead_letters" if has_connections else f"sqlite:///{home}/orders.db?store=orders_dead"
            ),
        }
    ]
)
