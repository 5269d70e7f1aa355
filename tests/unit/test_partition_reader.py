"""What intake makes of messages as confluent-kafka hands them over."""

from typing import Any

import pytest
from confluent_kafka import KafkaError

from sendlater.brokers import partition_reader
from sendlater.dialects import names
from sendlater.errors import BrokerUnavailable


class Message:
    """As confluent_kafka.Message."""

    def __init__(self, at: int, headers: Any = None, error: int | None = None) -> None:
        self._at, self._headers, self._error = at, headers, error

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)

    def headers(self) -> Any:
        if isinstance(self._headers, Exception):
            raise self._headers
        return self._headers

    def topic(self) -> str:
        return "in"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return self._at

    def key(self) -> bytes:
        return b"k%d" % self._at

    def value(self) -> bytes:
        return b"v"

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000 + self._at


def test_records_become_columns() -> None:
    read = partition_reader._read([Message(4, [("h", b"1")]), Message(5)])
    assert read is not None
    assert (read.keys, read.positions, read.timestamps_ms) == ([b"k4", b"k5"], [4, 5], [1004, 1005])
    assert read.headers == [[("h", b"1")], None]
    assert read.ends == {("in", 3): 6}


def test_the_end_of_a_partition_counts_also_where_no_record_is() -> None:
    end = Message(9, error=KafkaError._PARTITION_EOF)
    read = partition_reader._read([Message(4), end])
    assert read is not None
    assert (read.positions, read.ends) == ([4], {("in", 3): 9})


def test_what_the_client_tries_again_by_itself_is_no_news() -> None:
    assert partition_reader._read([Message(0, error=KafkaError._TRANSPORT)]) is None


def test_a_missing_permission_is_an_error() -> None:
    refused = Message(0, error=KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerUnavailable, match="topic 'in' cannot be read"):
        partition_reader._read([refused])


@pytest.mark.parametrize("error", [SystemError("no"), UnicodeDecodeError("utf-8", b"", 0, 1, "no")])
def test_headers_that_cannot_be_read_are_told_as_such(error: Exception) -> None:
    """The others keep theirs."""
    read = partition_reader._read([Message(4, [("h", b"1")]), Message(5, error)])
    assert read is not None
    assert read.headers[0] == [("h", b"1")]
    assert [name for name, _ in read.headers[1] or ()] == [names.UNREADABLE]
