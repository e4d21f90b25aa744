"""Homing native to Airflow: DAG factory, sensor, operators, hook, callback.

Names are loaded on first use: Airflow reads this package's provider information while it is itself being imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homing.airflow.callbacks import dead_letter_callback
    from homing.airflow.dag import delivery_dag
    from homing.airflow.hook import StoreHook
    from homing.airflow.operators import DeliverOperator, ProcessOperator, ReplayOperator, SettleOperator
    from homing.airflow.sensor import StoreSensor
    from homing.airflow.trigger import StoreTrigger

_MODULES = {
    "DeliverOperator": "operators",
    "ProcessOperator": "operators",
    "ReplayOperator": "operators",
    "SettleOperator": "operators",
    "StoreHook": "hook",
    "StoreSensor": "sensor",
    "StoreTrigger": "trigger",
    "dead_letter_callback": "callbacks",
    "delivery_dag": "dag",
}

__all__ = [
    "DeliverOperator",
    "ProcessOperator",
    "ReplayOperator",
    "SettleOperator",
    "StoreHook",
    "StoreSensor",
    "StoreTrigger",
    "dead_letter_callback",
    "delivery_dag",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
