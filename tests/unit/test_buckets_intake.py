"""Intake of the buckets notices what happens to inboxes; a group that the test keeps, no Spark."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from sendlater.brokers import group_offsets, lasting_client
from sendlater.brokers.group_offsets import Committed, Place, Progress
from sendlater.brokers.kafka_topics import TopicFacts
from sendlater.config import Settings
from sendlater.errors import BadSettings, BrokerUnavailable
from sendlater.limits import BUCKET_ADDED_BYTES_MAX, OFFSETS_RECOMMIT_MS
from sendlater.spark.buckets import passes
from sendlater.spark.buckets.passes import INBOXES_S, Intake
from sendlater.spark.buckets.topics import room_bytes

FIRST, SECOND = Place("in", 0), Place("in", 1)


class Kafka:
    """One inbox and the offsets that a group has committed; notes what was read."""

    def __init__(self):
        self.facts = {"in": TopicFacts("id-1", 1)}
        self.ends_of = {FIRST: 5, SECOND: 3}
        self.known = {}
        self.commits = 0
        self.read = []

    def firsts(self, places):
        return dict.fromkeys(places, 0)

    def ends(self, places):
        return {place: self.ends_of[place] for place in places}

    def committed(self, places):
        return {place: self.known[place] for place in places if place in self.known}

    def commit(self, ends):
        self.known |= ends
        self.commits += 1


class Watch:
    """Seconds that the test lets pass."""

    def __init__(self):
        self.now_s = 1_000.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def kafka(monkeypatch):
    kafka = Kafka()
    monkeypatch.setattr(passes, "read", lambda spark, settings, new: kafka.read.append(new))
    monkeypatch.setattr(passes, "decoded", lambda *_, **__: None)
    monkeypatch.setattr(passes, "write", lambda *_: None)
    return kafka


@pytest.fixture
def watch(monkeypatch):
    watch = Watch()
    monkeypatch.setattr(passes, "time", watch)
    return watch


def intake_of(kafka):
    return Intake(
        None, Settings(), None, kafka, inboxes=lambda: dict(kafka.facts), room_bytes=10**6
    )


def test_added_partitions_are_read_after_some_seconds(kafka, watch):
    intake = intake_of(kafka)
    intake.step()
    kafka.facts = {"in": TopicFacts("id-1", 2)}
    intake.step()
    assert kafka.read == [{FIRST: (0, 5)}]

    watch.now_s += INBOXES_S
    assert intake.step() == 0.0, "again at once"
    intake.step()
    assert kafka.read[1:] == [{SECOND: (0, 3)}]


def test_an_inbox_made_anew_is_read_from_its_beginning_whatever_it_holds_by_then(kafka, watch):
    """Before anything of it is skipped, and the log says so."""
    intake = intake_of(kafka)
    intake.step()
    kafka.facts = {"in": TopicFacts("id-2", 1)}
    kafka.ends_of[FIRST] = 9
    with capture_logs() as logged:
        intake.step()
        intake.step()
    assert kafka.read[1:] == [{FIRST: (0, 9)}]
    assert [(one["log_level"], one["place"]) for one in logged] == [("error", FIRST)]
    assert kafka.known[FIRST] == Committed(9, "id-2")


def test_an_inbox_made_anew_while_no_service_ran_is_known_by_its_id(kafka, watch):
    intake_of(kafka).step()
    kafka.facts = {"in": TopicFacts("id-2", 1)}
    intake_of(kafka).step()
    assert kafka.read == [{FIRST: (0, 5)}] * 2


def test_offsets_of_an_older_version_have_no_id_and_count(kafka, watch):
    kafka.known = {FIRST: Committed(4, "")}
    intake_of(kafka).step()
    assert kafka.read == [{FIRST: (4, 5)}]


def test_an_end_before_what_was_read_is_told_and_all_is_read_again(kafka, watch):
    intake = intake_of(kafka)
    intake.step()
    kafka.ends_of[FIRST] = 2
    with capture_logs() as logged:
        intake.step()
        intake.step()
    assert kafka.read[1:] == [{FIRST: (0, 2)}]
    assert [one["log_level"] for one in logged] == ["error"]


def test_offsets_of_a_quiet_inbox_are_kept_while_another_is_busy(kafka, watch):
    kafka.facts = {"in": TopicFacts("id-1", 2)}
    intake = intake_of(kafka)
    intake.step()
    kafka.known.pop(SECOND)
    watch.now_s += OFFSETS_RECOMMIT_MS / 1_000
    kafka.ends_of[FIRST] += 1
    intake.step()
    assert kafka.known[SECOND] == Committed(3, "id-1")


def test_a_client_that_hears_nothing_is_replaced_in_the_progress_too(monkeypatch):
    """librdkafka never connects again after it was told of no brokers."""
    made = []

    class Client:
        def __init__(self, options):
            made.append(options)

        def committed(self, asked, timeout):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

        def list_offsets(self, asked, **_):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(group_offsets, "Consumer", Client)
    monkeypatch.setattr(group_offsets, "AdminClient", Client)
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(lasting_client, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    progress = Progress({"bootstrap.servers": "here:9092"}, group="g")
    for now_s, clients in ((1.0, 2), (lasting_client.SILENT_S + 1, 4)):
        clock.now_s = now_s
        with pytest.raises(BrokerUnavailable):
            progress.committed([FIRST])
        with pytest.raises(BrokerUnavailable):
            progress.ends([FIRST])
        assert len(made) == clients


def test_a_payload_that_a_bucket_may_refuse_is_refused_at_the_start():
    settings = Settings(bootstrap_servers="here:9092", pending="buckets")
    whole = {"b-00": {"max.message.bytes": "2000000"}}
    assert room_bytes(whole, settings) == 2_000_000 - BUCKET_ADDED_BYTES_MAX
    with pytest.raises(BadSettings, match=r"max_payload_bytes: expected at most .* b-01 takes"):
        room_bytes(whole | {"b-01": {"max.message.bytes": "1000000"}}, settings)
    smaller = settings.model_copy(update={"kafka_java": {"max.request.size": "900000"}})
    with pytest.raises(BadSettings, match=r"max\.request\.size"):
        room_bytes(whole, smaller)
