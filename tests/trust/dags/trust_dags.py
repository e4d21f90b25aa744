"""Pipelines of two teams, one whose stores the page does not open, and DAGs that have nothing to do with messages."""

from __future__ import annotations

import os

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from homing.airflow import delivery_dag

CHAIN = "trust_chain:chain"

delivery_dag("own", chain=CHAIN, store="own_store", dead_letter_store="own_dead", work_dir=os.environ["TRUST_WORK"])
delivery_dag(
    "other", chain=CHAIN, store="other_store", dead_letter_store="other_dead", work_dir=os.environ["TRUST_WORK"]
)
delivery_dag("secret", chain=CHAIN, store="env:TRUST_SECRET", dead_letter_store="env:TRUST_DEAD")
delivery_dag("foreign", chain=CHAIN, store="not_ours", dead_letter_store="own_dead")
delivery_dag("missing", chain=CHAIN, store=os.environ["TRUST_MISSING"], dead_letter_store="own_dead")

with DAG("plain", schedule=None):
    EmptyOperator(task_id="settle")
