"""Intake: inbox topics into the pending store."""

import json
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sendlater.brokers.client_options import client_options
from sendlater.config import Settings
from sendlater.dialects import stages
from sendlater.dialects.plain import PlainRules
from sendlater.spark.pipe import PASS_BYTES


def start_intake(
    spark: SparkSession,
    settings: Settings,
    *,
    redis_url: str,
    owner: int,
    run: int,
    checkpoint: Path,
    warm_up: bool,
    heir: bool = False,
) -> StreamingQuery:
    """Read all inboxes from the store's positions, decode every record and park it.

    `warm_up`: this JVM has not done so before. `heir`: nothing is read before `owner` owns the
    space.
    """
    spark = spark.newSession()
    spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(PASS_BYTES))
    # Decoding is too large for one method: Spark would generate and compile it all, see that, and
    # do so again stage by stage, which takes a tenth of a start.
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    options = {"redis.url": redis_url, "space": settings.space, "shards": str(settings.shards)}
    options |= {"heir": str(owner) if heir else "", "run": str(run)}
    broker = json.dumps(client_options(settings)) if settings.on_kafka else ""
    records = (
        spark.readStream.format("sendlater")
        .options(**options)
        .option("inboxes", ",".join(inbox.topic for inbox in settings.taken_in))
        .option("tasks", str(settings.intake_slots))
        .option("broker.url", broker)
        .option("plain", PlainRules.of(settings).text())
        .option("warm_up", str(warm_up).lower())
        .load()
    )
    for stage in stages(settings):
        records = records.selectExpr(*stage)
    return (
        records.writeStream.format("sendlater")
        .queryName("intake")
        .options(**options)
        .option("owner", str(owner))
        .option("journals", ",".join(settings.journals))
        .option("check_targets", str(settings.on_kafka).lower())
        .option("rejected_topic", settings.rejected_topic)
        .option("keep_input_headers", str(settings.keep_input_headers).lower())
        .option("max_delay_days", str(settings.max_delay_days))
        .option("ce_expirytime", str(settings.ce_expirytime).lower())
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
