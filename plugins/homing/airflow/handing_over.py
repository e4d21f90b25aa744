"""How the driver of a Spark job learns where the stores are, which nobody else is to know.

In client mode it inherits the environment of spark-submit. In cluster mode it runs elsewhere and inherits nothing; and
whatever is given to it as a setting or an argument is shown by `ps`, by Spark's UI and in logs.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from homing.delivery.reach import STORES_FILE
from homing.errors import ConfigurationError

_SECRET = "spark.kubernetes.driver.secretKeyRef"  # noqa: S105 - the name of a setting


def check(connection: Mapping[str, Any], conf: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raises ConfigurationError for a deployment in which the driver could not be told the stores."""
    master = str(connection["master"])
    if master.startswith(("sc://", "spark_connect://", "spark-connect://")):
        # What follows "/;" may be a token.
        raise ConfigurationError(
            f"{master.partition('/;')[0]} is a Spark Connect server, which runs no drivers: name the master of the "
            "cluster behind it (spark://…, yarn, k8s://…) in the Airflow connection"
        )
    if connection.get("deploy_mode") != "cluster":
        return
    if master.startswith("k8s://"):
        missing = [f"{_SECRET}.{name}" for name in names if f"{_SECRET}.{name}" not in conf]
        if missing:
            raise ConfigurationError(
                "in cluster mode the driver is a pod, and gets the stores' URLs from a Kubernetes secret: set "
                f"{' and '.join(missing)} to <secret>:<key> in spark_conf, or use client mode"
            )
    elif not master.startswith("yarn"):
        raise ConfigurationError(
            f"Spark runs no Python applications on {master} in cluster mode: use the deploy mode client"
        )


@contextmanager
def files_for(connection: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[list[str]]:
    """What is to be sent along with a job, as `--files`, while the block lasts: on YARN in cluster mode, a file with
    the stores' URLs. YARN keeps it where only the user who submits can read it."""
    if connection.get("deploy_mode") != "cluster" or not str(connection["master"]).startswith("yarn"):
        yield []
        return
    descriptor, path = tempfile.mkstemp(prefix="homing-", suffix=".json")  # only its owner can read it
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(dict(names), file)
        yield [f"{path}#{STORES_FILE}"]
    finally:
        os.unlink(path)  # noqa: PTH108
