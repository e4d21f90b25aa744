"""Homing on Spark: the data source `homing`, the engine that runs a chain over DataFrames, and a lake to deliver to.

Names are loaded on first use: importing `homing.spark.submit` to start a job does not need pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from homing.extras import load_name

if TYPE_CHECKING:
    from homing.spark.datasource import HomingDataSource, register
    from homing.spark.parquet_destination import parquet_lake

_MODULES = {"HomingDataSource": "datasource", "parquet_lake": "parquet_destination", "register": "datasource"}

__all__ = ["HomingDataSource", "parquet_lake", "register"]


def __getattr__(name: str) -> Any:
    return load_name(__name__, _MODULES, name, extra="spark", packages=["pyspark", "pyarrow"])
