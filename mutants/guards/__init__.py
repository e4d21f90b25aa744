"""The guards of the code, by the part of it that they are in."""

from __future__ import annotations

from mutants.guard import Guard
from mutants.guards import (
    access,
    airflow,
    bus,
    conformance,
    custom_store,
    delivery,
    erasure,
    failure,
    forks,
    identity,
    listener,
    memory,
    outages,
    pipeline,
    rabbitmq,
    servicebus,
    size,
    spark,
    sql,
    testing,
    tls,
    trust,
)

GUARDS: tuple[Guard, ...] = (
    *memory.GUARDS,
    *sql.GUARDS,
    *outages.GUARDS,
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
    *tls.GUARDS,
    *erasure.GUARDS,
    *failure.GUARDS,
    *custom_store.GUARDS,
    *forks.GUARDS,
    *identity.GUARDS,
    *trust.GUARDS,
    *conformance.GUARDS,
    *testing.GUARDS,
)
