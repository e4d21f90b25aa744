"""Homing native to Airflow, at three levels: DAG factories, a task group, and the sensor, operators, hook and triggers
they are made of.

Names are loaded on first use: Airflow reads this package's provider information while it is itself being imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from homing.extras import load_name

if TYPE_CHECKING:
    from homing.airflow.callbacks import dead_letter_callback
    from homing.airflow.dags.delivery_dag import delivery_dag
    from homing.airflow.dags.listener_dag import ListenOperator, listener_dag
    from homing.airflow.dags.reconcile_dag import ReconcileOperator, reconcile_dag
    from homing.airflow.dags.task_group import DeliveryTaskGroup
    from homing.airflow.hooks.store import StoreHook
    from homing.airflow.operators.select import SelectOperator
    from homing.airflow.operators.settle import SettleOperator
    from homing.airflow.operators.spark import DeliverOperator, ProcessOperator, ReplayOperator
    from homing.airflow.operators.store import StoreMessagesOperator
    from homing.airflow.pipeline_config import PipelineConfig
    from homing.airflow.sensors.store import StoreSensor
    from homing.airflow.triggers.asset import StoreEventTrigger
    from homing.airflow.triggers.store import StoreTrigger

_MODULES = {
    "DeliverOperator": "operators.spark",
    "DeliveryTaskGroup": "dags.task_group",
    "ListenOperator": "dags.listener_dag",
    "PipelineConfig": "pipeline_config",
    "ProcessOperator": "operators.spark",
    "ReconcileOperator": "dags.reconcile_dag",
    "ReplayOperator": "operators.spark",
    "SelectOperator": "operators.select",
    "SettleOperator": "operators.settle",
    "StoreEventTrigger": "triggers.asset",
    "StoreHook": "hooks.store",
    "StoreMessagesOperator": "operators.store",
    "StoreSensor": "sensors.store",
    "StoreTrigger": "triggers.store",
    "dead_letter_callback": "callbacks",
    "delivery_dag": "dags.delivery_dag",
    "listener_dag": "dags.listener_dag",
    "reconcile_dag": "dags.reconcile_dag",
}

__all__ = [
    "DeliverOperator",
    "DeliveryTaskGroup",
    "ListenOperator",
    "PipelineConfig",
    "ProcessOperator",
    "ReconcileOperator",
    "ReplayOperator",
    "SelectOperator",
    "SettleOperator",
    "StoreEventTrigger",
    "StoreHook",
    "StoreMessagesOperator",
    "StoreSensor",
    "StoreTrigger",
    "dead_letter_callback",
    "delivery_dag",
    "listener_dag",
    "reconcile_dag",
]


def __getattr__(name: str) -> Any:
    return load_name(__name__, _MODULES, name, extra="airflow", packages=["airflow"])
