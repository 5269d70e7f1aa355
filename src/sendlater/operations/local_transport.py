"""The client's transport to an installation whose broker and store it can reach."""

from collections.abc import Iterable, Sequence
from typing import NoReturn, TypeVar, cast

from sendlater.brokers.broker import Broker
from sendlater.brokers.open import open_broker
from sendlater.config import Settings
from sendlater.dialects import names
from sendlater.errors import BadRequest, NotSupported, StoreUnavailable
from sendlater.limits import BULK_COUNT_MAX, PARK_COUNT_MAX
from sendlater.model import Cancelled, Moved, Paused, Schedule
from sendlater.operations import recurring
from sendlater.operations.arguments import chunks, to_id
from sendlater.operations.create_if import create_if, create_once
from sendlater.operations.queries import Query, from_cursor, to_cursor
from sendlater.operations.schedules import Operations
from sendlater.operations.transport import Done, Matched
from sendlater.store import Answer, Filter, Pending
from sendlater.store.connection import answering

_Told = TypeVar("_Told", Cancelled, Moved, Paused)


class LocalTransport:
    """See Transport. Calls Operations and converts its answers."""

    def __init__(self, settings: Settings, *, redis_url: str) -> None:
        """Raises BadSettings, Unavailable."""
        self.settings, self.redis_url = settings, redis_url
        self.pending = open_pending(settings, redis_url)
        self.broker: Broker = open_broker(settings, redis_url=redis_url)
        self.operations = Operations(settings, pending=self.pending, broker=self.broker)
        self.inbox = self.operations.inbox

    def send(self, schedule: Schedule, *, done: Done) -> None:
        """See Transport. With Redis alone it waits for Redis."""
        self.operations.send(schedule, done=done)

    def create(self, schedule: Schedule, *, only_if: str) -> Schedule:
        """See Transport. Waits until intake has read the inboxes."""
        return create_if(self.operations, schedule, only_if=only_if)

    def send_many(self, schedules: Iterable[Schedule]) -> int:
        """See Transport."""
        return self.operations.send_many(schedules)

    def now_ms(self) -> int:
        """See Transport."""
        return self.operations.clock.now_ms()

    def ready(self) -> bool:
        """See Transport."""
        return self.operations.ready()

    def cancel(self, schedule_id: bytes) -> Cancelled:
        """See Transport."""
        return _told(Cancelled, self.operations.cancel(schedule_id).answer)

    def cancel_many(self, ids: Sequence[bytes]) -> list[Cancelled]:
        """See Transport. Waits once for intake, not once for each."""
        look = self.operations.catch_up()
        found: list[Cancelled] = []
        for first in range(0, len(ids), PARK_COUNT_MAX):
            some = ids[first : first + PARK_COUNT_MAX]
            with answering():
                before = [self.pending.get(one) for one in some]
            wanted = [(i, b.version if b else "") for i, b in zip(some, before, strict=True)]
            answers = self.operations.cancel_many(wanted, before)
            for one, answer in zip(some, answers, strict=True):
                # A newer version came in between, or somebody creates one.
                replaced = answer in (Answer.CHANGED, Answer.RESERVED)
                found.append(self.cancel(one) if replaced else _told(Cancelled, answer))
        self.operations.intake.require(look)
        return found

    def cancel_matching(self, query: Query, *, dry_run: bool) -> Matched:
        """See Transport."""
        look = self.operations.catch_up()
        found = list(self.operations.admin.all(_filter(query), count_max=BULK_COUNT_MAX + 1))
        if len(found) > BULK_COUNT_MAX:
            raise BadRequest(f"more than {BULK_COUNT_MAX} match: choose a smaller range")
        answers: list[Answer] = []
        with self.operations.copies() as copies:
            for some in chunks([] if dry_run else found, count_max=PARK_COUNT_MAX):
                wanted = [(one.id, one.version) for one in some]
                answers += self.operations.cancel_many(wanted, some, copies=copies)
        self.operations.intake.require(look)
        later = self.operations.admin.later()
        return Matched(len(found), answers.count(Answer.CANCELLED), later=later)

    def forget(self, schedule_id: bytes) -> None:
        """See Transport."""
        self.operations.forget(schedule_id)

    def reschedule(self, schedule_id: bytes, *, due_ms: int) -> Moved:
        """See Transport."""
        return _told(Moved, self.operations.move(schedule_id, due_ms=due_ms).answer)

    def deliver_now(self, schedule_id: bytes) -> Moved:
        """See Transport."""
        return _told(Moved, self.operations.deliver_now(schedule_id).answer)

    def pause(self, schedule_id: bytes) -> Paused:
        """See Transport."""
        return _told(Paused, recurring.pause(self.operations, schedule_id).answer)

    def resume(self, schedule_id: bytes) -> Paused:
        """See Transport."""
        return _told(Paused, recurring.resume(self.operations, schedule_id).answer)

    def trigger(self, schedule_id: bytes) -> Schedule | None:
        """See Transport."""
        return recurring.trigger(self.operations, schedule_id)

    def get(self, schedule_id: bytes) -> Schedule | None:
        """See Transport."""
        return self.operations.get(schedule_id)

    def page(self, query: Query) -> tuple[list[Schedule], str | None]:
        """See Transport."""
        after = from_cursor(query.cursor) if query.cursor else None
        self.operations.catch_up()
        page = self.operations.admin.page(_filter(query), count_max=query.limit, after=after)
        return page.schedules, None if page.after is None else to_cursor(page.after)

    def flush(self) -> None:
        """See Transport."""
        self.broker.flush()

    def close(self) -> None:
        """See Transport."""
        self.broker.close()
        self.pending.close()


