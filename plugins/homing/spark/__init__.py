"""Homing on Spark: the data source `homing`, the engine that runs a chain over DataFrames, and a lake to deliver to.

Names are loaded on first use: importing `homing.spark.submit` to start a job does not need pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homing.spark.datasource import HomingDataSource, register
    from homing.spark.parquet_destination import parquet_lake

_MODULES = {"HomingDataSource": "datasource", "parquet_lake": "parquet_destination", "register": "datasource"}

__all__ = ["HomingDataSource", "parquet_lake", "register"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
