"""Spark imports each installed package whose name begins with `pyspark_`, and registers its `DefaultSource`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from homing.extras import needs

with needs("the data source homing", "spark", "pyspark", "pyarrow"):
    from homing.spark.datasource import HomingDataSource
    from homing.spark.reader import StoreReader


class DefaultSource(HomingDataSource):
    """`format("homing")` in sessions that `homing.spark.register` does not know: Spark itself filters what is read."""

    def reader(self, schema: StructType) -> DataSourceReader:
        return StoreReader(dict(self.options))
