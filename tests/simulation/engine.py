"""In place of Spark: queries, tasks and attempts; and the real service on top of them.

The order of steps is that of Spark's micro-batches: the offset of a batch is known before the batch
before it is committed to its source; a batch is done when one attempt of each task is; a task that
fails is tried again, on a local master once.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import structlog
from broker import (
    FLUSH_POLL_MS,
    Broker,
    ConfluentProducer,
    Entry,
    PartitionReader,
    Producer,
    TopicReader,
    decoded,
    delivered,
    marked,
    passed,
)
from sent_rows import rows_of
from world import Actor, Killed, Process, Wake, World, substituted

from sendlater import clock
from sendlater.config import Settings
from sendlater.dialects import names
from sendlater.dialects.plain import PlainRules
from sendlater.dialects.rejected import planned_part
from sendlater.errors import SendlaterError
from sendlater.limits import TORN_MS
from sendlater.model import DUE_MS_MAX
from sendlater.service import graceful_stop as draining
from sendlater.service import handing_over, heir, queries, service, takeover
from sendlater.service import supervision as workers
from sendlater.spark import session
from sendlater.spark.delivery import arrived, claim_task, due_source, failed_batch, targets
from sendlater.spark.delivery import crash_lookup as recovery
from sendlater.spark.delivery import lane as lane_module
from sendlater.spark.intake import bundle, inbox_rows, inbox_task, park_task, watermark
from sendlater.spark.intake import park_sink as sink
from sendlater.spark.intake.share import ALONG, BUNDLE, WARM_UP, InboxShare
from sendlater.spark.journal import fill_tasks, horizon
from sendlater.spark.journal import rebuild as filling
from sendlater.spark.journal import rewrite as rewriting
from sendlater.spark.journal.fill_tasks import Planned
from sendlater.spark.journal.torn import Mark
from sendlater.store import admin, conditional, connection, lease, shard, unsettled
from sendlater.store import pending as store

ATTEMPTS_MAX = 4
"""As spark.task.maxFailures on a cluster."""
ROWS_PER_ARROW_BATCH = 3
PARK_ROWS = 2
"""Rows of one park call: so few, that a task needs several."""
PLANNING_MS_MAX = 150.0
"""What Spark takes between two batches."""
STOPPED_LINGER_MS = 2_000.0
"""How long a Python worker may live on whose task was killed."""
NOBODYS = Entry(b"warm-up", b"{}", [], 0)


class Simulation:
    """What the stand-ins share."""

    def __init__(self, world: World, broker: Broker, settings: Settings, *, cluster: bool) -> None:
        self.world, self.broker, self.settings, self.cluster = world, broker, settings, cluster
        self.handed: Callable[[Actor, Mapping[str, Any]], Any] = lambda *_: None
        """Called with each row that a lane's task hands to its producer; answers what to keep."""
        self.processes: list[Process] = []
        self.intakes: list[Query] = []

    # --- the service -----------------------------------------------------------------------------

    def serve(self, *, take_over: bool = False) -> Process:
        """One more service process; it ends by itself when it is overtaken."""
        process = Process(f"service-{len(self.processes)}")
        process.producer = Producer(self.broker)
        self.processes.append(process)
        self.world.say(f"{process.name} starts")
        self.world.spawn(f"{process.name}/main", process, partial(self._main, process, take_over))
        return process

    def _main(self, process: Process, take_over: bool) -> None:
        process.stop = self.world.threading().Event()
        try:
            one = SimulatedService(self)
            if one.start(stop=process.stop, take_over=take_over):
                one.watch(process.stop)
                one.stop()
                # The JVM goes in order: what its producers hold is on its topics.
                self.world.pause(500)
        except SendlaterError as error:
            self.world.say(f"{process.name} ends: {error!r}"[:200])
        except Exception as error:
            self.world.say(f"{process.name} fails: {error!r}"[:200])
        self.world.kill(process)

    # --- queries ---------------------------------------------------------------------------------

    def start_lane(
        self,
        _spark: Any,
        _settings: Any,
        *,
        lane: lane_module.Lane,
        checkpoint: Path,
        producer: str,
    ) -> Any:
        """As pipeline.delivery.start_lane."""
        return Query(self, f"lane-{lane.lane}", partial(self._lane, lane))

    def _lane(self, lane: lane_module.Lane, query: "Query") -> None:
        reader = due_source.DueReader(lane)
        start = reader.initialOffset()
        before, number = None, 0
        while True:
            end = reader.latestOffset(start, None)
            if before is not None:
                reader.commit(before)
            if end == start:
                self.world.pause(self.world.rng.random() * PLANNING_MS_MAX)
                continue
            parts = reader.partitions(start, end)
            query.run([partial(self._deliver, query, reader, part) for part in parts])
            query.progress(number, end)
            before = start = end
            number += 1
            self.world.pause(self.world.rng.random() * PLANNING_MS_MAX)

    def _deliver(self, query: "Query", reader: Any, part: Any) -> None:
        """One attempt: rows to the producer, and until the broker has acknowledged them."""
        world, me = self.world, self.world.current
        open_count, told = [0], None

        def landed() -> None:
            open_count[0] -= 1

        for batch in reader.read(part):
            # As the query does: what has no topic only warms up.
            rows = [row for row in rows_of([batch]) if row["topic"] is not None]
            if me.task.dropped(me):
                raise Killed
            for row in rows:
                on_journal = row["dialect"] == "record" and row["topic"] in self.settings.journals
                told = told if on_journal else self.handed(me, row)
                for topic, number, key, value, headers in delivered(row, self.settings):
                    open_count[0] += 1
                    me.process.producer.send(topic, number, key, value, headers, told, landed)
            if rows:
                world.say(
                    f"sends {[(r['id'], r['due_ms'], (r['value'] or b'')[:20]) for r in rows]}"
                )
                world.pause(world.rng.random())
        world.until(lambda: open_count[0] == 0, every_ms=FLUSH_POLL_MS)

    def start_intake(self, _spark: Any, _settings: Any, **told: Any) -> Any:
        """As spark.intake.query.start_intake."""
        settings = self.settings
        options = {"redis.url": "", "space": settings.space, "shards": str(settings.shards)}
        options |= {"owner": str(told["owner"]), "run": str(told["run"]), "check_targets": "true"}
        options |= {"journals": ",".join(settings.journals)}
        options |= {"heir": str(told["owner"]) if told["heir"] else ""}
        query = Query(self, "intake", partial(self._intake, options))
        self.intakes.append(query)
        return query

    def _intake(self, options: dict[str, str], query: "Query") -> None:
        tasks = self.settings.intake_slots
        shares = [InboxShare(number, tasks) for number in range(tasks)]
        query.run([partial(self._take_in, options, share) for share in shares])

    def _take_in(self, options: dict[str, str], share: InboxShare) -> Any:
        """One attempt: source, decoding and sink, with what is on its way between them."""
        settings = self.settings
        stands = store.Pending((self.world.client,), space=settings.space, shards=settings.shards)
        reader = PartitionReader(self.broker, [inbox.topic for inbox in settings.taken_in])
        plain = PlainRules.of(settings)
        task = inbox_task.InboxTask(reader, stands, share, clock.SystemClock(), plain)
        return sink.ParkWriter(options).write(self._through_spark(task, options))

    def _through_spark(self, task: inbox_task.InboxTask, options: dict[str, str]) -> Iterator[Any]:
        world, size = self.world, ROWS_PER_ARROW_BATCH
        parts: list[Any] = [task.chunks()]
        if options["heir"]:
            run = int(options["run"])
            parts = [task.await_space(int(options["heir"])), task.read_along(run), *parts]
        for told in chain(*parts):
            if told is inbox_rows.NOTHING:
                continue
            read, ends = told
            if read.partitions and read.partitions[0] in (WARM_UP, ALONG):
                world.pause(world.rng.random())
                yield decoded([("warm-up", read.partitions[0], 0, NOBODYS)], self.settings)
                continue
            places = zip(read.topics, read.partitions, read.positions, read.values, strict=True)
            for is_bundle, rows in groupby(places, lambda row: row[1] == BUNDLE):
                if is_bundle:
                    for topic, _, _, value in rows:
                        world.pause(world.rng.random())
                        yield passed(topic, value)
                    continue
                records: Any = [(t, n, at, self.broker.log(t)[n][at]) for t, n, at, _ in rows]
                for first in range(0, len(records), size):
                    world.pause(world.rng.random())
                    yield decoded(records[first : first + size], self.settings)
            world.pause(world.rng.random() * 5)
            yield marked(ends)

    def plan(
        self,
        _spark: Any,
        settings: Settings,
        *,
        fill_task: Any,
        ends: Any,
        tasks: int,
        after_ms: int = -1,
        until_ms: int = DUE_MS_MAX,
        torn: Any = (),
    ) -> Planned:
        """As pipeline.journal.plan."""
        found = list(self.broker.standing(ends, torn))
        self.world.pause(self.world.rng.random() * 500)
        rows = [decoded([one], settings) for one in found]
        facts = [row.to_pylist()[0] for row in rows]
        wanted = [
            row
            for row, fact in zip(rows, facts, strict=True)
            if after_ms < fact["due_ms"] <= until_ms
        ]
        later = sum(f["due_ms"] > until_ms and f["dialect"] != "rejected" for f in facts)
        counts = [batch.column(0).to_pylist()[0] for batch in fill_task(iter(wanted))]
        return Planned(sum(counts), later)

    def records(
        self, _spark: Any, settings: Any, *, ends: Any, tasks: int, starts: Any = None
    ) -> list[Any]:
        """As journal.standing.records: places and entries."""
        return [
            ((topic, number, at), entry)
            for topic, partitions in ends.items()
            for number, end in partitions.items()
            for at, entry in enumerate(self.broker.log(topic)[number][:end])
            if entry is not None and at >= (starts[topic][number] if starts else 0)
        ]

    def marks(self, read: Any, settings: Settings) -> Iterator[Any]:
        """As journal.torn.marks."""
        for _, entry in _marks(read, settings):
            ids = (entry.header(names.ID), entry.key)
            version = entry.header(names.ORIGIN).decode()
            yield Mark(ids, version, int(entry.header(names.DUE)))

    def torn(self, _spark: Any, settings: Settings, _topics: Any, read: Any) -> list[Any]:
        """As journal.torn.torn."""
        self.world.pause(self.world.rng.random() * 300)
        found = list(_marks(read, settings))
        last_ms = max((entry.timestamp_ms for _, entry in found), default=0)
        there = {
            _told(entry)
            for logs in self.broker.logs.values()
            for log in logs
            for entry in log
            if entry is not None and entry.value is not None and not entry.header(names.AGAIN)
        }
        return [
            place
            for place, entry in found
            if entry.timestamp_ms > last_ms - TORN_MS and _told(entry) not in there
        ]


