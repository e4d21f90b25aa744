"""What is installed of Spark, and whether it can work."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from homing.errors import ConfigurationError


def refuse_mixed_versions() -> None:
    """Raises ConfigurationError when pyspark and pyspark-client are installed in different versions.

    Airflow's Spark provider brings pyspark-client, which has most files of pyspark. Whichever was installed last has
    overwritten those of the other.
    """
    try:
        full, client = version("pyspark"), version("pyspark-client")
    except PackageNotFoundError:
        return
    if full != client:
        raise ConfigurationError(
            f"pyspark {full} and pyspark-client {client} have overwritten each other's files: "
            f'pip install --force-reinstall --no-deps "pyspark=={client}" "pyspark-client=={client}"'
        )
