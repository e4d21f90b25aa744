"""The safety net of the worked example: sweeps every five minutes what a pipeline's own tasks could not settle."""

import os
from pathlib import Path

from homing.airflow import reconcile_dag

home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()

reconcile_dag(
    [
        {
            "name": "orders",
            "chain": "orders_chain:chain",
            "store": "env:ORDERS_STORE" if "ORDERS_STORE" in os.environ else f"sqlite:///{home}/orders.db?store=orders",
            "dead_letter_store": (
                "env:ORDERS_DEAD_LETTERS"
                if "ORDERS_DEAD_LETTERS" in os.environ
                else f"sqlite:///{home}/orders.db?store=orders_dead"
            ),
        }
    ]
)
