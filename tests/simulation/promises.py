"""The ledger of a run: what was promised to whom, and whether it was kept."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker import LATE_MS_MAX, Broker, Entry
from engine import Simulation
from recurring import close_recurring, look_at_recurring
from tag_index import index_meant, index_of
from world import START_MS, Actor, Process, World

from sendlater.dialects import names
from sendlater.dialects.recurrence import Plan, read_text
from sendlater.model import Expiry, Schedule
from sendlater.store import Batch, Pending
from sendlater.store.codec import unpack


@dataclass(eq=False)
class Version:
    """What somebody wrote under an id: a schedule, or (no due time) a cancellation."""

    id: bytes
    due_ms: int | None
    value: bytes | None
    target: str = ""
    expiry: Expiry | None = None
    place: tuple[str, int, int] | None = None
    acked_ms: int = 0
    acked_at: float = 0.0
    handed_at: list[float] = field(default_factory=list)
    handed_by: list[Process] = field(default_factory=list)
    arrivals: list[str] = field(default_factory=list)
    allowed: Counter[str] = field(default_factory=Counter)
    """Copies beyond the first that a crash may cause, by reason."""
    recurs: Any = None
    """Of a recurring schedule: a `Recurring`."""
    planned_ms: int | None = None
    """Of an occurrence of one."""
    once: bool = False
    """Asked for once: only the first of its id counts."""

    def occurrence(self, planned_ms: int, due_ms: int) -> "Version":
        """An occurrence of this one."""
        return Version(
            self.id,
            due_ms,
            self.value,
            self.target,
            self.expiry,
            self.place,
            self.acked_ms,
            self.acked_at,
            planned_ms=planned_ms,
        )

    def follows(self, other: "Version") -> bool:
        """Whether it is newer: by offset on one partition, by timestamp between two."""
        assert self.place is not None
        assert other.place is not None
        if self.place[:2] == other.place[:2]:
            return self.place > other.place
        return self.acked_ms > other.acked_ms

    @property
    def expires_ms(self) -> int | None:
        """The last instant at which it may be delivered."""
        if self.due_ms is None or self.expiry is None:
            return None
        return self.expiry.at_ms(self.due_ms)


@dataclass(frozen=True, slots=True)
class Loss:
    """The store forgot what happened between two instants, on one shard or on all."""

    since: float
    at: float
    shard: int | None


class Ledger:
    """Watches inboxes, hand-overs and topics; `broken` is what was not kept."""

    def __init__(self, simulation: Simulation, pending: Pending) -> None:
        self.simulation, self.pending = simulation, pending
        self.world: World = simulation.world
        self.broker: Broker = simulation.broker
        self.settings = simulation.settings
        self.by_id: dict[bytes, list[Version]] = defaultdict(list)
        self.by_value: dict[bytes | None, list[Version]] = defaultdict(list)
        self.losses: list[Loss] = []
        self.read: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
        self.taken_back: list[tuple[float, bytes, int, bytes | None, bool]] = []
        """By doors; the last tells whether it died before it could tell the inbox."""
        self.admitted: list[tuple[float, int]] = []
        """When how many messages were let go to a topic with a limit."""
        self.rebuilt = self.slept = False
        self.owners: dict[Any, Any] = {}
        self.unsure: Counter[bytes] = Counter()
        """Ids changed in the store by doors that have not told the inbox, and may have died; or
        that told it after somebody else had written a newer version."""
        self.forced_ms = 0
        """What is due until then was let go although intake had not read the inboxes."""
        self.excused: Counter[str] = Counter()
        self.broken: list[str] = []
        self._yielded: dict[Any, dict[Version, set[Actor]]] = defaultdict(lambda: defaultdict(set))
        self.broker.landed.append(self._landed)
        simulation.handed = self._handed
        self.world.watchers.append(self._watch)

    def write(self, version: Version) -> Version:
        """Somebody is about to write this to an inbox."""
        self.by_id[version.id].append(version)
        if version.due_ms is not None:
            self.by_value[version.value].append(version)
        return version

    # --- what is seen ----------------------------------------------------------------------------

    def _watch(self, when: str, verb: str, args: tuple[Any, ...], answer: Any) -> None:
        if when == "before":
            return
        actor = self.world.current
        if verb == "claim" or (verb == "hgetall" and b":batches:" in str(args[0]).encode()):
            actor.claimed_at = self.world.elapsed
        if verb == "claim" and isinstance(answer, list) and isinstance(answer[-1], list):
            rows = zip(answer[:-2:2], answer[1:-2:2], strict=True)
            waited = set(answer[-1][0][::2])
            taken = [unpack(*row) for row in rows if row[0] in waited]
            now_ms = self.world.now_ms()
            sent = sum(one.expires_ms is None or one.expires_ms >= now_ms for one in taken)
            self.admitted.append((self.world.elapsed, sent))
        if verb == "fence" and answer == 1 and not self.losses:
            *_, shard, number, token = args
            if self.owners.setdefault((shard, number), token) != token:
                self._break(f"owner {number} is two services")
        if verb == "recur":
            look_at_recurring(self, actor, args, answer)
        if verb == "park":
            keys = int(args[1])
            given = args[2 + keys :]  # the fourth of seven numbers the sources, which follow
            shard = int(str(args[2]).partition("}")[0].rpartition(":")[2])
            for first in range(7, 7 + 3 * int(given[3]), 3):
                source, _, after = given[first : first + 3]
                self.read[source, shard].append((self.world.elapsed, int(after)))

    def _landed(self, topic: str, number: int, offset: int, entry: Entry) -> None:
        told = entry.told
        if isinstance(told, Version) and topic in self._inboxes():
            told.place = (topic, number, offset)
            told.acked_ms, told.acked_at = entry.timestamp_ms, self.world.elapsed
        elif topic not in self._inboxes() and told is None:
            self._repaired(topic, entry)
        elif topic not in self._inboxes():
            version, actor = told
            version.arrivals.append(topic)
            if len(version.arrivals) > 1 and (actor.zombie or actor.process.was_frozen):
                version.allowed["sent by a zombie"] += 1

    def _repaired(self, topic: str, entry: Entry) -> None:
        """A start delivers what is torn, in no lane's name."""
        id, due = entry.header(names.ID), entry.header(names.DUE)
        if id is not None and due is not None:
            refused = topic in (self.settings.rejected_topic, self.settings.dead_topic)
            kind = "rejected" if refused else ""
            row = {"id": id, "due_ms": int(due), "value": entry.value, "dialect": kind}
            row["headers"] = [{"key": name, "value": value} for name, value in entry.headers]
            version = self._version(row)
            if version is not None:
                version.arrivals.append(topic)

    def _inboxes(self) -> set[str]:
        return {inbox.topic for inbox in self.settings.inboxes}

    def _handed(self, actor: Actor, row: Mapping[str, Any]) -> Any:
        if row["value"] is None and row["topic"] in self._inboxes():
            return None  # a tombstone, of what was left out
        told = [header["key"] for header in row["headers"] or ()]
        if row["dialect"] == "record" and names.REJECTED in told:
            row = {**row, "dialect": "rejected"}
        version = self._version(row)
        if version is None:
            if not self.unsure[row["id"]]:
                self._break(f"delivered what nobody wrote: {row}")
            return None
        if self._repeats(version):
            self._break(f"asked for once, and came twice: {_told(version)}")
        claimed_at = actor.claimed_at
        # An earlier attempt may have claimed it, before the clock was put back.
        clock_read = max(one.clock_read for one in actor.task.attempts)
        if row["due_ms"] > clock_read:
            early_ms = row["due_ms"] - clock_read
            self._break(f"{early_ms} ms early: {version.id!r}")
        self._look_at_expiry(version, actor, row)
        if row["dialect"] != "rejected" and version.planned_ms is None:
            self._look_for_newer(version, claimed_at)
        self._allow(version, actor, claimed_at, rejected=row["dialect"] == "rejected")
        version.handed_at.append(claimed_at)
        version.handed_by.append(actor.process)
        return version, actor

    def _version(self, row: Mapping[str, Any]) -> Version | None:
        named = self.by_value.get(row["value"], [])
        waited = [h["value"] for h in row.get("headers") or () if h["key"] == names.REJECTED_ID]
        told, _, planned = (waited[-1] if waited else row["id"]).rpartition(b"@")
        for one in named:
            if one.recurs and one.id == told and planned.isdigit():
                found: Version | None = one.recurs.occurrences.get(int(planned))
                return found
        if row["dialect"] != "rejected":
            named = [v for v in named if v.id == row["id"] and v.due_ms == row["due_ms"]]
        return named[-1] if named else None

    def plan_of(self, schedule: Schedule) -> Plan:
        """When a schedule comes again."""
        return read_text(schedule.plan)

    def _look_for_newer(
        self, version: Version, claimed_at: float, *, read_until: float | None = None
    ) -> None:
        """Neither newer versions nor cancellations came before a claim; what recurs is marked in
        its batch, so that they count until an occurrence takes its place."""
        read_until = claimed_at if read_until is None else read_until
        assert version.due_ms is not None
        for newer in () if self.unsure[version.id] else self._newer(version):
            assert newer.place is not None
            topic, number, offset = newer.place
            shard = self.pending.shard_of(version.id).number
            read = [at for at, end in self.read[f"{topic}/{number}", shard] if end > offset]
            if read and read[0] < read_until and not self._lost_since(read[0]):
                self._break(f"{_told(version)} claimed after intake had read {_told(newer)}")
            elif newer.acked_ms <= version.due_ms - self.settings.margin_ms:
                if version.due_ms <= self.forced_ms:
                    self.excused["held for too long"] += 1
                elif self.world.skewed:
                    self.excused["clock was put back"] += 1
                elif newer.acked_at < claimed_at:
                    self._break(f"{_told(version)} delivered, {_told(newer)} came in time")
        for at, schedule_id, due_ms, value, died in self.taken_back:
            same = (schedule_id, value) == (version.id, version.value)
            same = same and (version.planned_ms is not None or due_ms == version.due_ms)
            # A door that died has answered nobody. The journal never learned, and is read again.
            read_again = self.rebuilt or self.settings.horizon_ms is not None
            if same and not (died and read_again) and at < read_until and not self._lost_since(at):
                self._break(f"{_told(version)} claimed after a door had taken it back")

    def _look_at_expiry(self, version: Version, actor: Actor, row: Mapping[str, Any]) -> None:
        """What has expired is not delivered; what is dead for that reason has expired."""
        told = [h["value"] for h in row["headers"] or () if h["key"] == names.EXPIRY]
        if row["dialect"] == "rejected":
            if told and int(told[-1]) >= actor.clock_read and not self.world.skewed:
                self._break(f"{_told(version)} dead before it expired at {told[-1]!r}")
            return
        expires_ms = version.expires_ms
        if self.world.skewed or expires_ms is None:
            return
        if expires_ms < START_MS + int(actor.claimed_at):
            self._break(f"{_told(version)} claimed after it expired at {expires_ms}")

    def _newer(self, version: Version) -> list[Version]:
        if version.place is None:
            return []
        others = [v for v in self.by_id[version.id] if v.place is not None and not v.once]
        return [v for v in others if v is not version and v.follows(version)]

    def _allow(self, version: Version, actor: Actor, claimed_at: float, *, rejected: bool) -> None:
        task = self._yielded[actor.task]
        before = len(task[version])
        task[version].add(actor)
        if before and len(task[version]) > before and self.simulation.cluster:
            version.allowed["Spark tried again"] += 1
        if rejected and version.handed_at and version.expiry and self.simulation.cluster:
            # The first try had delivered it; it had expired when the next one looked.
            version.allowed["Spark tried again"] += 1
        if self.settings.journals:
            self._allow_lost_tombstone(version)
        else:
            shard = self.pending.shard_of(version.id).number
            for loss in self.losses:
                # What was refused waited under its own id before, maybe on another shard.
                here = rejected or loss.shard in (None, shard)
                if here and any(loss.since <= at <= loss.at for at in version.handed_at):
                    version.allowed["store went back"] += 1

    def _allow_lost_tombstone(self, version: Version) -> None:
        """Its service died while it was being delivered, and the store forgot the claim: once more,
        if the delivery had arrived and its tombstone had not."""
        for at, process in zip(version.handed_at, version.handed_by, strict=True):
            in_flight = process.died_at - LATE_MS_MAX <= at <= process.died_at
            if in_flight and any(
                loss.since <= at and process.died_at <= loss.at for loss in self.losses
            ):
                version.allowed["its tombstone was lost"] += 1

    def _lost_since(self, at: float) -> bool:
        return any(loss.at >= at for loss in self.losses)

    def is_owed(self, version: Version) -> bool:
        """Whether it stands: the newest of its id, and no cancellation."""
        newest = version.place is not None and not self._newer(version)
        newest = newest and not self._repeats(version)
        return version.due_ms is not None and newest and not self.unsure[version.id]

    def _repeats(self, version: Version) -> bool:
        """Whether it is asked for once, and another one was before."""
        place = version.place
        same = self.by_id[version.id] if version.once and place else ()
        return any(v.place is not None and v.place < place for v in same)  # type: ignore[operator]

    def _break(self, what: str) -> None:
        self.world.say(f"BROKEN {what}")
        self.broken.append(f"{self.world.elapsed:.0f} ms: {what}")

    # --- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Everything has settled: what is missing, twice, or left over."""
        for versions in self.by_id.values():
            for version in versions:
                if version.recurs:
                    close_recurring(self, version)
                    continue
                if self.is_owed(version) and not version.arrivals:
                    self._break(f"lost: {_told(version)}")
                self.count(version)
        self._look_for_leftovers()
        self._look_at_the_rate()

    def _look_at_the_rate(self) -> None:
        """No more in any time than the limit allows, and what tasks had reserved before they slept.

        A clock that is put forward gives a burst, and a store that goes back what it forgot."""
        if not self.settings.limits or self.losses or self.world.skew_ms or self.world.skewed:
            return
        (limit,) = self.settings.limits.values()
        # Who sleeps in the middle of a claim wakes up with all that it had reserved.
        reserved = (2 + (limit.burst if self.slept else 0)) * len(self.pending.shards)
        level, before = float(limit.burst), 0.0
        for at, count in self.admitted:
            level = min(level + (at - before) * limit.per_second / 1_000, limit.burst)
            level, before = level - count, at
            if level < -reserved:
                self._break(f"{-level:.1f} messages more than the limit allows")
                return

    def look_at_tags(self) -> None:
        """The index of tags holds exactly what is pending, at every instant."""
        shards = len(self.pending.shards)
        store = Pending((self.world.real,), space=self.settings.space, shards=shards)
        found, meant = index_of(store), index_meant(store)
        for place in found.keys() | meant.keys():
            if found.get(place) != meant.get(place):
                self._break(f"tag {place}: {found.get(place)}, pending: {meant.get(place)}")

    def count(self, version: Version) -> None:
        """It arrived once, or as often as a crash may cause."""
        extra = len(version.arrivals) - 1
        if extra > sum(version.allowed.values()):
            self._break(f"{extra + 1} times: {_told(version)}, allowed {version.allowed}")
        elif extra > 0:
            self.excused.update(dict(version.allowed.most_common(1)))

    def _look_for_leftovers(self) -> None:
        self.look_at_tags()
        real = self.world.real
        for shard in self.pending.shards:
            names = ("due", "record", "limits", "aside", "batches", "surplus", "overtaken")
            for name in (*names, "limits-since"):
                if real.exists(shard.keys.get(name, f"{shard.keys['limits']}-since")):
                    self._break(f"left over on shard {shard.number}: {name}")
            state = real.hgetall(shard.keys["state"])
            for name in real.hkeys(shard.keys["batches"] + "-attempts"):
                batch = Batch.named(name.decode())
                if int(state.get(b"lane:%d" % batch.lane, 0)) != batch.run:
                    self._break(f"left over on shard {shard.number}: attempt at {batch.name}")
            for key in real.keys(shard.keys["batches"] + ":*"):
                self._break(f"left over: {key!r}")


def _told(version: Version) -> str:
    what = "cancellation" if version.due_ms is None else f"due {version.due_ms}"
    return f"{version.id[:40]!r} ({what}, {(version.value or b'')[:12]!r}, at {version.place})"
