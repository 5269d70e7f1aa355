"""How the client reaches an installation: through its inbox on Kafka, or straight into its store.

Both ask the store. What stands on an inbox and has not been read yet is unknown to the store, so
every answer that must be true waits until intake has read what was there when the question came.
"""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn, cast

from sendlater.client.brokers import Broker, open_broker
from sendlater.client.plan import Done, Query, chunks, from_cursor, new_id, to_cursor
from sendlater.clock import SystemClock
from sendlater.config import Settings
from sendlater.dialects import encode_cancel, encode_headers
from sendlater.errors import (
    BadRequest,
    BadSettings,
    BadTime,
    BrokerUnavailable,
    NotSupported,
    StoreUnavailable,
)
from sendlater.limits import PAGE_COUNT_MAX, PARK_COUNT_MAX
from sendlater.model import Cancelled, Moved, Record, Schedule
from sendlater.pending import Answer, Desk, Move, Pending
from sendlater.pending.connect import answering
from sendlater.pending.packing import pack

CLOCK = SystemClock()
CATCH_UP_S = 30.0
"""Longest wait for intake to read what was sent before a question."""
CATCH_UP_PAUSE_S = 0.01
ACK_S = 30.0
"""Longest wait for a broker to take a record."""
SCAN_PAGES_MAX = 20
"""Most pages of the store read for one page of a filtered list; a shorter page has a cursor too."""


