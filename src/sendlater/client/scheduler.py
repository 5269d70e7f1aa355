"""The client: send a record now to have it delivered later; change or cancel it.

`Scheduler` and `AsyncScheduler` (client/async_scheduler.py) share their plans
(operations/arguments.py) and differ in how they wait.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from sendlater.client.backoff import Backoff
from sendlater.client.etf1_records import retried
from sendlater.client.open_transport import open_transport
from sendlater.client.retries import again_or_dead
from sendlater.client.scheduled import Page, Scheduled
from sendlater.client.sender import Sender
from sendlater.client.tracing import scheduling, scheduling_many
from sendlater.dialects import names
from sendlater.errors import BadRequest, NotSupported
from sendlater.limits import PAGE_COUNT_MAX
from sendlater.model import Cancelled, Moved, Paused, Schedule
from sendlater.operations.arguments import (
    AnyHeaders,
    Delay,
    Instant,
    Message,
    Recurrence,
    due_ms,
    new_id,
    plan_send,
    to_id,
)
from sendlater.operations.conditions import unconditional
from sendlater.operations.queries import Matching, Selection, plan_bulk, plan_list
from sendlater.operations.transport import Done, Matched, Opens

if TYPE_CHECKING:
    from sendlater.brokers.broker import Broker
    from sendlater.client.rest_transport import HttpTransport
    from sendlater.config import Settings
    from sendlater.store import Pending

RETRY = Backoff(jitter=0.2)
"""5 s, then twice as long each time up to an hour, 50 times, each up to a fifth shorter."""
OnSent = Callable[[Exception | None, Scheduled], None]
"""Called with None once the schedule was accepted, or with the error; maybe in another thread."""


class Scheduler:
    """Sends records later. Safe to share between threads; close it, or use it in `with`.

    `where` is the installation: Kafka brokers `host:port,host:port` (with `redis_url=` for the
    store), a Redis URL for an installation on Redis alone, `http://...` for REST (with `token=`),
    a Settings, or a fake (sendlater.testing). Without it, the environment (SENDLATER_URL first)
    and sendlater.toml decide.
    """

    def __init__(
        self,
        where: "Settings | Opens | str | None" = None,
        *,
        redis_url: str | None = None,
        space: str | None = None,
        token: str | None = None,
        ca_file: "str | Path | None" = None,
        **settings: Any,
    ) -> None:
        """`settings` are fields of `sendlater.config.Settings`; not with a Settings or HTTP.
        `token` and `ca_file` (the certificates to trust, PEM) are for HTTP only.

        Raises BadSettings, StoreUnavailable, BrokerUnavailable.
        """
        self._transport = open_transport(
            where, redis_url=redis_url, space=space, token=token, ca_file=ca_file, **settings
        )
        self._sender = Sender(self._transport)

    def send_later(
        self,
        topic: str,
        value: bytes | str,
        *,
        key: bytes | str | None = None,
        headers: AnyHeaders = (),
        delay: Delay | None = None,
        at: Instant | None = None,
        spread: Delay | None = None,
        expires: Instant | None = None,
        expires_after: Delay | None = None,
        id: str | None = None,
        partition: int | None = None,
        tags: Iterable[str] | None = None,
        only_if: str | None = None,
        wait: bool = True,
        on_sent: OnSent | None = None,
        **recurrence: Unpack[Recurrence],
    ) -> Scheduled:
        """Have `value` delivered to `topic` after `delay` (timedelta, seconds, "15m") or at `at`
        (an aware datetime, or RFC 3339), or up to `spread` later, as the id decides; not after
        `expires` or, counted from the due time, `expires_after`. With `every` (an interval) or
        `cron` instead of a time it comes again and again: docs/recurring.md. By its `tags` it can
        be found and cancelled with others: docs/tags.md.

        Returns once the schedule is safe: on the inbox, or with Redis alone in the store. A new
        schedule with the same id replaces it. With `wait=False` it returns at once; an error goes
        to `on_sent`, or else `flush` raises it. With `only_if` (absent, earlier, later, version=V)
        it waits for intake; with `once` it counts only if it is the first of its id. Raises
        BadTime, BadRequest, ConditionFailed, Unavailable.
        """
        schedule = plan_send(
            topic,
            value,
            now_ms=self.now_ms(),
            key=key,
            headers=headers,
            delay=delay,
            at=at,
            spread=spread,
            expires=expires,
            expires_after=expires_after,
            id=id,
            partition=partition,
            tags=tags,
            **recurrence,
        )
        with scheduling(schedule, now_ms=self.now_ms()) as schedule:
            scheduled = Scheduled(self, schedule)
            told = None if on_sent is None else lambda error: on_sent(error, scheduled)
            scheduled.schedule = self._sender.send_one(
                schedule, only_if=only_if, wait=wait, on_sent=told
            )
            return scheduled

    def send_aside(self, schedule: Schedule, on_sent: Done | None = None) -> None:
        """Send a schedule without waiting; an error goes to `on_sent`, or `flush` raises it."""
        self._sender.send_aside(schedule, on_sent)

    def send_many(self, messages: Iterable[Message]) -> int:
        """Send many messages; returns their number once all are accepted.

        Each is a dict of the arguments of `send_later`. Memory stays bounded for any number of
        messages. An invalid one raises BadTime or BadRequest after those before it were sent;
        Unavailable says how many were not accepted.
        """
        now_ms = self.now_ms
        return self.submit_many(plan_send(now_ms=now_ms(), **unconditional(m)) for m in messages)

    def create(self, schedule: Schedule, *, only_if: str) -> Schedule:
        """As `send_later` with `only_if`, for a schedule."""
        return self._sender.create(schedule, only_if=only_if)

    def submit_many(self, schedules: Iterable[Schedule]) -> int:
        """As `send_many`, for schedules."""
        with scheduling_many() as stamp:
            return self._transport.send_many(map(stamp, schedules))

    def retry(
        self,
        message: Any,
        error: str = "",
        policy: Backoff | str | None = None,
        *,
        backoff: Backoff = RETRY,
        id: str | None = None,
    ) -> Scheduled:
        """Have a record that could not be handled delivered to its topic again, after a pause.

        With a `policy` (such as "5s,30s,5m", as in header `sendlater-retry`): under the id that a
        producer of any language gives it, so that the same call twice is one retry; after the last
        attempt the record goes to the dead-letter topic, with `error`.

        `message`: confluent-kafka's Message, a record of a topic on Redis, or a Record. As in
        etf1's client, header `retry-attempt` counts the attempts and `retry-original-timestamp` is
        the time of the first failure; headers of schedulers are dropped. Without a policy it raises
        NoAttemptsLeft. Raises BadRequest, Unavailable.
        """
        if policy is not None and id is not None:
            raise BadRequest(f"id: expected none beside a policy, which gives it one, got {id!r}")
        if policy is not None:
            # Over HTTP its dead-letter topic is not known here.
            dead_topic = None if self.remote else lambda: self.settings.dead_topic
            schedule = again_or_dead(
                message, error, policy, dead_topic=dead_topic, now_ms=self.now_ms()
            )
            self.create(schedule, only_if=names.ONCE)
            return Scheduled(self, schedule)
        record, due_ms = retried(message, backoff=backoff, now_ms=self.now_ms())
        schedule = Schedule(id=to_id(id or new_id()), due_ms=due_ms, record=record)
        with scheduling(schedule, now_ms=self.now_ms()) as schedule:
            self._sender.send(schedule)
        return Scheduled(self, schedule)

    def cancel(self, id: str) -> Cancelled:
        """Cancel a schedule. Answers cancelled, delivering (too late) or unknown.

        Waits until intake has read what is on the inbox now, so that a schedule just sent is found.
        Raises Unavailable if intake is not that far in time.
        """
        return self._transport.cancel(to_id(id))

    def cancel_many(self, ids: Iterable[str]) -> dict[str, Cancelled]:
        """Cancel schedules, waiting once for intake; the answer for each id."""
        names = dict.fromkeys(ids)
        answers = self._transport.cancel_many([to_id(id) for id in names])
        return dict(zip(names, answers, strict=True))

    def cancel_matching(
        self,
        *,
        all: bool = False,
        dry_run: bool = False,
        **matching: Unpack[Matching],
    ) -> Matched:
        """Cancel all pending schedules that `list` would find, such as all with a `tag`, and, with
        `caller`, whose header CALLER_SERVICE is that; at most BULK_COUNT_MAX. With `dry_run` only
        count them.

        Everything takes `all=True`: a filter that is empty, maybe by mistake, is a BadRequest.
        """
        query = plan_bulk(all=all, now_ms=self.now_ms(), **matching)
        return self._transport.cancel_matching(query, dry_run=dry_run)

    def reschedule(
        self, id: str, *, delay: Delay | None = None, at: Instant | None = None
    ) -> Moved:
        """Give a schedule another due time. Answers moved, delivering (too late) or unknown.

        After `moved` it is delivered at the new time only. If this raises Unavailable, it may have
        moved, and a store restored to an earlier state may have lost that change.
        """
        return self._reschedule(id, delay=delay, at=at)[0]

    def _reschedule(self, id: str, *, delay: Delay | None, at: Instant | None) -> tuple[Moved, int]:
        moved_to_ms = due_ms(delay=delay, at=at, now_ms=self.now_ms())
        return self._transport.reschedule(to_id(id), due_ms=moved_to_ms), moved_to_ms

    def deliver_now(self, id: str) -> Moved:
        """Make a schedule due at once. Answers moved, delivering (it already is) or unknown."""
        return self._transport.deliver_now(to_id(id))

    def pause(self, id: str) -> Paused:
        """Deliver nothing of a recurring schedule until it is resumed: docs/recurring.md. Raises
        BadRequest for one that comes once, as the next two."""
        return self._transport.pause(to_id(id))

    def resume(self, id: str) -> Paused:
        """Go on with the first planned time after now; without any the answer is `ended`."""
        return self._transport.resume(to_id(id))

    def trigger(self, id: str) -> Scheduled | None:
        """Send an occurrence beside the plan, due now; None if there is no such schedule."""
        found = self._transport.trigger(to_id(id))
        return None if found is None else Scheduled(self, found)

    def get(self, id: str) -> Scheduled | None:
        """A pending or claimed schedule; None if there is none, or none any more."""
        found = self._transport.get(to_id(id))
        return None if found is None else Scheduled(self, found)

    def list(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        **selection: Unpack[Selection],
    ) -> Page[Scheduled]:
        """A page of pending schedules in due order: due in [due_from, due_to), with a `tag`, for a
        `topic`, with an id that begins with `id_prefix`.

        With `id_prefix` or `topic` a page may have fewer than `limit` items and still have a
        cursor.
        """
        query = plan_list(now_ms=self.now_ms(), limit=limit, cursor=cursor, **selection)
        found, next_cursor = self._transport.page(query)
        return Page([Scheduled(self, one) for one in found], next_cursor)

    def iter(self, **selection: Unpack[Selection]) -> Iterator[Scheduled]:
        """All pending schedules of `list`, page after page; what comes meanwhile may be missing."""
        cursor: str | None = ""
        while cursor is not None:
            page = self.list(limit=PAGE_COUNT_MAX, cursor=cursor or None, **selection)
            yield from page.items
            cursor = page.next_cursor

    def flush(self) -> None:
        """Wait until all schedules are accepted. Raises the first error that no `on_sent` got."""
        self._sender.flush()

    def close(self) -> None:
        """Flush and disconnect."""
        try:
            self.flush()
        finally:
            self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def now_ms(self) -> int:
        """The clock that delays count from, milliseconds since 1970: this host's."""
        return self._transport.now_ms()

    @property
    def remote(self) -> "HttpTransport | None":
        """The transport of a client over HTTP, otherwise None."""
        from sendlater.client.rest_transport import HttpTransport

        return self._transport if isinstance(self._transport, HttpTransport) else None

    @property
    def settings(self) -> "Settings":
        """The installation's settings. These properties raise NotSupported over HTTP."""
        return cast("Settings", self._local("settings"))

    @property
    def inbox(self) -> str:
        """The topic that schedules are written to."""
        return str(self._local("inbox"))

    @property
    def redis_url(self) -> str:
        """The URL of its Redis."""
        return str(self._local("redis_url"))

    @property
    def broker(self) -> "Broker":
        """The connection to Kafka, or to the topics on Redis."""
        return cast("Broker", self._local("broker"))

    @property
    def pending(self) -> "Pending":
        """The store, with what intake has read so far."""
        return cast("Pending", self._local("pending"))

    def _local(self, name: str) -> Any:
        if not hasattr(self._transport, name):
            raise NotSupported(f"{name}: expected a client of Kafka or Redis, got one over HTTP")
        return getattr(self._transport, name)
