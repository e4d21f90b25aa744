"""A DAG that runs when something arrives in a store, and settles a few messages of it."""

from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from homing import open_store
from homing.airflow import StoreEventTrigger, StoreSensor

STORE = "env:ARRIVALS_STORE"
hints = StoreEventTrigger(STORE, polling_interval=0.5, repeat_interval=5)
arrivals = Asset("arrivals", watchers=[AssetWatcher("due", trigger=hints)])

with DAG("arrivals", schedule=[arrivals], max_active_runs=1):

    @task
    def handle(batch: dict[str, Any]) -> None:
        with open_store(STORE) as store:
            store.settle(store.claim(3, batch_id=batch["batch"]))

    # A hint that came while the last run drained the store finds nothing.
    listen = StoreSensor(task_id="listen", store=STORE, batch_size=3, mode="poke", timeout=3, soft_fail=True)
    handle(listen.output)
