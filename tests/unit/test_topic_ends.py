"""Asking for the ends of topics whose partitions have just been made."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from sendlater.brokers import kafka_topics
from sendlater.brokers.kafka_topics import STARTING_COUNT_MAX, KafkaTopics
from sendlater.errors import BrokerUnavailable


class Admin:
    """Answers with these errors, one after the other, then with an end of 7."""

    def __init__(self, *codes: int) -> None:
        self.codes, self.asked = list(codes), 0

    def list_offsets(self, asked, **_):
        self.asked += 1
        answer: Future = Future()
        if self.codes:
            answer.set_exception(KafkaException(KafkaError(self.codes.pop(0))))
        else:
            answer.set_result(SimpleNamespace(offset=7))
        return dict.fromkeys(asked, answer)


@pytest.fixture
def topics(monkeypatch):
    def answering(*codes: int) -> tuple[KafkaTopics, Admin]:
        admin = Admin(*codes)
        monkeypatch.setattr(KafkaTopics, "_admin", admin)
        monkeypatch.setattr(KafkaTopics, "partitions", lambda _, asked: dict.fromkeys(asked, 1))
        monkeypatch.setattr(kafka_topics, "STARTING_PAUSE_S", 0.0)
        return KafkaTopics({"bootstrap.servers": "127.0.0.1:9", "log_level": "0"}), admin

    return answering


def test_a_partition_without_a_leader_yet_is_asked_again(topics):
    some, admin = topics(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
    assert some.ends(topic for topic in ["new"]) == {"new": {0: 7}}
    assert admin.asked == 3


def test_one_that_never_gets_a_leader_is_told(topics):
    some, admin = topics(*[KafkaError.NOT_LEADER_FOR_PARTITION] * 99)
    with pytest.raises(BrokerUnavailable, match="Not leader"):
        some.ends(["new"])
    assert admin.asked == STARTING_COUNT_MAX


def test_other_errors_are_told_at_once(topics):
    some, admin = topics(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerUnavailable, match="authorization"):
        some.ends(["forbidden"])
    assert admin.asked == 1
