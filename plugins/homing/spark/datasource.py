"""The Spark data source `homing`: messages of a store as a DataFrame, and a DataFrame as messages of a store.

spark.read.format("homing").option("url", …).load()                      looking, without claiming
df.write.format("homing").option("url", …).mode("append").save()         storing, idempotent by id
spark.readStream.format("homing") … df.writeStream.format("homing") …    the same, as they come
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from homing.spark.columns import STORED_DDL
from homing.spark.reader import FilteringStoreReader
from homing.spark.stream_reader import StoreStreamReader
from homing.spark.writer import StoreStreamWriter, StoreWriter


def register(spark: SparkSession) -> None:
    """Makes `format("homing")` known to this session, with a reader that has the database filter."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(HomingDataSource)


class HomingDataSource(DataSource):
    """The options all have: `url`, the store (`env:NAME` to take it from the environment), and `store`, another store
    in the same database instead. For the others see StoreReader, StoreStreamReader and StoreWriter.
    """

    @classmethod
    def name(cls) -> str:
        return "homing"

    def schema(self) -> str:
        return STORED_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return FilteringStoreReader(dict(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return StoreStreamReader(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return StoreWriter(dict(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        return StoreStreamWriter(dict(self.options), schema, overwrite=overwrite)
