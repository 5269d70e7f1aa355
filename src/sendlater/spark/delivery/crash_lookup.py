"""After a crash: settles what had arrived of unsettled batches; the rest is released.

A delivery carries its id, due time and the place it was read from. One Spark job reads the target
topics of unsettled rows, from the earliest claim on, and finds which rows are there.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog
from pyspark.sql import SparkSession

from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.clock import SystemClock
from sendlater.config import Settings
from sendlater.dialects import delivered_headers, delivered_stages, fingerprint, names
from sendlater.dialects.decode import COPY_OF, NAMES
from sendlater.dialects.deliver import VERSION
from sendlater.dialects.rejected import expired_schedule
from sendlater.dialects.sql import header, text, texts
from sendlater.errors import BrokerUnavailable, Fenced, StoreUnavailable, StoreWentBack
from sendlater.limits import LOOK_UP_COUNT_MAX
from sendlater.model import Schedule
from sendlater.spark.delivery.expired import has_expired
from sendlater.spark.delivery.kept_rows import KeptRows
from sendlater.spark.delivery.unsettled_rows import UnsettledRows
from sendlater.spark.journal.rewrite import write_again
from sendlater.spark.kafka_sink import producer_options
from sendlater.spark.topic_reads import Deliveries, readable_topics, records_since
from sendlater.store import Batch, Pending
from sendlater.store.batch import OVERTAKEN
from sendlater.store.codec import pack, with_due
from sendlater.store.connection import answering
from sendlater.store.recurring import Recurring, recur
from sendlater.store.unsettled import Unsettled, settle_some, unsettled

_PLANNED = f"array_position(headers.key, {text(names.SCHEDULE)}) > 0"
PLACE = f"""CAST(concat_ws('-', origin_topic, origin_partition, origin_position,
IF({_PLANNED}, substring_index(CAST(id AS STRING), '@', -1), NULL)) AS BINARY)"""
"""The id of a rejected record, see `rejected_schedule`."""
REJECTED = "(dialect = 'rejected' AND origin_topic <> '')"
AWAY_S = 1.0
"""A broker that takes longer to answer was away."""
FAILURES_MAX = 3
"""Look-ups that fail one after the other although the broker answers; then there is none."""
_log = structlog.get_logger()


@dataclass(slots=True)
class Found:
    """What was found of unsettled rows, by their numbers."""

    arrived: set[int] = field(default_factory=set)
    owed: set[int] = field(default_factory=set)
    """Arrived, but the tombstone or the history record is missing."""
    torn: set[int] = field(default_factory=set)
    """Not arrived, but the tombstone is there: intake reads it, and would cancel them."""


class CrashLookup:
    """Looks up unsettled rows; used at a start, and before a lane is started again."""

    def __init__(
        self, spark: SparkSession, settings: Settings, pending: Pending, topics: KafkaTopics
    ) -> None:
        self._spark, self._settings = spark, settings
        self._pending, self._topics = pending, topics
        self._kept = KeptRows(settings, pending, topics)
        self._away = False
        self._failures = 0
        self._there = Deliveries(spark, settings)
        self._instead = {settings.rejected_topic, settings.expired_topic} - {""}
        """Where a row is under its place as its id, if the store has gone back since."""

    def settle(
        self,
        *,
        owner: int,
        lane: int | None = None,
        but: Collection[int] = (),
        waits: Collection[str] = (),
    ) -> int:
        """Settle what is found, of one lane or of all `but` some; returns how many rows. `release`
        takes the others, except those for topics that take nothing for the moment, or took nothing
        just now (`waits`).

        Without permission to read, or if look-ups keep failing, nothing is settled: then unsettled
        rows are delivered again, and the log says so. Raises BrokerUnavailable, Fenced,
        StoreUnavailable, StoreWentBack: the caller must try again before it releases them.
        """
        count, again, began, gave_up = 0, bool(waits), False, False
        try:
            for batches in self._parts(unsettled(self._pending, lane=lane, but=but)):
                if not began:
                    self._await_broker()
                    began = True
                readable = self._kept.hold_back(batches, waits, owner=owner)
                again = again or readable != batches
                found = self._settle(readable, owner=owner, again=again)
                gave_up = gave_up or found is None
                count += found or 0
        finally:
            self._there.forget()
        if not gave_up:
            self._failures = 0
        if again and began:  # in an outage brokers may have taken what cannot be read yet
            self._kept.keep_all(unsettled(self._pending, lane=lane, but=but), owner=owner)
        return count

    def _parts(self, batches: Iterable[Unsettled]) -> Iterator[list[Unsettled]]:
        """As many as are looked up at once. With journals that are all: one topic that takes
        nothing tells that none of them is torn."""
        part: list[Unsettled] = []
        for batch in batches:
            count = sum(len(one.ids) for one in part)
            if part and count + len(batch.ids) > LOOK_UP_COUNT_MAX and not self._settings.journals:
                yield part
                part = []
            part.append(batch)
        if part:
            yield part

    def settle_kept(self, *, owner: int) -> None:
        """The same for what was kept and can be looked up now; the others of these rows are put
        back to pending. Raises what `settle` raises."""
        batches = self._kept.ready(owner=owner)
        self._failures = 0  # nobody waits for these: it never gives up
        try:
            for part in self._parts(batches):
                self._settle(part, owner=owner)
        finally:
            self._there.forget()
        for batch in batches:
            batch.shard.release(batch.name, owner=owner, armed_as=f"{self._pending.space}/{owner}")

    def _settle(
        self, batches: Sequence[Unsettled], *, owner: int, again: bool = False
    ) -> int | None:
        """How many of these rows were found; None: they cannot be looked up."""
        if not any(batch.ids for batch in batches):
            return 0
        rows = UnsettledRows.of(batches, self._settings)
        try:
            since_ms = rows.since_ms(batches)
            found = self._look_up(rows, since_ms)
            if again:
                found.torn.clear()
            self._repair(rows, found, since_ms)
            done, first = found.arrived | found.torn, 0
            for batch in batches:
                mine = [n for n in range(first, first + len(batch.ids)) if n in done]
                _go_on(batch, [rows.steps[n] for n in mine if n in rows.steps], owner=owner)
                settle_some(batch, [rows.ids[n] for n in mine], owner=owner)
                first += len(batch.ids)
        except (Fenced, StoreUnavailable, StoreWentBack):
            raise
        except Exception as error:
            self._topics.require_answer()
            self._failures += 1
            if self._failures < FAILURES_MAX:
                raise BrokerUnavailable(f"unsettled deliveries: no look-up: {error!r}") from error
            _log.error(
                "unsettled deliveries cannot be looked up; they are delivered again",
                rows=len(rows),
                cause=repr(error)[:500],
            )
            return None
        _log.warning(
            "unsettled deliveries looked up",
            rows=len(rows),
            arrived=len(found.arrived),
            again=len(rows) - len(found.arrived),
        )
        return len(done)

    def _await_broker(self) -> None:
        """A broker that was away first takes what it was sent before: look after that."""
        asked_s = time.monotonic()
        try:
            self._topics.require_answer()
        except BrokerUnavailable:
            self._away = True
            raise
        if self._away or time.monotonic() - asked_s > AWAY_S:
            time.sleep(self._settings.recovery_pause_ms / 1_000)
            self._away = False

    def _look_up(self, rows: UnsettledRows, since_ms: int) -> Found:
        readable = readable_topics(self._topics, {target for target, _ in rows.topics})
        silent = self._topics.silent(self._instead)  # would fail the look-up of all others
        rejected = readable_topics(self._topics, self._instead - silent)
        topics = readable | rejected | self._after_delivery(rows)
        if not topics:
            return Found()
        # As many rows as that are a part of a batch, and others follow.
        there = self._there.since(since_ms, topics, shared=2 * len(rows) > LOOK_UP_COUNT_MAX)
        frame = self._spark.createDataFrame(rows.numbered())
        as_itself = frame.selectExpr("number", "id", "due_ms", f"{self._version()} AS version")
        as_rejected = frame.filter("origin_topic <> ''").selectExpr(
            "number", f"{PLACE} AS id", "due_ms", f"{VERSION} AS version"
        )
        asked = as_itself.union(as_rejected)
        if not self._settings.journals:
            # A part is small, and what it is compared with may be millions.
            asked = asked.hint("broadcast")
        hits = asked.join(there, ["id", "due_ms", "version"])
        at: dict[int, set[tuple[str, bool]]] = {}
        columns = hits.select("number", "topic", "deleted").toArrow().to_pydict().values()
        for number, topic, deleted in zip(*columns, strict=True):
            at.setdefault(number, set()).add((topic, deleted))
        found = Found()
        for number, places in at.items():
            self._judge(number, rows.topics[number], places, found)
        return found

    def _version(self) -> str:
        """What distinguishes an unsettled row from others of its id and due time, as Spark SQL.

        The place it was read from, if deliveries carry it (journals, rejected records); otherwise a
        digest of all that is delivered.
        """
        journals = self._settings.journals
        told = f"{REJECTED} OR origin_topic IN {texts(journals)}" if journals else REJECTED
        sent = fingerprint("key", "value", delivered_headers(journals))
        return f"IF({told}, {VERSION}, {sent})"

    def _judge(
        self, number: int, row: tuple[str, str], at: set[tuple[str, bool]], found: Found
    ) -> None:
        """What was found of a row with this target that was read from this topic."""
        target, origin = row
        in_journal = origin in self._settings.journals
        tombstone = in_journal and (origin, True) in at
        instead = any((topic, False) in at for topic in self._instead)
        if instead or (target, False) in at:
            found.arrived.add(number)
            history = self._settings.history_topic
            settled = not history or instead or (history, False) in at
            if in_journal and not (tombstone and settled):
                found.owed.add(number)
        elif tombstone:
            found.torn.add(number)

    def _after_delivery(self, rows: UnsettledRows) -> set[str]:
        """The topics of these rows' tombstones and history."""
        journals = {origin for _, origin in rows.topics} & set(self._settings.journals)
        history = self._settings.history_topic
        return journals | ({history} if journals and history else set())

    def _repair(self, rows: UnsettledRows, found: Found, since_ms: int) -> None:
        """Write what is owed, and deliver what is torn, unless something newer was written since.

        This is not left to intake, which cannot know whether a torn schedule was replaced,
        cancelled or delivered. Here it is looked up, before intake reads on.
        """
        if found.owed:
            self._send(rows.some(sorted(found.owed)), owed=True)
        if not found.torn:
            return
        torn = sorted(found.torn)
        replaced = {torn[n] for n in self._replaced(rows.some(torn), since_ms)}
        left = [n for n in torn if n not in replaced and rows.packed[n][0] != OVERTAKEN]
        if not left:
            return
        try:
            self._send(self._standing(rows.some(left)), owed=False)
        except Exception as error:
            # Its target takes nothing any more: intake and lanes can handle that.
            told = "schedules with a tombstone cannot be delivered; they are written again as new"
            _log.warning(told, count=len(left), cause=str(error)[:500])
            # What is left of a recurring schedule on its journal takes no occurrence back.
            mine = {n for n in left if _has_own_id(rows.schedule(n))}
            found.torn -= mine
            again = [rows.schedule(n) for n in left if n not in mine]
            write_again(self._settings, again, anew=True)

    def _standing(self, rows: UnsettledRows) -> UnsettledRows:
        """These rows; what is delivered instead of those that have expired."""
        now_ms, ids, packed = SystemClock().now_ms(), list[bytes](), list[bytes]()
        for n in range(len(rows)):
            one = rows.schedule(n)
            if has_expired(one, now_ms=now_ms):
                topic = self._settings.expired_topic
                dead = expired_schedule(one, now_ms=now_ms, topic=topic) if topic else None
                if dead is not None:
                    ids.append(dead.id)
                    packed.append(with_due(dead.due_ms, pack(dead)))
            else:
                ids.append(rows.ids[n])
                packed.append(rows.packed[n])
        return UnsettledRows(ids, packed)

    def _send(self, rows: UnsettledRows, *, owed: bool) -> None:
        if not rows:
            return
        frame = self._spark.createDataFrame(rows.sent(self._settings, owed=owed))
        for stage in delivered_stages(self._settings, owed=owed):
            frame = frame.selectExpr(*stage)
        frame.write.format("kafka").options(**producer_options(self._settings)).save()

    def _replaced(self, rows: UnsettledRows, since_ms: int) -> set[int]:
        """Numbers of rows whose id (of an occurrence: that of its schedule) was written again or
        cancelled, not by us."""
        ours = f"value IS NULL AND {header(text(names.ORIGIN))} IS NOT NULL"
        written = (
            records_since(self._spark, self._settings, self._settings.journals, from_ms=since_ms)
            .selectExpr("*", f"{NAMES} AS names")
            .filter(f"NOT ({ours}) AND {COPY_OF} IS NULL")
            .selectExpr("key AS id", "topic", "partition", "offset", "timestamp")
        )
        frame = self._spark.createDataFrame(rows.numbered())
        asked = frame.selectExpr("*", "headers.key AS names").selectExpr(
            *("number", f"coalesce({header(text(names.SCHEDULE))}, id) AS id"),
            *("origin_topic", "origin_partition", "origin_position", "origin_timestamp_ms"),
        )
        beside = "topic = origin_topic AND partition = origin_partition"
        newer = (
            f"IF({beside}, offset > origin_position, unix_millis(timestamp) > origin_timestamp_ms)"
        )
        found = asked.join(written, "id").filter(newer).select("number").distinct().collect()
        return {row["number"] for row in found}


def _go_on(batch: Unsettled, steps: Sequence[Recurring], *, owner: int) -> None:
    """Put the occurrences of recurring schedules into their batch, as its lane has done before the
    store went back."""
    if steps:
        shard, attempts = batch.shard, f"{batch.shard.keys['batches']}-attempts"
        with answering():
            attempt = (shard.client.hget(attempts, batch.name) or b"").decode()
        recur(shard, Batch.named(batch.name), steps, owner=owner, attempt=attempt)


def _has_own_id(schedule: Schedule) -> bool:
    """Whether it waits under another id than its record on the journal."""
    is_occurrence = any(name == names.SCHEDULE for name, _ in schedule.record.headers)
    return schedule.dialect == "rejected" or is_occurrence
