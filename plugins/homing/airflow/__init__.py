"""Homing native to Airflow, at three levels: DAG factories, a task group, and the sensor, operators, hook and triggers
they are made of.

Names are loaded on first use: Airflow reads this package's provider information while it is itself being imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homing.airflow.callbacks import dead_letter_callback
    from homing.airflow.dag import delivery_dag
    from homing.airflow.events import StoreEventTrigger
    from homing.airflow.hook import StoreHook
    from homing.airflow.listening import ListenOperator, listener_dag
    from homing.airflow.operators import DeliverOperator, ProcessOperator, ReplayOperator
    from homing.airflow.pipeline import PipelineSpec
    from homing.airflow.reconciling import ReconcileOperator, reconcile_dag
    from homing.airflow.selecting import SelectOperator
    from homing.airflow.sensor import StoreSensor
    from homing.airflow.settling import SettleOperator
    from homing.airflow.storing import StoreMessagesOperator
    from homing.airflow.task_group import DeliveryTaskGroup
    from homing.airflow.trigger import StoreTrigger

_MODULES = {
    "DeliverOperator": "operators",
    "DeliveryTaskGroup": "task_group",
    "ListenOperator": "listening",
    "PipelineSpec": "pipeline",
    "ProcessOperator": "operators",
    "ReconcileOperator": "reconciling",
    "ReplayOperator": "operators",
    "SelectOperator": "selecting",
    "SettleOperator": "settling",
    "StoreEventTrigger": "events",
    "StoreHook": "hook",
    "StoreMessagesOperator": "storing",
    "StoreSensor": "sensor",
    "StoreTrigger": "trigger",
    "dead_letter_callback": "callbacks",
    "delivery_dag": "dag",
    "listener_dag": "listening",
    "reconcile_dag": "reconciling",
}

__all__ = [
    "DeliverOperator",
    "DeliveryTaskGroup",
    "ListenOperator",
    "PipelineSpec",
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
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
