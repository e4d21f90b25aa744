"""Homing native to Airflow: DAG factory, sensor, operators, hook, callback."""

from homing.airflow.dag import delivery_dag
from homing.airflow.hook import StoreHook
from homing.airflow.operators import DeliverOperator, ProcessOperator, ReplayOperator, SettleOperator
from homing.airflow.sensor import StoreSensor
from homing.airflow.trigger import StoreTrigger

__all__ = [
    "DeliverOperator",
    "ProcessOperator",
    "ReplayOperator",
    "SettleOperator",
    "StoreHook",
    "StoreSensor",
    "StoreTrigger",
    "delivery_dag",
]
