"""A service that `spark-submit` has started: its JVM, class path and master are there already."""

import os
import stat
import threading

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext

from sendlater.config import Settings
from sendlater.dialects import SPARK_SETTINGS
from sendlater.errors import BadSettings
from sendlater.spark.cluster import DYNAMIC
from sendlater.spark.jvm import is_submitted
from sendlater.spark.session import STREAMING

__all__ = ["as_submitted", "end_with_jvm", "is_submitted"]
CONNECTOR = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


def as_submitted(settings: Settings) -> Settings:
    """`settings` with the master that spark-submit was given, and with what else it was given.

    Raises BadSettings if that is no cluster, or another one than that of the settings, or if the
    connector to Kafka is missing.
    """
    SparkContext._ensure_initialized()
    jvm = SparkContext._jvm
    assert jvm is not None
    given = dict(SparkConf(_jvm=jvm).getAll())
    master = given.get("spark.master", "")
    if master.startswith("local"):
        raise BadSettings(
            f"spark-submit: expected --master to be a cluster, got {master!r}; for a Spark on this "
            "machine start `sendlater serve` itself, which makes a JVM that suits it"
        )
    if settings.spark_master not in ("", master):
        raise BadSettings(
            f"spark_master: expected nothing, or {master!r} as spark-submit was given, "
            f"got {settings.spark_master!r}"
        )
    if settings.on_kafka:
        try:
            loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
            loader.loadClass(CONNECTOR)
        except Py4JJavaError as error:
            package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
            raise BadSettings(
                "spark-submit: expected the jars of Spark's connector to Kafka, got none; "
                f"give it --packages {package}"
            ) from error
    names = {*STREAMING, *SPARK_SETTINGS, DYNAMIC}
    instead = {name: given[name] for name in names if name in given}
    return settings.model_copy(
        update={"spark_master": master, "spark": instead | settings.spark},
    )


def end_with_jvm(stop: threading.Event, *, standard_input: int = 0) -> None:
    """Set `stop` when spark-submit's JVM has ended, as who only stands by would not notice."""

    def watch() -> None:
        while os.read(standard_input, 1):
            pass
        stop.set()

    if stat.S_ISFIFO(os.fstat(standard_input).st_mode):
        threading.Thread(target=watch, name="spark-submit", daemon=True).start()
