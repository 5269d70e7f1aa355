"""Spark imports every module named pyspark_* and registers its DefaultSource."""

from sendlater.spark.datasource.format import SendLater as DefaultSource

__all__ = ["DefaultSource"]
