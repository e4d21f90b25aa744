"""Homing on Spark: the data source `homing`, and the engine that runs a chain over DataFrames."""

from homing.spark.datasource import HomingDataSource, register

__all__ = ["HomingDataSource", "register"]