def _told(entry: Any) -> tuple[Any, ...]:
    return tuple(entry.header(name) for name in (names.ID, names.DUE, names.ORIGIN))


def _marks(read: Any, settings: Settings) -> Iterator[Any]:
    for place, entry in read:
        deleted = entry.value is None or entry.header(names.AGAIN) is not None
        target = (entry.header(names.DELIVERED_TO) or b"").decode()
        if deleted and all(_told(entry)) and target and target not in settings.journals:
            yield place, entry


class Query:
    """As StreamingQuery, as far as the service knows it."""

    def __init__(self, simulation: Simulation, name: str, body: Callable[["Query"], None]) -> None:
        self.simulation, self.world = simulation, simulation.world
        self.process = self.world.current.process
        self.name = f"{self.process.name}/{name}"
        self.lastProgress: Any = None
        self.tasks: list[Task] = []
        self._stopped = False
        self._actor = self.world.spawn(self.name, self.process, partial(self._run, body))

    def _run(self, body: Callable[["Query"], None]) -> None:
        try:
            body(self)
        except Exception as error:
            self.world.say(f"query fails: {error!r}"[:200])
            self._end_tasks()
            raise

    @property
    def isActive(self) -> bool:
        """Whether it runs."""
        return not (self._stopped or self._actor.done or self._actor.dead)

    def exception(self) -> BaseException | None:
        """Why it ended."""
        return self._actor.error

    def stop(self) -> None:
        """Its tasks are killed; their Python workers may live a little longer."""
        self._stopped = True
        self._actor.kill()
        self._end_tasks()
        self.world.pause(self.world.rng.random() * 50)

    def progress(self, batch: int, end: Any) -> None:
        """A batch is committed."""
        one = SimpleNamespace(endOffset=json.dumps(end))
        self.lastProgress = SimpleNamespace(batchId=batch, sources=[one])

    def run(self, bodies: list[Callable[[], Any]]) -> list[Any]:
        """A batch: the results of its tasks."""
        self.tasks = [Task(self, body, number) for number, body in enumerate(bodies)]
        for task in self.tasks:
            task.begin()
        while not all(task.winner for task in self.tasks):
            self.world.pause(FLUSH_POLL_MS)
            for task in self.tasks:
                task.look()
        for task in self.tasks:
            task.end()
        return [task.winner.result for task in self.tasks]

    def _end_tasks(self) -> None:
        for task in self.tasks:
            task.end()