class StoreTransport:
    """Redis alone: schedules go straight into the pending store, which is as durable as topics on
    the same Redis would be, and answers at once."""

    def __init__(self, settings: Settings, *, redis_url: str) -> None:
        self.settings, self.redis_url = settings, redis_url
        self.inboxes = [inbox.topic for inbox in settings.inboxes if inbox.dialect == "headers"]
        if not self.inboxes:
            raise BadSettings("inboxes: the client needs one in dialect 'headers', got none")
        self.inbox = self.inboxes[0]
        self.pending = open_pending(settings, redis_url)
        self.desk = Desk(self.pending)
        self.broker: Broker = open_broker(settings, redis_url=redis_url)

    def send(self, schedule: Schedule, *, done: Done) -> None:
        """See Transport. Waits for Redis."""
        self.send_many([schedule])
        done(None)

    def send_many(self, schedules: Iterable[Schedule]) -> int:
        """See Transport.

        While something stands unread on the inbox these go behind it: an older version of one of
        them, read later, would win otherwise.
        """
        count = 0
        for chunk in chunks(schedules, count_max=PARK_COUNT_MAX):
            records = [self._encode(schedule, inbox=self.inbox) for schedule in chunk]
            if self._behind(self._inbox_ends()):
                for record in records:
                    self.broker.send(record)
                self.broker.flush()
            else:
                self._park(chunk)
            count += len(chunk)
        return count

    def _park(self, chunk: list[Schedule]) -> None:
        rows: dict[int, list[object]] = {}
        for schedule in chunk:
            number = self.pending.shard_of(schedule.id).number
            rows.setdefault(number, []).extend((schedule.id, schedule.due_ms, pack(schedule)))
        for number, some in rows.items():
            self.pending.shards[number].park(some)

    def ready(self) -> bool:
        """See Transport."""
        return False

    def cancel(self, schedule_id: bytes) -> Cancelled:
        """See Transport."""
        self._catch_up()
        return self._cancel(schedule_id)

    def forget(self, schedule_id: bytes) -> None:
        """See Transport. Behind what stands on the inbox, where something does."""
        if self._behind(self._inbox_ends()):
            self.broker.send(encode_cancel(inbox=self.inbox, id=schedule_id))
            self.broker.flush()
        else:
            self._cancel(schedule_id)

    def reschedule(self, schedule_id: bytes, *, due_ms: int) -> Moved:
        """See Transport."""
        self._check_due(due_ms)
        self._catch_up()
        return self._move(Move(schedule_id, due_ms))[0]

    def deliver_now(self, schedule_id: bytes) -> Moved:
        """See Transport. The inbox need not know: once delivered it is delivered."""
        self._catch_up()
        return self._move(Move(schedule_id, CLOCK.now_ms()))[0]

    def get(self, schedule_id: bytes) -> Schedule | None:
        """See Transport. What is not there may be on the inbox still."""
        found = self.pending.get(schedule_id)
        if found is None:
            self._catch_up()
            found = self.pending.get(schedule_id)
        return found

    def page(self, query: Query) -> tuple[list[Schedule], str | None]:
        """See Transport."""
        self._catch_up()
        after = from_cursor(query.cursor) if query.cursor else None
        to_ms = None if query.due_to_ms is None else query.due_to_ms - 1
        found: list[Schedule] = []
        filtered = bool(query.id_prefix) or query.topic is not None
        count = PAGE_COUNT_MAX if filtered else query.limit
        for _ in range(SCAN_PAGES_MAX):
            page = self.pending.list(
                count_max=count, from_ms=query.due_from_ms, to_ms=to_ms, after=after
            )
            for schedule in page:
                if query.matches(schedule):
                    found.append(schedule)
                    if len(found) == query.limit:
                        return found, to_cursor(schedule)
            if len(page) < count:
                return found, None
            after = (page[-1].due_ms, page[-1].id)
        return found, to_cursor(page[-1])

    def flush(self) -> None:
        """See Transport."""
        self.broker.flush()

    def close(self) -> None:
        """See Transport."""
        self.broker.close()
        self.pending.client.close()

    def _cancel(self, schedule_id: bytes) -> Cancelled:
        return Cancelled(self.desk.cancel(schedule_id).value)

    def _move(self, move: Move) -> tuple[Moved, Schedule | None]:
        answer, after = self.desk.move(move)
        if answer is Answer.BUSY:
            raise StoreUnavailable("intake is far behind with the copies of changes: try again")
        return Moved(answer.value), after

    def _encode(self, schedule: Schedule, *, inbox: str, change: str = "") -> Record:
        """The record for an inbox; refuses at once what intake would reject later."""
        self._check_due(schedule.due_ms)
        record = encode_headers(
            schedule.record,
            inbox=inbox,
            id=schedule.id,
            due_ms=schedule.due_ms,
            change=change,
        )
        size = len(record.value or b"") + len(record.key or b"")
        for name, content in record.headers:
            size += len(name) + len(content or b"")
        if size > self.settings.max_payload_bytes:
            raise BadRequest(
                f"expected at most {self.settings.max_payload_bytes} bytes of value, key and "
                f"headers, got {size}"
            )
        return record

    def _check_due(self, due_ms: int) -> None:
        if due_ms - CLOCK.now_ms() > self.settings.max_delay_days * 86_400_000:
            raise BadTime(f"expected a time within {self.settings.max_delay_days} days")

    def _catch_up(self, ends: dict[str, int] | None = None) -> None:
        """Wait until intake has read what is on the inboxes now, or up to `ends`.

        Raises StoreUnavailable when it does not: an answer would not be true.
        """
        if ends is None:
            ends = self._inbox_ends()
        deadline = time.monotonic() + CATCH_UP_S
        while behind := self._behind(ends):
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"intake has not read {sorted(behind)} within {CATCH_UP_S:g} s: "
                    "is the service running?"
                )
            time.sleep(CATCH_UP_PAUSE_S)

    def _behind(self, ends: dict[str, int]) -> set[str]:
        """Sources that intake has not read up to their ends."""
        if not ends:
            return set()
        with answering():
            seen = self.pending.positions()
        return {source for source, end in ends.items() if seen.get(source, 0) < end}

    def _inbox_ends(self) -> dict[str, int]:
        return {
            f"{inbox}/{number}": end
            for inbox in self.inboxes
            for number, end in self.broker.ends(inbox).items()
            if end
        }


