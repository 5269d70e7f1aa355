"""What the doors of REST and the page do with schedules: write, change, take back, truly.

On Kafka a schedule goes through the inbox, and each change leaves a copy there, in the partition
of the original, so that a store that goes back ends in the same state. On Redis alone a schedule
goes straight into the store, which is as durable as a topic on the same Redis.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ulid import ULID

from sendlater.client.brokers import Broker
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.dialects import encode_cancel, encode_headers
from sendlater.errors import BadRequest, BadSettings, BadTime, BrokerUnavailable, StoreUnavailable
from sendlater.limits import PARK_COUNT_MAX
from sendlater.model import Record, Schedule
from sendlater.pending import Answer, Desk, Move, Pending
from sendlater.pending.connect import answering
from sendlater.pending.packing import pack

ACK_S = 30.0
"""Longest wait for the broker to take a record."""
CATCH_UP_S = 10.0
"""Longest wait for intake to read what was on the inbox before a question."""
LOOK_S = 1.0
"""The same for a list, which is shown all the same when intake does not come."""
CATCH_UP_PAUSE_S = 0.01
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change came to: the answer, and the schedule before and after it."""

    answer: Answer
    before: Schedule | None = None
    after: Schedule | None = None


class Office:
    """Shared by all requests; its methods wait, so they run in threads."""

    def __init__(
        self, settings: Settings, *, pending: Pending, broker: Broker, clock: Clock | None = None
    ) -> None:
        self.settings, self.pending, self.broker = settings, pending, broker
        self.desk = Desk(pending)
        self.clock = clock or SystemClock()
        self.inboxes = [i.topic for i in settings.inboxes if i.dialect == "headers"]
        if not self.inboxes:
            raise BadSettings("inboxes: REST needs one in dialect 'headers', got none")

    # --- writing --------------------------------------------------------------------------------

    def checked(self, schedule: Schedule) -> Record:
        """The record for the inbox; refuses at once what intake would reject later.

        Raises BadRequest, BadTime.
        """
        self.check_due(schedule.due_ms)
        record = encode_headers(
            schedule.record, inbox=self.inboxes[0], id=schedule.id, due_ms=schedule.due_ms
        )
        size = len(record.value or b"") + len(record.key or b"")
        size += sum(len(name) + len(value or b"") for name, value in record.headers)
        if size > self.settings.max_payload_bytes:
            raise BadRequest(
                f"expected at most {self.settings.max_payload_bytes} bytes of value, key and "
                f"headers, got {size}"
            )
        return record

    def write(self, schedules: Sequence[Schedule]) -> list[Exception | None]:
        """Hand over schedules that were checked; when it returns each is safe, or failed."""
        try:
            if self.settings.on_kafka or self._behind(self._inbox_ends()):
                # Behind what stands unread on the inbox: an older version would win otherwise.
                return self._send([(self.checked(s), None) for s in schedules])
            for first in range(0, len(schedules), PARK_COUNT_MAX):
                self._park(schedules[first : first + PARK_COUNT_MAX])
        except Exception as error:
            return [error] * len(schedules)
        return [None] * len(schedules)

    def _park(self, schedules: Sequence[Schedule]) -> None:
        rows: dict[int, list[object]] = {}
        for one in schedules:
            number = self.pending.shard_of(one.id).number
            rows.setdefault(number, []).extend((one.id, one.due_ms, pack(one)))
        for number, some in rows.items():
            self.pending.shards[number].park(some)

    def _send(self, records: Sequence[tuple[Record, int | None]]) -> list[Exception | None]:
        """Put records on the inbox, each in a partition if one is given; waits for the broker."""
        unheard = BrokerUnavailable(f"the broker has not answered within {ACK_S:g} s")
        outcome: list[Exception | None] = [unheard] * len(records)
        # Another thread's flush may be what writes ours: only the acknowledgement counts.
        left = threading.Semaphore(0)

        def told(number: int) -> Callable[[Exception | None, int, int], None]:
            def done(error: Exception | None, _partition: int, _position: int) -> None:
                outcome[number] = error
                left.release()

            return done

        for number, (record, partition) in enumerate(records):
            placed = record if partition is None else replace(record, partition=partition)
            self.broker.send(placed, on_done=told(number))
        with suppress(BrokerUnavailable):  # each record's outcome says so too
            self.broker.flush()
        deadline = time.monotonic() + ACK_S
        for _ in records:
            if not left.acquire(timeout=max(0.0, deadline - time.monotonic())):
                break
        return outcome

    # --- changing -------------------------------------------------------------------------------

    def get(self, schedule_id: bytes) -> Schedule | None:
        """Pending or claimed. What is not there may be on the inbox still."""
        with answering():
            found = self.pending.get(schedule_id)
            if found is None:
                self.catch_up()
                found = self.pending.get(schedule_id)
        return found

    def cancel(self, schedule_id: bytes, *, version: str = "") -> Changed:
        """Take a schedule back, if it is the version that was seen."""
        self.catch_up()
        with answering():
            before = self.pending.get(schedule_id)
        if version == "" and before is not None:
            version = before.version  # what is told and can be undone is what was cancelled
        found = self.cancel_many([(schedule_id, version)], [before])[0]
        return Changed(found, before)

    def cancel_many(
        self, ids: Sequence[tuple[bytes, str]], before: Sequence[Schedule | None]
    ) -> list[Answer]:
        """Take many back, and let the inbox know; `before` tells where their records are."""
        answers = self.desk.cancel_many(ids)
        if self.settings.on_kafka:
            records = [
                (encode_cancel(inbox=inbox, id=schedule_id), partition)
                for (schedule_id, _), answer, old in zip(ids, answers, before, strict=True)
                if answer is Answer.CANCELLED
                for inbox, partition in [self._home(old)]
            ]
            self._must_send(records)
        return answers

    def move(self, schedule_id: bytes, *, due_ms: int, version: str = "") -> Changed:
        """Give a schedule another due time, if it is the version that was seen."""
        self.check_due(due_ms)
        self.catch_up()
        with answering():
            before = self.pending.get(schedule_id)
        ((answer, after),) = self.move_many([Move(schedule_id, due_ms, version)])
        return Changed(answer, before, after)

    def move_many(
        self, moves: Sequence[Move], *, copied: bool = True
    ) -> list[tuple[Answer, Schedule | None]]:
        """Move many; on Kafka each change has a name, and a copy of it follows on the inbox.

        Not `copied` are those that become due at once: they are gone before anybody reads it.
        """
        if not (self.settings.on_kafka and copied):
            return self.desk.move_many(moves)
        named = [replace(move, change=str(ULID())) for move in moves]
        answers = self.desk.move_many(named)
        records = []
        for move, (_, after) in zip(named, answers, strict=True):
            if after is not None:
                inbox, partition = self._home(after)
                with suppress(BadRequest):  # written in a way that only its own dialect knows
                    record = encode_headers(
                        after.record,
                        inbox=inbox,
                        id=after.id,
                        due_ms=after.due_ms,
                        change=move.change,
                    )
                    records.append((record, partition))
        self._must_send(records)
        return answers

    def deliver_now(self, schedule_id: bytes, *, version: str = "") -> Changed:
        """Make a schedule due at once."""
        self.catch_up()
        with answering():
            before = self.pending.get(schedule_id)
        now = Move(schedule_id, self.clock.now_ms(), version)
        ((answer, after),) = self.move_many([now], copied=False)
        return Changed(answer, before, after)

    def _must_send(self, records: Sequence[tuple[Record, int | None]]) -> None:
        failed = [error for error in self._send(records) if error is not None]
        if failed:
            raise BrokerUnavailable(f"changed in the store, but not on the inbox: {failed[0]}")

    def check_due(self, due_ms: int) -> None:
        """Refuse, with BadTime, what intake would reject as too far away."""
        if due_ms - self.clock.now_ms() > self.settings.max_delay_days * DAY_MS:
            raise BadTime(f"expected a time within {self.settings.max_delay_days} days")

    def _home(self, found: Schedule | None) -> tuple[str, int | None]:
        """Where the versions of a schedule are: they must stay in order, so in one partition."""
        if found is None or found.origin is None or found.origin.topic not in self.inboxes:
            return self.inboxes[0], None
        return found.origin.topic, found.origin.partition

    # --- the inbox ------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Wait until intake has read what is on the inboxes now. Raises StoreUnavailable when it
        does not: an answer would not be true."""
        behind = self.caught_up(within_s=CATCH_UP_S)
        if behind:
            raise StoreUnavailable(
                f"intake has not read {sorted(behind)} within {CATCH_UP_S:g} s: "
                "is the service running?"
            )

    def caught_up(self, *, within_s: float) -> set[str]:
        """The same for those who look only: what intake has not read by then, empty if all is."""
        ends = self._inbox_ends()
        deadline = time.monotonic() + within_s
        while (behind := self._behind(ends)) and time.monotonic() < deadline:
            time.sleep(CATCH_UP_PAUSE_S)
        return behind

    def _behind(self, ends: dict[str, int]) -> set[str]:
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


class Writer:
    """Gathers schedules of many requests and writes them together, in a thread of its own.

    While one lot is on its way the next one gathers, so that a wait for the broker is shared.
    """

    LOT_COUNT_MAX = 2_000

    def __init__(
        self, office: Office, *, answer: Callable[[list[tuple[object, Exception | None]]], object]
    ) -> None:
        self._office, self._answer = office, answer
        self._waiting: list[tuple[Schedule, object]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, schedule: Schedule, ticket: object) -> None:
        """Hand over a checked schedule; `answer` is called with its ticket later."""
        with self._changed:
            self._waiting.append((schedule, ticket))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                lot = self._waiting[: self.LOT_COUNT_MAX]
                del self._waiting[: self.LOT_COUNT_MAX]
            answers = self._office.write([schedule for schedule, _ in lot])
            self._answer([(ticket, error) for (_, ticket), error in zip(lot, answers, strict=True)])

    def close(self) -> None:
        """Write what has gathered, then end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
