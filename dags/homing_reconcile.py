"""The safety net of the worked example: sweeps every five minutes what a pipeline's own tasks could not settle."""

import os
from pathlib import Path

from homing.airflow import reconcile_dag

home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()

reconcile_dag(
    [
        {
            "name": "orders",
            "store": os.environ.get("ORDERS_STORE", f"sqlite:///{home}/orders.db?store=orders"),
            "dead_letter_store": os.environ.get("ORDERS_DEAD_LETTERS", f"sqlite:///{home}/orders.db?store=orders_dead"),
            "destinations": ["lake", "crm"],
        }
    ]
)