class Task:
    """One task of a batch, and the attempts at it."""

    def __init__(self, query: Query, body: Callable[[], Any], number: int) -> None:
        self.query, self.body, self.number = query, body, number
        self.attempts: list[Actor] = []
        self.winner: Any = None
        self.over = False

    def begin(self) -> None:
        """One more attempt."""
        world = self.query.world
        name = f"{self.query.name.partition('/')[2]}.{len(self.attempts)}"
        actor = world.spawn(name, self.query.process, self.body)
        actor.task = self
        self.attempts.append(actor)

    def look(self) -> None:
        """Take the first result; try again what was lost, where that is done."""
        for actor in self.attempts:
            if self.winner is None and actor.done and actor.error is None:
                self.winner = actor
        if self.winner is not None:
            return
        alive = [a for a in self.attempts if not (a.done or a.dead or a.zombie)]
        if not alive:
            [*_, last] = self.attempts
            attempts_max = ATTEMPTS_MAX if self.query.simulation.cluster else session.ATTEMPTS_MAX
            if len(self.attempts) >= attempts_max:
                raise RuntimeError(f"task failed: {last.error!r}")
            self.begin()

    def end(self) -> None:
        """Attempts that did not win are killed: some at once, some a little later."""
        self.over = True
        world = self.query.world
        for actor in self.attempts:
            if not actor.done and not actor.dead and not actor.zombie:
                if world.rng.random() < 0.5:
                    actor.kill()
                else:
                    world.after(world.rng.random() * STOPPED_LINGER_MS, actor.kill)

    def dropped(self, actor: Actor) -> bool:
        """Whether nobody takes what this attempt yields: its task was killed, it was not asleep."""
        if actor.zombie:
            return actor.lost
        return self.over and not self.query.process.was_frozen


