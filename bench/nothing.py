"""A Spark job that does nothing."""

from pyspark.sql import SparkSession

SparkSession.builder.getOrCreate().stop()
