"""The Airflow connection of Spark: where there is none of the default id, Spark runs on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from homing.errors import ConfigurationError

DEFAULT_CONNECTION = "spark_default"
#: The master of a pipeline for which no cluster is configured.
LOCAL_MASTER = "local[*]"

_VARIABLE = f"AIRFLOW_CONN_{DEFAULT_CONNECTION.upper()}"


@contextmanager
def spark_connection(connection_id: str) -> Iterator[bool]:
    """While the block lasts, Airflow's hook finds a connection of this id; yields whether there really is one.

    The hook itself would take YARN for meant where there is none, and where Airflow could not be asked. Raises
    ConfigurationError for a missing connection that an author chose by its id.
    """
    try:
        BaseHook.get_connection(connection_id)
    except AirflowNotFoundException as error:
        if connection_id != DEFAULT_CONNECTION:
            raise ConfigurationError(
                f"there is no Airflow connection {connection_id!r}: create one of the type spark, or leave out "
                "spark_conn_id= to run Spark on this machine"
            ) from error
    else:
        yield True
        return
    os.environ[_VARIABLE] = json.dumps({"conn_type": "spark", "host": LOCAL_MASTER})
    try:
        yield False
    finally:
        del os.environ[_VARIABLE]
