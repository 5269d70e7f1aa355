"""After a crash: settles what had arrived of unsettled batches; the rest is released.

A delivery carries its id, due time and the place it was read from. One Spark job reads the target
topics of unsettled rows, from the earliest claim on, and finds which rows are there.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import structlog
from pyspark.sql import DataFrame, SparkSession

from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.clock import SystemClock
from sendlater.config import Settings
from sendlater.dialects import delivered_headers, delivered_stages, fingerprint, names
from sendlater.dialects.decode import COPY_OF, NAMES
from sendlater.dialects.deliver import VERSION
from sendlater.dialects.rejected import expired_schedule
from sendlater.dialects.sql import header, text, texts
from sendlater.errors import BrokerUnavailable, Fenced, StoreUnavailable, StoreWentBack
from sendlater.model import Schedule
from sendlater.spark.delivery.arrived import earliest_ms
from sendlater.spark.delivery.expired import has_expired
from sendlater.spark.delivery.kept_rows import KeptRows
from sendlater.spark.delivery.recurring import advanced, as_sent
from sendlater.spark.journal.rewrite import write_again
from sendlater.spark.kafka_sink import producer_options
from sendlater.spark.topic_reads import deliveries, readable_topics, records_since
from sendlater.store import Batch, Pending
from sendlater.store.batch import OVERTAKEN
from sendlater.store.codec import pack, unpack, with_due
from sendlater.store.connection import answering
from sendlater.store.recurring import Recurring, recur
from sendlater.store.unsettled import Unsettled, settle_some, unsettled

# Arrow is imported where it is used: a start that has nothing to look up needs none.
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


@dataclass(frozen=True, slots=True)
class _Row:
    """One row that nobody has settled."""

    batch: Unsettled
    packed: bytes
    schedule: Schedule
    step: Recurring | None = None
    """Of a recurring schedule, whose occurrence this is: how it goes on if that has arrived."""


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
        self._instead = {settings.rejected_topic, settings.expired_topic} - {""}
        """Where a row is under its place as its id, if the store has gone back since."""

    def settle(self, *, owner: int, lane: int | None = None, waits: Collection[str] = ()) -> int:
        """Settle what is found; returns how many rows. `release` takes the others, except those
        for topics that take nothing for the moment, or took nothing just now (`waits`).

        Without permission to read, or if look-ups keep failing, nothing is settled: then unsettled
        rows are delivered again, and the log says so. Raises BrokerUnavailable, Fenced,
        StoreUnavailable, StoreWentBack: the caller must try again before it releases them.
        """
        batches = list(unsettled(self._pending, lane=lane))
        if not batches:
            return 0
        self._await_broker()
        readable = self._kept.hold_back(batches, waits, owner=owner)
        again = bool(waits) or readable != batches
        count = self._settle(readable, owner=owner, again=again)
        if again:  # in an outage brokers may have taken what cannot be read yet
            self._kept.keep_all(unsettled(self._pending, lane=lane), owner=owner)
        return count

    def settle_kept(self, *, owner: int) -> None:
        """The same for what was kept and can be looked up now; the others of these rows are put
        back to pending. Raises what `settle` raises."""
        batches = self._kept.ready(owner=owner)
        self._failures = 0  # nobody waits for these: it never gives up
        self._settle(batches, owner=owner)
        for batch in batches:
            batch.shard.release(batch.name, owner=owner, armed_as=f"{self._pending.space}/{owner}")

    def _settle(self, batches: Sequence[Unsettled], *, owner: int, again: bool = False) -> int:
        rows = [
            self._row(batch, schedule_id, packed)
            for batch in batches
            for schedule_id, packed in zip(batch.ids, batch.packed, strict=True)
        ]
        if not rows:
            return 0
        try:
            since_ms = _since_ms(rows)
            found = self._look_up(rows, since_ms)
            if again:
                found.torn.clear()
            self._repair(rows, found, since_ms)
            done = found.arrived | found.torn
            for batch in batches:
                mine = [r for n, r in enumerate(rows) if n in done and r.batch is batch]
                _go_on(batch, [row.step for row in mine if row.step], owner=owner)
                settle_some(batch, [row.schedule.id for row in mine], owner=owner)
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
            return 0
        self._failures = 0
        _log.warning(
            "unsettled deliveries looked up",
            rows=len(rows),
            arrived=len(found.arrived),
            again=len(rows) - len(found.arrived),
        )
        return len(done)

    def _row(self, batch: Unsettled, schedule_id: bytes, packed: bytes) -> _Row:
        """A row; of a recurring schedule its occurrence, if a store that went back forgot it."""
        schedule = unpack(schedule_id, packed)
        if schedule.plan:
            now_ms, journals = SystemClock().now_ms(), self._settings.journals
            step = advanced(schedule, now_ms=now_ms, journals=journals)
            if one := step.occurrence:
                marked = packed[:1] + with_due(one.due_ms, pack(one))[1:]
                return _Row(batch, marked, one, step)
        return _Row(batch, packed, schedule)

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

    def _look_up(self, rows: Sequence[_Row], since_ms: int) -> Found:
        schedules = [row.schedule for row in rows]
        readable = readable_topics(self._topics, {s.record.topic for s in schedules})
        silent = self._topics.silent(self._instead)  # would fail the look-up of all others
        rejected = readable_topics(self._topics, self._instead - silent)
        topics = sorted(readable | rejected | self._after_delivery(schedules))
        if not topics:
            return Found()
        there = deliveries(self._spark, self._settings, topics, from_ms=since_ms)
        frame = self._frame(rows)
        as_itself = frame.selectExpr("number", "id", "due_ms", f"{self._version()} AS version")
        as_rejected = frame.filter("origin_topic <> ''").selectExpr(
            "number", f"{PLACE} AS id", "due_ms", f"{VERSION} AS version"
        )
        asked = as_itself.union(as_rejected)
        hits = asked.join(there, ["id", "due_ms", "version"])
        at: dict[int, set[tuple[str, bool]]] = {}
        for hit in hits.select("number", "topic", "deleted").distinct().collect():
            at.setdefault(hit["number"], set()).add((hit["topic"], hit["deleted"]))
        found = Found()
        for number, schedule in enumerate(schedules):
            self._judge(number, schedule, at.get(number, set()), found)
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
        self, number: int, schedule: Schedule, at: set[tuple[str, bool]], found: Found
    ) -> None:
        origin = schedule.origin
        in_journal = origin is not None and origin.topic in self._settings.journals
        tombstone = in_journal and origin is not None and (origin.topic, True) in at
        instead = any((topic, False) in at for topic in self._instead)
        if instead or (schedule.record.topic, False) in at:
            found.arrived.add(number)
            history = self._settings.history_topic
            settled = not history or instead or (history, False) in at
            if in_journal and not (tombstone and settled):
                found.owed.add(number)
        elif tombstone:
            found.torn.add(number)

    def _after_delivery(self, schedules: Sequence[Schedule]) -> set[str]:
        """The topics of these rows' tombstones and history."""
        journals = {s.origin.topic for s in schedules if s.origin} & set(self._settings.journals)
        history = self._settings.history_topic
        return journals | ({history} if journals and history else set())

    def _frame(self, rows: Sequence[_Row]) -> DataFrame:
        """Rows in the columns of DUE_SCHEMA, and their numbers."""
        from sendlater.spark.arrow_rows import to_table, unpack_columns

        ids = [row.schedule.id for row in rows]
        columns = unpack_columns([row.packed for row in rows])
        table = to_table(ids, columns)
        return self._spark.createDataFrame(table.append_column("number", [range(len(rows))]))

    def _sent(self, rows: Sequence[_Row], *, owed: bool) -> DataFrame:
        """Rows as a lane gives them to Spark, in the columns of DUE_SCHEMA."""
        from sendlater.spark.arrow_rows import to_table, unpack_columns

        ids, packed = [row.schedule.id for row in rows], [row.packed for row in rows]
        sent = as_sent(
            ids,
            packed,
            unpack_columns(packed),
            journals=self._settings.journals,
            history_topic=self._settings.history_topic,
            owed=owed,
        )
        return self._spark.createDataFrame(to_table(*sent))

    def _repair(self, rows: Sequence[_Row], found: Found, since_ms: int) -> None:
        """Write what is owed, and deliver what is torn, unless something newer was written since.

        This is not left to intake, which cannot know whether a torn schedule was replaced,
        cancelled or delivered. Here it is looked up, before intake reads on.
        """
        if found.owed:
            self._send([rows[n] for n in sorted(found.owed)], owed=True)
        if not found.torn:
            return
        torn = sorted(found.torn)
        replaced = {torn[n] for n in self._replaced([rows[n] for n in torn], since_ms)}
        left = [n for n in torn if n not in replaced and rows[n].packed[0] != OVERTAKEN]
        if not left:
            return
        try:
            self._send(self._standing([rows[n] for n in left]), owed=False)
        except Exception as error:
            # Its target takes nothing any more: intake and lanes can handle that.
            told = "schedules with a tombstone cannot be delivered; they are written again as new"
            _log.warning(told, count=len(left), cause=str(error)[:500])
            # What is left of a recurring schedule on its journal takes no occurrence back.
            mine = {n for n in left if _has_own_id(rows[n].schedule)}
            found.torn -= mine
            again = [rows[n].schedule for n in left if n not in mine]
            write_again(self._settings, again, anew=True)

    def _standing(self, rows: Sequence[_Row]) -> list[_Row]:
        """These rows; what is delivered instead of those that have expired."""
        now_ms, found = SystemClock().now_ms(), []
        for row in rows:
            if not has_expired(row.schedule, now_ms=now_ms):
                found.append(row)
            elif topic := self._settings.expired_topic:
                dead = expired_schedule(row.schedule, now_ms=now_ms, topic=topic)
                found.append(_Row(row.batch, with_due(dead.due_ms, pack(dead)), dead))
        return found

    def _send(self, rows: Sequence[_Row], *, owed: bool) -> None:
        if not rows:
            return
        frame = self._sent(rows, owed=owed)
        for stage in delivered_stages(self._settings, owed=owed):
            frame = frame.selectExpr(*stage)
        frame.write.format("kafka").options(**producer_options(self._settings)).save()

    def _replaced(self, rows: Sequence[_Row], since_ms: int) -> set[int]:
        """Numbers of rows whose id (of an occurrence: that of its schedule) was written again or
        cancelled, not by us."""
        ours = f"value IS NULL AND {header(text(names.ORIGIN))} IS NOT NULL"
        written = (
            records_since(self._spark, self._settings, self._settings.journals, from_ms=since_ms)
            .selectExpr("*", f"{NAMES} AS names")
            .filter(f"NOT ({ours}) AND {COPY_OF} IS NULL")
            .selectExpr("key AS id", "topic", "partition", "offset", "timestamp")
        )
        frame = self._frame(rows).selectExpr("*", "headers.key AS names")
        asked = frame.selectExpr(
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


def _since_ms(rows: Iterable[_Row]) -> int:
    """Nothing of these rows was delivered before this time, by the clock of any broker."""
    batches: dict[int, list[Schedule]] = {}
    for row in rows:
        batches.setdefault(row.batch.end_ms, []).append(row.schedule)
    return min(earliest_ms(schedules, end_ms) for end_ms, schedules in batches.items())
