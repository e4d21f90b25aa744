"""The guards of the code, by the part of it that they are in."""

from __future__ import annotations

from mutants.guard import Guard
from mutants.guards import (
    access,
    airflow,
    bus,
    delivery,
    listener,
    memory,
    pipeline,
    rabbitmq,
    servicebus,
    size,
    spark,
    sql,
)

GUARDS: tuple[Guard, ...] = (
    *memory.GUARDS,
    *sql.GUARDS,
    *rabbitmq.GUARDS,
    *servicebus.GUARDS,
    *listener.GUARDS,
    *pipeline.GUARDS,
    *delivery.GUARDS,
    *spark.GUARDS,
    *bus.GUARDS,
    *airflow.GUARDS,
    *size.GUARDS,
    *access.GUARDS,
)
