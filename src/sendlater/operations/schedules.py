"""Writes, changes and cancels schedules, for the client, REST and the command line.

On Kafka a schedule goes through the inbox. Each change also leaves a copy there, in the partition
of the original, so that a store restored to an earlier state ends in the same state. On Redis alone
a schedule goes directly into the store, which is as durable as a topic on the same Redis.

Answers come from the store, which does not know records on an inbox that intake has not read. So
changes first wait until intake has read everything that is on the inboxes at the time of the call,
and until nobody creates a schedule with the same id under a condition (see create_if.py).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace

from sendlater.brokers.broker import Broker
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.dialects import encode_cancel
from sendlater.errors import BadRequest, BadSettings, BrokerUnavailable, StoreUnavailable
from sendlater.limits import PARK_COUNT_MAX
from sendlater.model import Record, Schedule
from sendlater.operations.acceptance import check_due, inbox_record
from sendlater.operations.arguments import change_names, chunks
from sendlater.operations.copies import copy_of_move, told_in_plan
from sendlater.operations.handed_over import Copies, HandedOver, require_safe
from sendlater.operations.intake import Intake, Look
from sendlater.operations.refused import Refused
from sendlater.operations.transport import Done
from sendlater.store import Admin, Answer, Move, Pending
from sendlater.store.codec import pack
from sendlater.store.conditional import RESERVED, Reserved
from sendlater.store.connection import answering

REPLACED_COUNT_MAX = 5
"""Attempts to cancel a schedule that is replaced each time between look-up and cancellation."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The result of a change: the answer, and the schedule before and after it."""

    answer: Answer
    before: Schedule | None = None
    after: Schedule | None = None


