"""Homing on Spark: the data source `homing`, the engine that runs a chain over DataFrames, and a lake to deliver to."""

from homing.spark.datasource import HomingDataSource, register
from homing.spark.lake import parquet_lake

__all__ = ["HomingDataSource", "parquet_lake", "register"]
