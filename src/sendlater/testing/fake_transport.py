"""A client's connection to a fake installation: the rules of a real one, in memory."""

import hashlib
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sendlater.clock import Clock
from sendlater.config import Settings
from sendlater.dialects import names
from sendlater.dialects.deliver import leaving
from sendlater.dialects.recurrence import (
    extra_occurrence,
    occurrence,
    plan_of,
    read_text,
    step,
)
from sendlater.dialects.rejected import expired_schedule
from sendlater.limits import ONCE_KEPT_MS
from sendlater.model import Cancelled, Moved, Paused, Schedule
from sendlater.operations.acceptance import check_due, inbox_record
from sendlater.operations.arguments import to_id
from sendlater.operations.conditions import condition_failed
from sendlater.operations.queries import Query, from_cursor, to_cursor
from sendlater.operations.transport import Done, Matched
from sendlater.testing.fake_topics import FakeTopics


class FakeTransport:
    """See Transport. What is due is delivered at once, by whoever calls."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock,
        topics: FakeTopics,
        require_there: Callable[[], None],
    ) -> None:
        self.settings, self.clock, self.topics = settings, clock, topics
        self.inbox = settings.inboxes[0].topic
        self.pending: dict[bytes, Schedule] = {}
        self._once: dict[bytes, int] = {}
        self._require_there = require_there
        self._lock = threading.RLock()

    def now_ms(self) -> int:
        """See Transport."""
        return self.clock.now_ms()

    def ready(self) -> bool:
        """See Transport."""
        return True

    def send(self, schedule: Schedule, *, done: Done) -> None:
        """See Transport."""
        self._put(schedule)
        done(None)

    def create(self, schedule: Schedule, *, only_if: str) -> Schedule:
        """See Transport."""
        self._check(schedule)
        with self._lock:
            standing = self.pending.get(schedule.id)
            if only_if == names.ONCE:
                return self._put(schedule) if self._is_first(schedule) else schedule
            if not _holds(only_if, schedule, standing):
                raise condition_failed(only_if, standing)
            return self._put(schedule)

    def _is_first(self, schedule: Schedule) -> bool:
        """Whether no schedule has this id, nor had one that was created under `once`; then this one
        is remembered."""
        now_ms, schedule_id = self.clock.now_ms(), schedule.id
        if schedule_id in self.pending or self._once.get(schedule_id, 0) > now_ms:
            return False
        self._once[schedule_id] = max(schedule.due_ms, now_ms) + ONCE_KEPT_MS
        return True

    def send_many(self, schedules: Iterable[Schedule]) -> int:
        """See Transport."""
        count = 0
        for schedule in schedules:
            self._put(schedule)
            count += 1
        return count

    def cancel(self, schedule_id: bytes) -> Cancelled:
        """See Transport. Never `delivering`: nothing takes time here."""
        self._require_there()
        with self._lock:
            found = self.pending.pop(schedule_id, None)
        return Cancelled.UNKNOWN if found is None else Cancelled.CANCELLED

    def cancel_many(self, ids: Sequence[bytes]) -> list[Cancelled]:
        """See Transport."""
        return [self.cancel(one) for one in ids]

    def cancel_matching(self, query: Query, *, dry_run: bool) -> Matched:
        """See Transport."""
        self._require_there()
        with self._lock:
            found = [one.id for one in filter(_passes(query), self.pending.values())]
            if not dry_run:
                self.cancel_many(found)
        return Matched(len(found), 0 if dry_run else len(found))

    def forget(self, schedule_id: bytes) -> None:
        """See Transport."""
        self.cancel(schedule_id)

    def reschedule(self, schedule_id: bytes, *, due_ms: int) -> Moved:
        """See Transport."""
        check_due(due_ms, settings=self.settings, now_ms=self.now_ms())
        self._require_there()
        with self._lock:
            found = self.pending.get(schedule_id)
            if found is None:
                return Moved.UNKNOWN
            if found.plan and read_text(found.plan).paused:
                return Moved.PAUSED
            self.pending[schedule_id] = _versioned(replace(found, due_ms=due_ms))
            self.deliver_due()
        return Moved.MOVED

    def deliver_now(self, schedule_id: bytes) -> Moved:
        """See Transport."""
        return self.reschedule(schedule_id, due_ms=self.now_ms())

    def pause(self, schedule_id: bytes) -> Paused:
        """See Transport."""
        return self._replan(schedule_id, Paused.PAUSED)

    def resume(self, schedule_id: bytes) -> Paused:
        """See Transport."""
        return self._replan(schedule_id, Paused.RESUMED)

    def _replan(self, schedule_id: bytes, wanted: Paused) -> Paused:
        self._require_there()
        with self._lock:
            found = self.pending.get(schedule_id)
            if found is None:
                return Paused.UNKNOWN
            plan, paused = plan_of(found), wanted is Paused.PAUSED
            if plan.paused == paused:
                return Paused.UNCHANGED
            then = plan.pause() if paused else plan.resume(self.now_ms())
            if then is None:
                del self.pending[schedule_id]
                return Paused.ENDED
            after = replace(found, due_ms=then.due_ms(schedule_id), plan=then.text)
            self.pending[schedule_id] = _versioned(after)
        return wanted

    def trigger(self, schedule_id: bytes) -> Schedule | None:
        """See Transport."""
        self._require_there()
        with self._lock:
            found = self.pending.get(schedule_id)
            return found and self._put(extra_occurrence(found, now_ms=self.now_ms()))

    def get(self, schedule_id: bytes) -> Schedule | None:
        """See Transport."""
        self._require_there()
        return self.pending.get(schedule_id)

    def page(self, query: Query) -> tuple[list[Schedule], str | None]:
        """See Transport."""
        self._require_there()
        with self._lock:
            found = sorted(filter(_passes(query), self.pending.values()), key=_place)
        after = from_cursor(query.cursor) if query.cursor else (-1, b"")
        first = bisect_right(found, after, key=_place)
        page = found[first : first + query.limit]
        more = first + len(page) < len(found)
        return page, to_cursor(_place(page[-1])) if more else None

    def flush(self) -> None:
        """See Transport."""
        self._require_there()

    def close(self) -> None:
        """See Transport."""

    def deliver_due(self) -> None:
        """Deliver, in due order, what is due by the clock."""
        with self._lock:
            now_ms = self.now_ms()
            # What recurs may be due again at once: see `missed` in docs/recurring.md.
            while due := [one for one in self.pending.values() if one.due_ms <= now_ms]:
                for schedule in sorted(due, key=_place):
                    del self.pending[schedule.id]
                    self._deliver(schedule, now_ms)

    def _deliver(self, due: Schedule, now_ms: int) -> None:
        schedule = self._occurrence(due, now_ms) if due.plan else due
        if schedule is None:
            return
        expires_ms = schedule.expires_ms
        if expires_ms is None or now_ms <= expires_ms:
            self.topics.append(leaving(schedule)[0], at_ms=now_ms)
        elif topic := self.settings.expired_topic:
            dead = expired_schedule(schedule, now_ms=now_ms, topic=topic)
            self.topics.append(leaving(dead)[0], at_ms=now_ms)

    def _occurrence(self, schedule: Schedule, now_ms: int) -> Schedule | None:
        """What is delivered of a recurring schedule, which waits for its next time again."""
        plan = read_text(schedule.plan)
        delivers, after = step(plan, schedule.id, due_ms=schedule.due_ms, now_ms=now_ms)
        if after is not None:
            again = replace(schedule, due_ms=after.due_ms(schedule.id), plan=after.text)
            self.pending[schedule.id] = _versioned(again)
        return occurrence(schedule, plan) if delivers else None

    def _check(self, schedule: Schedule) -> None:
        now_ms = self.now_ms()
        inbox_record(schedule, settings=self.settings, inbox=self.inbox, now_ms=now_ms)
        self._require_there()

    def _put(self, schedule: Schedule) -> Schedule:
        self._check(schedule)
        with self._lock:
            self.pending[schedule.id] = put = _versioned(schedule)
            self.deliver_due()
        return put


def _versioned(schedule: Schedule) -> Schedule:
    own = (schedule.due_ms, schedule.record, schedule.expiry, schedule.tags, schedule.plan)
    told = repr(own)
    version = hashlib.sha1(told.encode(), usedforsecurity=False).hexdigest()[:16]
    return replace(schedule, version=version)


def _holds(only_if: str, schedule: Schedule, standing: Schedule | None) -> bool:
    """The rules of operations/conditions.py, where nothing is ever being delivered."""
    word, _, version = only_if.partition("=")
    if word == "version":
        return standing is not None and standing.version == version
    if standing is None:
        return True
    earlier, later = schedule.due_ms < standing.due_ms, schedule.due_ms > standing.due_ms
    return (word == "earlier" and earlier) or (word == "later" and later)


def _place(schedule: Schedule) -> tuple[int, bytes]:
    return schedule.due_ms, schedule.id


def _passes(query: Query) -> Callable[[Schedule], bool]:
    caller = to_id(query.caller) if query.caller else None

    def passes(schedule: Schedule) -> bool:
        return (
            query.due_from_ms <= schedule.due_ms
            and (query.due_to_ms is None or schedule.due_ms < query.due_to_ms)
            and schedule.id.startswith(query.id_prefix)
            and query.topic in (None, schedule.record.topic)
            and (caller is None or caller == _caller_of(schedule))
            and (query.tag is None or query.tag in schedule.tags)
        )

    return passes


def _caller_of(schedule: Schedule) -> bytes | None:
    """Its first caller that is not empty."""
    callers = (v for name, v in schedule.record.headers if name == names.CALLER_SERVICE)
    return next(filter(None, callers), None)
