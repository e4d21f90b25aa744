"""The safety net of the one scenario whose own tasks cannot settle anything."""

import os
from datetime import timedelta
from pathlib import Path

from homing.airflow import reconcile_dag

NAME = "left_broken"
url = f"sqlite:///{Path(os.environ['MATRIX_HOME'], NAME)}/store.db?store={NAME}"

reconcile_dag(
    [{"name": NAME, "chain": f"matrix_chain:{NAME}", "store": url, "dead_letter_store": f"{url}_dead"}],
    schedule=timedelta(seconds=15),
    after=1,
)
