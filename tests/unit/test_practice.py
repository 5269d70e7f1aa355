"""Practice before the first burst: where it sends to, and what it says."""

import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from sendlater.config import Settings
from sendlater.errors import BrokerUnavailable
from sendlater.spark.arrow_rows import SENT_ARROW_SCHEMA
from sendlater.spark.datasource.format import SENT_SCHEMA, SendLater
from sendlater.spark.delivery import practice
from sendlater.spark.delivery.practice import CHUNK_ROWS, CHUNKS, ROUNDS, practise

OURS = {"retention.ms": "60000"}


def told(topics: Any, monkeypatch: pytest.MonkeyPatch, *, ends: bool = False, **given: Any) -> Any:
    """What it has delivered to, and the only line that it logs. `ends`: the service, meanwhile."""
    sent, over, made = [], threading.Event(), set()

    def deliver(_spark: Any, _settings: Settings, topic: str, checkpoint: Path, *, of: str) -> None:
        assert not {checkpoint, of} & made, "each round has a producer and a query of its own"
        made.update((checkpoint, of))
        sent.append(topic)
        if ends:
            over.set()

    monkeypatch.setattr(practice, "_deliver", deliver)
    settings = Settings(space="s", **given)
    with capture_logs() as lines:
        practise(Mock(), settings, topics, checkpoint=Path(), over=over)
    return sent, [(line["log_level"], line.get("cause", "")) for line in lines]


def topics(**config: str) -> Any:
    """Kafka with the topic, if it has settings."""
    known = {"s-warm-up": 4} if config else {}
    return Mock(
        partitions=lambda _: known,
        config=lambda _: {k.replace("_", "."): v for k, v in config.items()},
    )


def test_it_makes_its_topic_with_a_short_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = topics()
    assert told(kafka, monkeypatch) == (["s-warm-up"] * ROUNDS, [("info", "")])
    kafka.create.assert_called_once_with("s-warm-up", partitions=4, config=OURS)
    assert told(topics(retention_ms="60000"), monkeypatch)[0] == ["s-warm-up"] * ROUNDS


def test_nothing_goes_to_a_topic_that_is_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    for kept in ("604800000", "-1", "1"):
        sent, [(level, cause)] = told(topics(retention_ms=kept), monkeypatch)
        assert (sent, level) == ([], "warning")
        assert cause == f"expected retention.ms=60000, got '{kept}'"


def test_without_a_topic_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, [(_, cause)] = told(topics(), monkeypatch, create_topics=False)
    assert (sent, cause) == ([], "it does not exist, and create_topics is off")
    refused = topics()
    refused.create.side_effect = BrokerUnavailable("not authorised")
    assert told(refused, monkeypatch) == ([], [("warning", "not authorised")])


def test_a_service_that_ends_practises_no_more_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert told(topics(), monkeypatch, ends=True) == (["s-warm-up"], [])
    kafka, over = topics(), threading.Event()
    over.set()
    kafka.create.side_effect = BrokerUnavailable("away")
    with capture_logs() as lines:
        practise(Mock(), Settings(space="s"), kafka, checkpoint=Path(), over=over)
    assert lines == []


def test_it_reads_many_records_in_the_columns_of_a_lane() -> None:
    source = SendLater({practice.OPTION: "s-warm-up"})
    assert source.schema() == SENT_SCHEMA
    reader = source.streamReader(None)
    start, end = reader.initialOffset(), reader.latestOffset({}, None)  # type: ignore[call-arg]
    assert reader.partitions(start, start) == []
    [part] = reader.partitions(start, end)
    count, keys = 0, set()
    for batch in reader.read(part):
        keys.update(batch.column("key").to_pylist())  # type: ignore[union-attr]
        assert batch.schema.equals(SENT_ARROW_SCHEMA)  # type: ignore[union-attr]
        count += batch.num_rows  # type: ignore[union-attr]
    assert count == CHUNKS * CHUNK_ROWS
    assert None in keys, "a key that is none takes another way through a producer"
    assert {len(key) % 4 for key in keys if key} == {0, 1, 2, 3}, "it hashes four bytes at once"
    assert max(len(key) for key in keys if key) >= 30
