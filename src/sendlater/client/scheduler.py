"""The client: hand a record over now, have it delivered later, take it back."""

import time
from datetime import UTC, datetime, timedelta
from typing import Self

from ulid import ULID

from sendlater.client.brokers import Broker, open_broker
from sendlater.config import Inbox, Settings
from sendlater.dialects import encode_cancel, encode_headers
from sendlater.errors import BadSettings, BadTime
from sendlater.model import Cancelled, Headers, Record, Schedule
from sendlater.pending import Pending

CATCH_UP_S = 10.0
"""Longest wait for intake to read what was sent before a cancellation."""
CATCH_UP_PAUSE_S = 0.02


class Scheduler:
    """Sends to an inbox through the broker; asks the pending store."""

    def __init__(self, settings: Settings, *, redis_url: str) -> None:
        self.settings = settings
        self.inbox = _headers_inbox(settings).topic
        self.broker: Broker = open_broker(settings, redis_url=redis_url)
        self.pending = Pending.open(redis_url, space=settings.space, shards=settings.shards)

    def send_later(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        delay: timedelta | float | None = None,
        at: datetime | None = None,
        id: str | None = None,
        partition: int | None = None,
    ) -> str:
        """Hand a record over; returns its id. `flush` waits for the broker.

        `delay` is a timedelta or seconds, `at` an aware datetime; exactly one. A past `at` means
        now. The same id again replaces. Raises BadTime, BadRequest, BrokerUnavailable.
        """
        schedule_id = str(ULID()) if id is None else id
        record = Record(
            topic=topic, value=value, key=key, headers=headers or [], partition=partition
        )
        self.broker.send(
            encode_headers(
                record,
                inbox=self.inbox,
                id=schedule_id.encode(),
                due_ms=due_ms(delay=delay, at=at, now_ms=time.time_ns() // 1_000_000),
            )
        )
        return schedule_id

    def cancel(self, schedule_id: str) -> Cancelled:
        """Take a schedule back: cancelled, delivering (too late) or unknown, and it is true.

        Waits until intake has read what is on the inbox now, so that a schedule just sent is found.
        """
        self._catch_up()
        answer = self.pending.cancel(schedule_id.encode())
        if answer is Cancelled.CANCELLED:
            # The inbox remembers too: read again from its start, it ends with the cancellation.
            self.broker.send(encode_cancel(inbox=self.inbox, id=schedule_id.encode()))
            self.broker.flush()
        return answer

    def get(self, schedule_id: str) -> Schedule | None:
        """A pending or claimed schedule; None when there is none (any more)."""
        return self.pending.get(schedule_id.encode())

    def _catch_up(self) -> None:
        ends = {f"{self.inbox}/{n}": end for n, end in self.broker.ends(self.inbox).items() if end}
        deadline = time.monotonic() + CATCH_UP_S
        while time.monotonic() < deadline:
            seen = self.pending.positions()
            if all(seen.get(source, 0) >= end for source, end in ends.items()):
                return
            time.sleep(CATCH_UP_PAUSE_S)

    def flush(self) -> None:
        """Wait until the broker has everything. Raises BrokerUnavailable."""
        self.broker.flush()

    def close(self) -> None:
        """Flush and let go."""
        self.broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def due_ms(*, delay: timedelta | float | None, at: datetime | None, now_ms: int) -> int:
    """The due time of a delay (timedelta, or seconds) or of an aware datetime, rounded up.

    Raises BadTime for both, neither, a naive datetime or a negative delay.
    """
    if (delay is None) == (at is None):
        raise BadTime(f"expected one of delay and at, got {delay=} and {at=}")
    if at is not None:
        if at.utcoffset() is None:
            raise BadTime(f"at: expected a datetime with a time zone, got {at.isoformat()}")
        return max(0, -((datetime(1970, 1, 1, tzinfo=UTC) - at) // timedelta(milliseconds=1)))
    if not isinstance(delay, timedelta):
        assert delay is not None
        delay = timedelta(seconds=delay)
    if delay < timedelta(0):
        raise BadTime(f"delay: expected zero or more, got {delay}")
    return now_ms - (-delay // timedelta(milliseconds=1))


def _headers_inbox(settings: Settings) -> Inbox:
    for inbox in settings.inboxes:
        if inbox.dialect == "headers":
            return inbox
    raise BadSettings("inboxes: the client needs one in dialect 'headers', got none")