class Operations:
    """Safe to share between threads. Its methods block, except `send` on Kafka."""

    def __init__(
        self, settings: Settings, *, pending: Pending, broker: Broker, clock: Clock | None = None
    ) -> None:
        """Raises BadSettings if no inbox is in dialect `headers`."""
        self.settings, self.pending, self.broker = settings, pending, broker
        self.admin = Admin(pending)
        self.clock = clock or SystemClock()
        self.inboxes = [i.topic for i in settings.inboxes if i.dialect == "headers"]
        if not self.inboxes:
            raise BadSettings("inboxes: expected one in dialect 'headers' to write to, got none")
        self.inbox = self.inboxes[0]
        self.intake = Intake(
            [inbox.topic for inbox in settings.inboxes],
            pending=pending,
            broker=broker,
            copied=[inbox.topic for inbox in settings.inboxes if inbox.copy_to],
        )

    # --- writing --------------------------------------------------------------------------------

    def checked(self, schedule: Schedule) -> Record:
        """The record for the inbox. Raises BadRequest or BadTime if intake would reject it."""
        return inbox_record(
            schedule, settings=self.settings, inbox=self.inbox, now_ms=self.clock.now_ms()
        )

    def check_due(self, due_ms: int) -> None:
        """Raises BadTime if intake would reject the time as too far in the future."""
        check_due(due_ms, settings=self.settings, now_ms=self.clock.now_ms())

    def ready(self) -> bool:
        """Whether `send` would return without waiting."""
        return self.settings.on_kafka and self.broker.has_room()

    def send(self, schedule: Schedule, *, done: Done) -> None:
        """Send one schedule; `done` is called once it is safe. Raises BadRequest, BadTime. On Redis
        alone it blocks, and also raises StoreUnavailable."""
        record = self.checked(schedule)
        if self.settings.on_kafka:
            self._hand_over(record, done)
        else:
            self._put([schedule])
            done(None)

    def send_many(self, schedules: Iterable[Schedule]) -> int:
        """Send all and wait for the last; returns their number. Raises Unavailable if any was not
        accepted. If the iterable raises, the schedules before that are sent first."""
        count = 0
        if not self.settings.on_kafka:
            for chunk in chunks(map(self._passed, schedules), count_max=PARK_COUNT_MAX):
                self._put(chunk)
                count += len(chunk)
            return count
        # Earlier sends must come first on the inbox: those below use another producer.
        self.broker.flush()
        refused = Refused()  # ours alone: another thread's flush takes what the broker keeps
        try:
            for schedule in schedules:
                self.broker.send(self.checked(schedule), on_error=refused.add)
                count += 1
        finally:
            self.broker.flush()
            self.intake.has_written(self.inbox)
            refused.tell()
        return count

    def _passed(self, schedule: Schedule) -> Schedule:
        self.checked(schedule)
        return schedule

    def write(self, schedules: Sequence[Schedule]) -> list[Exception | None]:
        """Send checked schedules; on return each one is safe or has its error in the list. What was
        read from an inbox goes there again: its cancellation is there, and comes first."""
        try:
            if self.settings.on_kafka:
                return self._deliver([self._at_home(s) for s in schedules])
            self._put(schedules)
        except Exception as error:
            return [error] * len(schedules)
        return [None] * len(schedules)

    def _at_home(self, schedule: Schedule) -> Record:
        inbox, partition = self.home(schedule)
        return replace(self.checked(schedule), topic=inbox, partition=partition)

    def _put(self, schedules: Sequence[Schedule]) -> None:
        """Write to the store, or to the inbox while intake has not read all of it: it could
        otherwise read an older version later, which would replace the new one."""
        if self.intake.is_behind():
            self.deliver([self.checked(schedule) for schedule in schedules])
            return
        self.pending.require_same()
        for chunk in chunks(schedules, count_max=PARK_COUNT_MAX):
            rows: dict[int, list[object]] = {}
            for one in chunk:
                number = self.pending.shard_of(one.id).number
                rows.setdefault(number, []).extend((one.id, one.due_ms, pack(one)))
            for number, some in rows.items():
                self.pending.shards[number].park(some)

    def _hand_over(self, record: Record, done: Done) -> None:
        def on_done(error: Exception | None, number: int, position: int) -> None:
            if error is None:
                self.intake.remember({f"{record.topic}/{number}": position + 1})
            done(error)

        self.broker.send(record, on_done=on_done)

    def _deliver(self, records: Sequence[Record]) -> list[Exception | None]:
        """Put records on the inbox and wait for the broker."""
        handed_over = HandedOver(records, self._hand_over)
        with suppress(BrokerUnavailable):  # each record's outcome has this error too
            self.broker.flush()
        # Another thread's flush may write our records: so wait for the acknowledgements.
        return handed_over.outcome()

    def deliver(self, records: Sequence[Record]) -> None:
        """Put records on the inbox and wait until they are safe. Raises BrokerUnavailable."""
        require_safe(self._deliver(records))

    # --- changing -------------------------------------------------------------------------------

    def catch_up(self) -> Look:
        """See Intake.catch_up."""
        return self.intake.catch_up()

    def get(self, schedule_id: bytes) -> Schedule | None:
        """A pending or claimed schedule. Waits until intake has read what this process has
        written; if the schedule is not found, waits for the whole inbox and looks again."""
        self.intake.catch_up_with_own()
        with answering():
            found = self.pending.get(schedule_id)
            if found is None:
                look = self.catch_up()
                found = self.pending.get(schedule_id)
                if found is None:
                    self.intake.require(look)
        return found

    def cancel(self, schedule_id: bytes, *, version: str = "") -> Changed:
        """Cancel a schedule: any version, or only `version` if given. Waits while somebody creates
        it under a condition."""
        return self.intake.unreserved(lambda: self._cancel(schedule_id, version))

    def _cancel(self, schedule_id: bytes, version: str) -> Changed:
        for _ in range(REPLACED_COUNT_MAX):
            with answering():
                before = self.pending.get(schedule_id)
            # Cancel exactly this version: it is reported, and undo restores it.
            seen = version or (before.version if before is not None else "")
            answer = decided(self.cancel_many([(schedule_id, seen)], [before])[0])
            if version or answer is not Answer.CHANGED:
                break
        return Changed(answer, before)

    @contextmanager
    def copies(self) -> Iterator[Copies]:
        """What many changes, some at a time, leave on the inbox: all of it is safe at the end.
        Raises BrokerUnavailable."""
        copies = Copies(self._hand_over, flush=self.broker.flush)
        yield copies
        copies.settle()

    def cancel_many(
        self,
        ids: Sequence[tuple[bytes, str]],
        before: Sequence[Schedule | None],
        *,
        copies: Copies | None = None,
    ) -> list[Answer]:
        """Cancel many, in the store and on the inbox; `before` says where their records are.
        Does not wait: what somebody creates under a condition is `reserved`, and stays. With
        `copies` it is these that wait for the broker."""
        changes = change_names(len(ids)) if self.settings.on_kafka else [""] * len(ids)
        answers = self.admin.cancel_many(ids, changes=changes)
        for n, ((_, version), old) in enumerate(zip(ids, before, strict=True)):
            recurs = old is not None and old.plan and version in ("", old.version)
            if recurs and answers[n] is Answer.DELIVERING:  # it ends when it would be put back
                self.pending.shard_of(ids[n][0]).park([ids[n][0], "", ""])
                answers[n] = Answer.CANCELLED
        if self.settings.on_kafka:
            records = [
                encode_cancel(inbox=inbox, id=i, change=change, partition=partition)
                for (i, _), change, answer, old in zip(ids, changes, answers, before, strict=True)
                if answer is Answer.CANCELLED
                for inbox, partition in [self.home(old)]
            ]
            self._leave_copies(records, copies)
        return answers

    def forget(self, schedule_id: bytes) -> None:
        """Cancel without an answer. Does not wait for intake, but takes effect after what is on the
        inbox."""
        if self.settings.on_kafka or self.intake.is_behind():
            self.deliver([encode_cancel(inbox=self.inbox, id=schedule_id)])
        else:
            self.pending.shard_of(schedule_id).park([schedule_id, "", ""])

    def move(self, schedule_id: bytes, *, due_ms: int, version: str = "") -> Changed:
        """Give a schedule another due time: any version, or only `version` if given. Waits as
        `cancel` does. Raises BadTime, Unavailable.
        """
        self.check_due(due_ms)
        move = Move(schedule_id, due_ms, version)
        return self.intake.unreserved(lambda: self._move(move, copied=True))

    def deliver_now(self, schedule_id: bytes, *, version: str = "") -> Changed:
        """Make a schedule due at once, past the limit of its topic. The inbox gets no copy."""
        now_ms = self.clock.now_ms()
        move = Move(schedule_id, now_ms, version, at_once=True)
        return self.intake.unreserved(lambda: self._move(move, copied=False))

    def _move(self, move: Move, *, copied: bool) -> Changed:
        for _ in range(REPLACED_COUNT_MAX):
            with answering():
                before = self.pending.get(move.id)
            meant = told_in_plan(move, before, self.settings.journals) if before else move
            ((answer, after),) = self.move_many([meant], copied=copied)
            if move.version or answer is not Answer.CHANGED:
                break
        if decided(answer) is Answer.BUSY:
            raise StoreUnavailable("intake is far behind with the copies of changes: try again")
        return Changed(answer, before, after)

    def move_many(
        self, moves: Sequence[Move], *, copied: bool = True, copies: Copies | None = None
    ) -> list[tuple[Answer, Schedule | None]]:
        """Give many another due time. On Kafka a copy of each change goes to the inbox; the id of
        the change lets the store that made it ignore the copy; `copies` as of `cancel_many`.

        Changes to "due at once" are not `copied`: they are delivered before intake reads a copy.
        """
        if not (self.settings.on_kafka and copied):
            return self.admin.move_many(moves)
        changes = change_names(len(moves))
        named = [
            m if m.again else replace(m, change=change)
            for m, change in zip(moves, changes, strict=True)
        ]
        answers = self.admin.move_many(named)
        records = []
        for move, (_, after) in zip(named, answers, strict=True):
            if after is not None:
                home, journals = self.home(after), self.settings.journals
                with suppress(BadRequest):  # its own dialect allows it, dialect headers does not
                    records.append(
                        copy_of_move(after, change=move.change, home=home, journals=journals)
                    )
        self._leave_copies(records, copies)
        return answers

    def _leave_copies(self, records: Sequence[Record], copies: Copies | None) -> None:
        with nullcontext(copies) if copies else self.copies() as left:
            left.leave(records)

    def home(self, found: Schedule | None) -> tuple[str, int | None]:
        """Inbox and partition of a schedule: one partition keeps its versions in order."""
        if found is None or found.origin is None or found.origin.topic not in self.inboxes:
            return self.inbox, None
        return found.origin.topic, found.origin.partition


def decided(answer: Answer) -> Answer:
    """The same. Raises Reserved."""
    if answer is Answer.RESERVED:
        raise Reserved(RESERVED)
    return answer
