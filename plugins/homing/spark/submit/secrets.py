"""How the driver of a Spark job gets the URLs of the stores and the connections of handlers, which no other process may
learn.

In client mode, and as a client of Spark Connect, the driver inherits the environment of the process that starts it. In
cluster mode it runs on another machine and inherits nothing. Settings and arguments are no way either: `ps`, Spark's UI
and logs show them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from homing.errors import ConfigurationError
from homing.spark.submit.master import without_token

#: The variables that a job finds its stores in.
STORE, DEAD_LETTER_STORE = "HOMING_STORE", "HOMING_DEAD_LETTER_STORE"
#: A file with all variables, beside a driver that does not have them in its environment.
SECRETS_FILE = "homing-secrets.json"

_SECRET = "spark.kubernetes.driver.secretKeyRef"  # noqa: S105 - the name of a setting


def check_deployment(connection: Mapping[str, Any], conf: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raises ConfigurationError for a deployment in which the driver could not be told what these variables say."""
    master = str(connection["master"])
    if connection.get("deploy_mode") != "cluster":
        return
    if master.startswith("k8s://"):
        missing = [f"{_SECRET}.{name}" for name in names if f"{_SECRET}.{name}" not in conf]
        if missing:
            raise ConfigurationError(
                "in cluster mode the driver is a pod, and gets stores and connections from a Kubernetes secret: set "
                f"{' and '.join(missing)} to <secret>:<key> in spark_conf, or use client mode"
            )
    elif not master.startswith("yarn"):
        raise ConfigurationError(
            f"Spark runs no Python applications on {without_token(master)} in cluster mode: use the deploy mode client"
        )


@contextmanager
def files_for(connection: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[list[str]]:
    """What is to be sent along with a job, as `--files`, while the block lasts: on YARN in cluster mode, a file with
    these variables. YARN keeps it where only the user who submits can read it."""
    if connection.get("deploy_mode") != "cluster" or not str(connection["master"]).startswith("yarn"):
        yield []
        return
    descriptor, path = tempfile.mkstemp(prefix="homing-", suffix=".json")  # only its owner can read it
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(dict(variables), file)
        yield [f"{path}#{SECRETS_FILE}"]
    finally:
        os.unlink(path)  # noqa: PTH108


def read_secrets_file(folder: Path) -> None:
    """Puts what SECRETS_FILE says into the environment, where there is such a file and the environment has none."""
    file = folder / SECRETS_FILE
    if STORE not in os.environ and file.is_file():
        os.environ.update(json.loads(file.read_text()))