class InboxTransport(StoreTransport):
    """Kafka and Redis: what changes a schedule is a record on its inbox, so that reading the inbox
    again ends in the same state; the store answers."""

    def __init__(self, settings: Settings, *, redis_url: str) -> None:
        super().__init__(settings, redis_url=redis_url)
        self._own: dict[str, int] = {}
        self._lock = threading.Lock()

    def send(self, schedule: Schedule, *, done: Done) -> None:
        """See Transport."""
        self._send(schedule, inbox=self.inbox, partition=None, done=done)

    def send_many(self, schedules: Iterable[Schedule]) -> int:
        """See Transport. Waits where the producer's queue is full.

        What was sent before comes first: these go through a producer of their own.
        """
        self.broker.flush()
        sent = 0
        try:
            for schedule in schedules:
                self.broker.send(self._encode(schedule, inbox=self.inbox))
                sent += 1
        finally:
            self.broker.flush()
            self._remember(self._inbox_ends())
        return sent

    def ready(self) -> bool:
        """See Transport."""
        return self.broker.has_room()

    def cancel(self, schedule_id: bytes) -> Cancelled:
        """See Transport. The inbox remembers too: read again, it ends with the cancellation."""
        self._catch_up()
        found = self.pending.get(schedule_id)
        answer = self._cancel(schedule_id)
        if answer is Cancelled.CANCELLED:
            inbox, partition = self._home(found)
            record = encode_cancel(inbox=inbox, id=schedule_id)
            self._write(lambda done: self._broker_send(record, partition, done))
        return answer

    def forget(self, schedule_id: bytes) -> None:
        """See Transport."""
        record = encode_cancel(inbox=self.inbox, id=schedule_id)
        self._write(lambda done: self._broker_send(record, None, done))

    def reschedule(self, schedule_id: bytes, *, due_ms: int) -> Moved:
        """See Transport. A copy of the change goes on the inbox, for a store that goes back; the
        store that has made it passes the copy over."""
        self._check_due(due_ms)
        self._catch_up()
        change = new_id()
        answer, after = self._move(Move(schedule_id, due_ms, change=change))
        if after is not None:
            inbox, partition = self._home(after)
            with suppress(BadRequest):  # written in a way that only its own dialect knows
                copy = self._encode(after, inbox=inbox, change=change)
                self._write(lambda done: self._broker_send(copy, partition, done))
        return answer

    def get(self, schedule_id: bytes) -> Schedule | None:
        """See Transport. Shows at least what this client has sent."""
        with self._lock:
            own = dict(self._own)
        self._catch_up(own)
        return super().get(schedule_id)

    def _home(self, found: Schedule | None) -> tuple[str, int | None]:
        """Where the versions of a schedule are: they must stay in order, so in one partition."""
        if found is None or found.origin is None or found.origin.topic not in self.inboxes:
            return self.inbox, None
        return found.origin.topic, found.origin.partition

    def _write(self, send: Callable[[Done], None]) -> dict[str, int]:
        """Hand over one record and wait for the broker; all that this client has written."""
        acknowledged = threading.Event()
        failed: list[Exception] = []

        def done(error: Exception | None) -> None:
            failed.extend([error] if error else [])
            acknowledged.set()

        send(done)
        if not acknowledged.wait(ACK_S):
            raise BrokerUnavailable(f"no acknowledgement from Kafka within {ACK_S:g} s")
        if failed:
            raise failed[0]
        with self._lock:
            return dict(self._own)

    def _send(self, schedule: Schedule, *, inbox: str, partition: int | None, done: Done) -> None:
        self._broker_send(self._encode(schedule, inbox=inbox), partition, done)

    def _broker_send(self, record: Record, partition: int | None, done: Done) -> None:
        if partition is not None:
            record = replace(record, partition=partition)
        topic = record.topic

        def on_done(error: Exception | None, number: int, position: int) -> None:
            if error is None:
                self._remember({f"{topic}/{number}": position + 1})
            done(error)

        self.broker.send(record, on_done=on_done)

    def _remember(self, ends: dict[str, int]) -> None:
        """What this client has written lies before these ends."""
        with self._lock:
            for source, end in ends.items():
                self._own[source] = max(self._own.get(source, 0), end)


class BucketsTransport(InboxTransport):
    """Kafka alone: schedules are sent like any other, and then nobody can find them."""

    def forget(self, schedule_id: bytes) -> None:  # noqa: ARG002
        """See Transport. Raises NotSupported, as everything does that needs a store."""
        raise _not_in_buckets()


class NoStore:
    """Stands where the store would be: whoever asks it anything is told what to do instead."""

    def __init__(self) -> None:
        self.client = self

    def close(self) -> None:
        """Nothing to let go of."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _not_in_buckets()


def _not_in_buckets() -> NotSupported:
    return NotSupported(
        "this installation keeps its schedules in Kafka alone (pending = buckets): they can be "
        "sent, but not looked up, listed, taken back or changed one by one. `sendlater stats` "
        "shows what waits; docs/buckets.md tells what to do instead"
    )


def open_local(settings: Settings, *, redis_url: str) -> StoreTransport:
    """The transport of an installation whose Kafka and Redis this process can reach."""
    if settings.pending == "buckets":
        return BucketsTransport(settings, redis_url="")
    kind = InboxTransport if settings.on_kafka else StoreTransport
    return kind(settings, redis_url=redis_url)


def open_pending(settings: Settings, redis_url: str) -> Pending:
    """The store with as many shards as the space was laid out with, whatever the settings say."""
    if settings.pending == "buckets":
        return cast("Pending", NoStore())
    pending = Pending.open(redis_url, space=settings.space, shards=settings.shards)
    with answering():
        stands = pending.shards[0].state().get("shards")
        if stands and int(stands) != settings.shards:
            pending = Pending(pending.client, space=settings.space, shards=int(stands))
        pending.require_layout()
    return pending