def _told(kind: type[_Told], answer: Answer) -> _Told:
    """An answer in the words of the client. Raises StoreUnavailable for a schedule that somebody
    changed whenever it had been looked at."""
    if answer is Answer.CHANGED:
        raise StoreUnavailable("the schedule changes all the time: try again")
    return kind(answer.value)


def _filter(query: Query) -> Filter:
    return Filter(
        from_ms=query.due_from_ms,
        to_ms=None if query.due_to_ms is None else query.due_to_ms - 1,
        id_prefix=query.id_prefix,
        topic=query.topic or "",
        tag=query.tag or "",
        header=(names.CALLER_SERVICE, to_id(query.caller)) if query.caller else None,
    )


class BucketsTransport(LocalTransport):
    """Kafka alone: schedules are sent as usual, but cannot be looked up afterwards."""

    def create(self, schedule: Schedule, *, only_if: str) -> Schedule:
        """See Transport. Raises NotSupported for every condition but `once`."""
        if only_if == names.ONCE:
            return create_once(self.operations, schedule)
        raise _not_in_buckets()

    def forget(self, schedule_id: bytes) -> None:  # noqa: ARG002
        """See Transport. Raises NotSupported, as does every method that needs a store."""
        raise _not_in_buckets()


class NoStore:
    """Replaces the store: every call raises NotSupported, which says what to do instead."""

    def __init__(self) -> None:
        self.client = self

    def close(self) -> None:
        """Nothing to close."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _not_in_buckets()


def _not_in_buckets() -> NotSupported:
    return NotSupported(
        "this installation keeps its schedules in Kafka alone (pending = buckets): they can be "
        "sent, but not looked up, listed, cancelled or changed one by one. `sendlater stats` "
        "shows what waits; docs/buckets.md says what to do instead"
    )


def open_local(settings: Settings, *, redis_url: str) -> LocalTransport:
    """Opens the transport for these settings."""
    if settings.pending == "buckets":
        return BucketsTransport(settings, redis_url="")
    return LocalTransport(settings, redis_url=redis_url)


def open_pending(settings: Settings, redis_url: str) -> Pending:
    """The store, with the space's own number of shards rather than that in the settings."""
    if settings.pending == "buckets":
        return cast("Pending", NoStore())
    pending = Pending.open(redis_url, space=settings.space, shards=settings.shards)
    with answering():
        stands = pending.shards[0].state().get("shards")
        if stands and int(stands) != settings.shards:
            pending = Pending(pending.clients, space=settings.space, shards=int(stands))
        pending.require_layout()
    return pending