class SimulatedService(service.Service):
    """The real service, its decisions and their order; Spark, Kafka and topics are stand-ins."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._process = simulation.world.current.process
        tools = SimpleNamespace(redis_url="simulated", java_home=None, jars=[])
        super().__init__(simulation.settings, tools)  # type: ignore[arg-type]

    def _get_ready(self, stop: Any, on_standby: Callable[[], None]) -> bool:
        self.pending.require_layout()
        broker = self.simulation.broker
        self._topics = broker  # type: ignore[assignment]
        self._spark = MagicMock()
        return self._stand_by(stop, on_standby)

    def _warm_up(self) -> None:
        pass

    def _warm_up_producer(self) -> None:
        pass


class SimulatedRecovery(recovery.CrashLookup):
    """The look-up is in lists in place of Spark; what is found is judged as it is there."""

    def _look_up(self, rows: Any, since_ms: int) -> recovery.Found:
        broker: Any = self._topics
        at: dict[Any, set[tuple[str, bool]]] = {}
        for topic, _, _, entry in self._entries(list(broker.logs)):
            due = entry.header(names.DUE)
            if entry.header(names.ID) is None or due is None:
                continue
            told = entry.header(names.ORIGIN)
            version = told.decode() if told else f"#{zlib.crc32(entry.value or b'')}"
            row = (entry.header(names.ID), int(due), version)
            left = entry.value is None or entry.header(names.AGAIN) is not None
            at.setdefault(row, set()).add((topic, left))
        broker.world.pause(broker.world.rng.random() * 300)
        found = recovery.Found()
        for number in range(len(rows)):
            schedule = rows.schedule(number)
            origin = schedule.origin
            told_place = schedule.dialect == "rejected" or (
                origin and origin.topic in self._settings.journals
            )
            version = (
                f"{origin.topic}/{origin.partition}/{origin.position}"
                if origin and told_place
                else f"#{zlib.crc32(schedule.record.value or b'')}"
            )
            known = at.get((schedule.id, schedule.due_ms, version), set())
            if origin:
                place = f"{origin.topic}/{origin.partition}/{origin.position}"
                refused_id = place.replace("/", "-").encode() + planned_part(schedule)
                refused = (refused_id, schedule.due_ms, place)
                known = known | at.get(refused, set())
            self._judge(number, rows.topics[number], known, found)
        return found

    def _entries(self, topics: Any) -> Iterator[tuple[str, int, int, Any]]:
        broker: Any = self._topics
        for topic in topics:
            for number, log in enumerate(broker.log(topic)):
                yield from ((topic, number, n, e) for n, e in enumerate(log) if e is not None)

    def _send(self, rows: Any, *, owed: bool) -> None:
        broker: Any = self._topics
        settings = self._settings.model_copy(update={"history_topic": ""})
        for n in range(len(rows)):
            for row in rows.some([n]).sent(settings, owed=owed).to_pylist():
                left_out = owed and row["dialect"] != "record"
                for topic, number, key, value, headers in delivered(row, self._settings)[left_out:]:
                    broker.append(topic, number, key, value, headers)

    def _replaced(self, rows: Any, since_ms: int) -> set[int]:
        found = set()
        for topic, number, at, entry in self._entries(self._settings.journals):
            if entry.value is None and entry.header(names.ORIGIN) is not None:
                continue
            if entry.header(names.AGAIN) is not None:
                continue
            for n in range(len(rows)):
                schedule = rows.schedule(n)
                origin = schedule.origin
                key = dict(schedule.record.headers).get(names.SCHEDULE, schedule.id)
                beside = (topic, number) == (origin.topic, origin.partition)
                newer = at > origin.position if beside else entry.timestamp_ms > origin.timestamp_ms
                if entry.key == key and newer:
                    found.add(n)
        return found


@contextmanager
def in_place(simulation: Simulation) -> Iterator[None]:
    """Clocks, threads, connections, Spark and producers are the simulation's."""
    world, broker = simulation.world, simulation.broker
    timed = (
        clock,
        queries,
        service,
        takeover,
        heir,
        handing_over,
        workers,
        draining,
        lease,
        admin,
        conditional,
        store,
        fill_tasks,
        claim_task,
        arrived,
        recovery,
        inbox_task,
        filling,
    )
    threaded = (queries, service, takeover, heir, lease, watermark, targets, horizon, workers)
    client = lambda _url: (world.client,)  # noqa: E731

    def task_context() -> Any:
        return SimpleNamespace(partitionId=lambda: world.current.task.number)

    progress = MagicMock()
    progress.return_value.__exit__.return_value = False
    places: list[tuple[Any, str, Any]] = [
        *((module, "time", world.time()) for module in timed),
        *((module, "threading", world.threading()) for module in threaded),
        *((module, "connect", client) for module in (store, lease, connection, fill_tasks)),
        *((m, "StreamingQuery", Query) for m in (queries, workers, draining)),
        *((module, "plan", simulation.plan) for module in (filling, horizon)),
        (filling, "TaskProgress", progress),
        *((filling, name, getattr(simulation, name)) for name in ("records", "marks", "torn")),
        (shard, "Wake", Wake),
        (store, "uuid", world.uuid()),
        (sink, "TaskContext", SimpleNamespace(get=task_context)),
        *((module, "PARK_COUNT_MAX", PARK_ROWS) for module in (bundle, park_task)),
        (targets, "CALM_MS", 500),
        *((module, "PREFETCH_COUNT_MIN", 2) for module in (claim_task, due_source)),
        *((m, "Producer", lambda _: ConfluentProducer(broker)) for m in (rewriting, failed_batch)),
        (takeover, "CrashLookup", SimulatedRecovery),
        *((module, "LOOK_UP_COUNT_MAX", 2) for module in (recovery, unsettled, takeover)),
        (queries, "start_lane", simulation.start_lane),
        (queries, "linger_of", lambda *_, **__: None),
        (queries, "start_intake", simulation.start_intake),
        (arrived, "KafkaPartitions", lambda _options, topics: TopicReader(broker, topics)),
        (inbox_rows, "chunk", lambda read, ends: (read, ends)),
        *((module, "shutil", MagicMock()) for module in (queries, service, takeover)),
    ]
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(
        processors=[partial(_logged, world)],
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    try:
        with substituted(places):
            yield
    finally:
        structlog.reset_defaults()
        if before is not None:
            structlog.configure(**before)


def _logged(world: World, _logger: Any, method: str, event: dict[str, Any]) -> Any:
    told = {k: v for k, v in event.items() if k not in ("event", "exc_info")}
    world.say(f"[{method}] {event.get('event')} {told}"[:300])
    if event.get("exc_info"):
        import traceback

        world.say(traceback.format_exc()[-600:])
    raise structlog.DropEvent
