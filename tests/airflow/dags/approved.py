"""A pipeline whose replays of more than one message somebody must approve."""

from homing.airflow import delivery_dag

delivery_dag(
    "approved",
    chain="approved_chain:chain",
    store="env:APPROVED_STORE",
    dead_letter_store="env:APPROVED_DEAD_LETTERS",
    approve_replays_above=1,
    max_retries=0,
)
