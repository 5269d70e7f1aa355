"""confluent-kafka's Producer, with `delay=` and `at=`."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer

from sendlater.clock import SystemClock
from sendlater.dialects import encode_headers
from sendlater.errors import BadRequest, BrokerUnavailable
from sendlater.operations.arguments import AnyHeaders, Delay, Instant, id_text, plan_send

METADATA_TIMEOUT_S = 10.0
PARTITIONS_AGE_S_MAX = 60.0
"""How long the inbox's partition count is cached."""


class SchedulingProducer(Producer):
    """A drop-in for `confluent_kafka.Producer`: `produce` takes `delay=` or `at=`, and `id=`.

    With `delay=` or `at=` the record goes to `inbox` now and to its topic later. Without them it is
    produced as usual. Needs Kafka only. `on_delivery` is called when the inbox has the record.
    """

    def __init__(self, config: Mapping[str, Any], *, inbox: str = "schedules") -> None:
        """`config` as for `confluent_kafka.Producer`; `inbox`: a topic that the service reads."""
        super().__init__(dict(config))
        self.inbox = inbox
        self._partitions = 0
        self._read_s = 0.0

    def produce(  # type: ignore[override]
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        callback: Callable[[Any, Any], None] | None = None,
        on_delivery: Callable[[Any, Any], None] | None = None,
        timestamp: int = 0,
        headers: AnyHeaders | None = None,
        *,
        delay: Delay | None = None,
        at: Instant | None = None,
        spread: Delay | None = None,
        expires: Instant | None = None,
        expires_after: Delay | None = None,
        tags: Iterable[str] | None = None,
        id: str | None = None,
        only_if: str | None = None,
    ) -> str | None:
        """Produce now, after `delay` (timedelta, or seconds), or at `at` (aware datetime).

        Returns the schedule's id, or None for a record that is produced now. Raises what
        confluent-kafka's `produce` raises, BadTime and BadRequest for a schedule that is not valid,
        and BrokerUnavailable.
        """
        told: dict[str, Any] = {"on_delivery": on_delivery or callback}
        told = told if told["on_delivery"] else {}
        if delay is None and at is None:
            more = {"id": id, "spread": spread, "expires": expires, "expires_after": expires_after}
            for name, given in {**more, "tags": tags, "only_if": only_if}.items():
                if given is not None:
                    raise BadRequest(f"{name}: expected delay or at with it, got only {given!r}")
            if headers:
                told["headers"] = headers
            super().produce(topic, value, key, partition, timestamp=timestamp, **told)
            return None
        schedule = plan_send(
            topic,
            _sendable(value, only_if),
            now_ms=SystemClock().now_ms(),
            key=key,
            headers=headers or (),
            delay=delay,
            at=at,
            spread=spread,
            expires=expires,
            expires_after=expires_after,
            tags=tags,
            id=id,
            partition=None if partition < 0 else partition,
        )
        record = encode_headers(
            schedule.record,
            inbox=self.inbox,
            id=schedule.id,
            due_ms=schedule.due_ms,
            expiry=schedule.expiry,
            tags=schedule.tags,
        )
        super().produce(
            self.inbox,
            record.value,
            record.key,
            partition_of(schedule.id, count=self._inbox_partitions()),
            headers=list(record.headers),
            **told,
        )
        return id_text(schedule.id)

    def _inbox_partitions(self) -> int:
        now_s = time.monotonic()
        if not self._partitions or now_s - self._read_s > PARTITIONS_AGE_S_MAX:
            try:
                found = self.list_topics(self.inbox, METADATA_TIMEOUT_S).topics[self.inbox]
            except KafkaException as error:
                raise BrokerUnavailable(f"inbox {self.inbox!r}: {error}") from error
            if found.error is not None or not found.partitions:
                raise BrokerUnavailable(f"inbox {self.inbox!r}: {found.error or 'no partitions'}")
            self._partitions, self._read_s = len(found.partitions), now_s
        return self._partitions


def _sendable(value: bytes | str | None, only_if: str | None) -> bytes | str:
    if only_if is not None:
        raise BadRequest("only_if: expected Scheduler.send_later, as a producer hears no answer")
    if value is None:
        raise BadRequest("value: expected bytes or str, got None: on an inbox null cancels")
    return value


def partition_of(key: bytes, *, count: int) -> int:
    """The partition that Kafka's Java clients and ours choose: murmur2 of the key.

    All versions of a schedule must be in one partition, but the caller may have configured another
    partitioner: so this producer chooses the partition itself. Source:
    org.apache.kafka.common.utils.Utils.murmur2.
    """
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if whole < len(key):
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return ((h ^ h >> 15) & 0x7FFFFFFF) % count
