"""Runs, without any server, what makes a start long: queries like those of the service."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from sendlater.config import Settings
from sendlater.dialects import lane_stages, stages
from sendlater.spark.datasource.format import DUE_SCHEMA, INBOX_SCHEMA, SENT_SCHEMA
from sendlater.spark.kafka_sink import producer_options
from sendlater.spark.one_batch import OneBatch
from sendlater.spark.session import JAVA_OPTIONS, class_archive, end_session, start_session
from sendlater.spark.warm_up import new_producer

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMAS = {"inbox": INBOX_SCHEMA, "due": DUE_SCHEMA, "sent": SENT_SCHEMA}
"""Columns by kind of rows: of intake, of a lane with journals, of one without."""
NOWHERE = "127.0.0.1:9"
"""Where no broker listens: Kafka's classes are loaded before anybody answers."""


class Rehearsed(DataSource):
    """One batch of rows that go nowhere; option `rows`: one of SCHEMAS."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "rehearsal"

    def schema(self) -> str:
        """Columns of that kind."""
        return SCHEMAS[self.options["rows"]]

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002
        """The only batch."""
        return RehearsedRows(self.options["rows"])

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: ARG002
        """Throws away what comes."""
        return Nowhere()


class RehearsedRows(OneBatch):
    """Rows as tasks of intake or of a lane yield them."""

    def __init__(self, rows: str) -> None:
        self._rows = rows

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":  # noqa: ARG002
        """What warms up a service."""
        from sendlater.spark.delivery.warm_rows import warm_rows
        from sendlater.spark.intake import warm_rows as of_inboxes
        from sendlater.spark.intake.inbox_rows import NOTHING, chunk

        if self._rows != "inbox":
            yield from warm_rows(sent=self._rows == "sent")
            return
        yield chunk(of_inboxes.warm_rows("inbox", times=2, now_ms=0), {})
        yield NOTHING


class Nowhere(DataSourceStreamArrowWriter):
    """Reads rows, and writes none."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """To the end."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


def archive_classes(settings: Settings, *, java_home: Path, jars: Sequence[Path]) -> Path:
    """Rehearse a start, and archive what Java has loaded for it; where the archive is.

    Raises MissingTool if this Java cannot archive classes.
    """
    archive = class_archive(settings, java_home=java_home, jars=jars)
    options = f"{settings.spark.get(JAVA_OPTIONS, '')} {archive.begin()}"
    real = settings.model_copy(update={"bootstrap_servers": NOWHERE if jars else ""})
    settings = real.model_copy(update={"spark": settings.spark | {JAVA_OPTIONS: options}})
    session = start_session(settings, java_home=java_home, jars=jars)
    try:
        _rehearse(session, settings)
        class_path = session.sparkContext._jvm.System.getProperty("java.class.path")  # type: ignore[union-attr]
    finally:
        end_session(session)
    archive.end(str(class_path))
    # As a service starts it from now on: the command of that JVM is kept, also for an image whose
    # directory of downloads is read-only.
    end_session(start_session(real, java_home=java_home, jars=jars))
    return archive.path


def _rehearse(spark: SparkSession, settings: Settings) -> None:
    spark.dataSource.register(Rehearsed)
    with tempfile.TemporaryDirectory() as scratch:
        intake, lane = _rows(spark, "inbox"), _rows(spark, "due" if settings.journals else "sent")
        for stage in stages(settings):
            intake = intake.selectExpr(*stage)
        for stage in lane_stages(settings):
            lane = lane.selectExpr(*stage)
        _run(intake, Rehearsed.name(), {}, Path(scratch, "intake"))
        lane = lane.where("topic IS NOT NULL")
        if settings.on_kafka:
            _run(lane, "kafka", producer_options(settings), Path(scratch, "lane"))
        else:
            _run(lane, Rehearsed.name(), {}, Path(scratch, "lane"))
    if settings.on_kafka:
        new_producer(spark, settings).close()


def _rows(spark: SparkSession, rows: str) -> DataFrame:
    return spark.readStream.format(Rehearsed.name()).option("rows", rows).load()


def _run(records: DataFrame, sink: str, options: dict[str, str], checkpoint: Path) -> None:
    writer = records.writeStream.format(sink).options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.processAllAvailable()
    query.stop()
