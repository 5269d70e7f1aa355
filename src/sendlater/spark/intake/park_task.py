"""A task of the sink: gathers rows per shard, and parks them."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from zlib import crc32

from sendlater.clock import Clock, SystemClock
from sendlater.dialects.names import REJECTED
from sendlater.dialects.rejected import waited_as
from sendlater.errors import StoreWentBack
from sendlater.limits import PARK_BYTES_MAX, PARK_COUNT_MAX
from sendlater.spark.intake.bundle import Bundle, unpack_bundle
from sendlater.spark.intake.share import ALONG, BUNDLE, WARM_UP
from sendlater.spark.plans import RECURS, PlanReader, of_version
from sendlater.spark.spans import spans_of
from sendlater.store import Pending
from sendlater.store.codec import pack_columns, place_of
from sendlater.store.rebuild import undecided
from sendlater.store.recent import tell

if TYPE_CHECKING:
    import pyarrow as pa

LEFT = "left "
"""Beginning of the `change` of a tombstone of ours; when what it is about was due follows, then the
id under which that waited, if it is another one; of an occurrence that was delivered only what its
id has behind that of its schedule, @PLANNED."""
VALUE, HEADERS, DIALECT = 3, 4, 5
ORIGIN, PARTITION, AT, TIMESTAMP_MS = -4, -3, -2, -1
"""Places in a row of the sink: each record comes by here, so no list is made to take it apart."""
TARGETS_REFRESH_MS = 2_000
"""How long a task uses its copy of the known target topics."""


class ParkTask:
    """One task's rows, gathered per shard into calls of limited size.

    A marker (see `inbox_rows`) ends what has come from its partition so far: when one is met, all
    that was gathered is written, and every shard learns the new positions.
    """

    def __init__(
        self,
        pending: Pending,
        owner: int,
        check_targets: bool,
        journals: frozenset[str],
        clock: Clock | None = None,
    ) -> None:
        self.owner, self.journals = owner, journals
        self.clock = clock or SystemClock()
        self.pending, self.shards = pending, pending.shards
        self.ends: dict[str, int] = {}
        """Per source the position after what was gathered."""
        self.seen: dict[str, list[str]] = {}
        """Per source where each shard stands."""
        self.undecided: dict[str, tuple[int, frozenset[int]]] = {}
        """Per source the position before which only these records are taken."""
        self.is_journal: dict[str, bool] = {}
        """Per source."""
        self.rows: defaultdict[tuple[int, bool], list[Any]] = defaultdict(list)
        """Per shard, and whether they are from journals."""
        self.sizes: Counter[tuple[int, bool]] = Counter()
        self.rejected: Counter[tuple[int, bool]] = Counter()
        self.reasons: Counter[str] = Counter()
        self.check_targets = check_targets
        self.plans = PlanReader()
        self.known: set[str] = set()
        self.known_until_ms = 0.0
        self.spans = spans_of("park", self.clock)

    def park(self, batch: "pa.RecordBatch") -> None:
        """Gather one Arrow batch; write calls that are full, and everything at a marker."""
        columns = [batch.column(i).to_pylist() for i in range(batch.num_columns)]
        ids, due, *fields, shards, changes = columns
        if WARM_UP not in fields[10] and ALONG not in fields[10]:
            self._want(fields[0])
        if self.spans:
            pairs = ([(h["key"], h["value"]) for h in row or ()] for row in fields[4])
            self.spans.take(ids, due, fields[0], pairs)
        now_ms = self.clock.now_ms()
        ended = False
        for schedule_id, due_ms, shard, change, row in zip(
            ids, due, shards, changes, zip(*fields, strict=True), strict=True
        ):
            origin = row[ORIGIN]
            if origin is None:
                continue
            source = f"{origin}/{row[PARTITION]}"
            if row[PARTITION] == BUNDLE:
                self._unbundle(unpack_bundle(row[VALUE]))
            elif row[TIMESTAMP_MS] is None:
                self._mark(source, row[AT])
                ended = True
            else:
                self._gather(source, shard, schedule_id, due_ms, change, row, now_ms)
        if ended:
            self.flush()

    def _want(self, topics: Iterable[str | None]) -> None:
        """Have target topics looked up that the service does not know yet."""
        if not self.check_targets:
            return
        now_ms = self.clock.elapsed_ms()
        if now_ms >= self.known_until_ms:
            self.known = {topic.decode() for topic in self.shards[0].targets()}
            self.known_until_ms = now_ms + TARGETS_REFRESH_MS
        if new := {topic for topic in topics if topic} - self.known:
            self.shards[0].want(sorted(topic.encode() for topic in new))
            self.known |= new

    def _unbundle(self, bundle: Bundle) -> None:
        """Add the rows of a bundle; without a look at each if all are new to every shard."""
        self._want(bundle.targets)
        journal = bundle.topic in self.journals
        for shard, rows in bundle.rows.items():
            place = (shard, journal)
            # Before anything of it is added: a call tells a position behind all that it has.
            full = len(self.rows[place]) + len(rows) > 3 * PARK_COUNT_MAX
            if full or self.sizes[place] >= PARK_BYTES_MAX:
                self._write(place)
        sources = {number: f"{bundle.topic}/{number}" for number in bundle.firsts}
        is_new = all(self._is_new(one, bundle.firsts[number]) for number, one in sources.items())
        for shard, rows in bundle.rows.items():
            added = rows if is_new else self._unseen(shard, rows, sources)
            self.rows[shard, journal] += added
            self.sizes[shard, journal] += sum(map(len, added[2::3]))
        for number, source in sources.items():
            self.ends[source] = max(self.ends[source], bundle.ends[number])

    def _is_new(self, source: str, first: int) -> bool:
        """Whether no shard has seen anything from this position on, nor was filled with it."""
        until, _ = self.undecided.get(source, (0, None))
        return first >= max(until, *(int(one or 0) for one in self.seen[source]))

    def _unseen(self, shard: int, rows: list[Any], sources: dict[int, str]) -> list[Any]:
        """Those that the shard has not seen, and that it was not filled with."""
        left: list[Any] = []
        for n in range(0, len(rows), 3):
            number, at = place_of(rows[n + 2])
            source = sources[number]
            is_known = source in self.undecided and self._is_known(source, at)
            if not is_known and at >= int(self.seen[source][shard] or 0):
                left += rows[n : n + 3]
        return left

    def _mark(self, source: str, at: int) -> None:
        """Everything before `at` has come. A source's first marker tells where reading begins."""
        if source in self.ends:
            self.ends[source] = max(self.ends[source], at)
            return
        stands = [str(shard.seen().get(source, "")) for shard in self.shards]
        if min(int(one or 0) for one in stands) < at:
            raise StoreWentBack(f"{source} is read from {at}, but the shards stand at {stands}")
        self.seen[source], self.ends[source] = stands, at
        self.is_journal[source] = source.rpartition("/")[0] in self.journals
        if self.is_journal[source]:
            self.undecided[source] = undecided(self.pending, source)

    def _gather(
        self,
        source: str,
        shard: int,
        schedule_id: bytes,
        due_ms: int | None,
        change: str | None,
        row: tuple[Any, ...],
        now_ms: int,
    ) -> None:
        """Add a record's row to its shard's, unless that has seen the record before."""
        from_partition, at = row[PARTITION], row[AT]
        if source in self.undecided and self._is_known(source, at):
            self.ends[source] = max(self.ends[source], at + 1)
            return
        plan = ""
        waited: tuple[bytes, ...] = ()
        if change is not None and change.startswith(RECURS) and from_partition >= 0:
            schedule_id, due_ms, change, row, plan, waited = self.plans.read(
                schedule_id, change, row
            )
            shard = crc32(schedule_id) % len(self.shards)
        value, dialect = row[VALUE], row[DIALECT]
        # A cancellation of only one version has that version as its value.
        stored = of_version(row, change) if plan else row
        packed = value if due_ms is None else pack_columns(stored, plan)
        if from_partition < 0:
            return
        version: Any = packed
        if due_ms is None and change is not None and change.startswith(LEFT):
            left_ms, _, told_id = change.removeprefix(LEFT).partition(" ")
            told, change = told_id.encode(), None
            known_as = schedule_id + told if told.startswith(b"@") else told
            waited = waited_as(schedule_id, known_as, value.decode()) if told else ()
            version = packed = b"%b %b" % (value, left_ms.encode())
        elif due_ms is None:
            version = packed = "" if change else f"from {source} {max(row[TIMESTAMP_MS], 0)}"
        elif waited and change:
            version = change.split()[1]
        # What was claimed and put back waits where it was claimed, whatever its id is now.
        for one in waited:
            for number in {crc32(one) % len(self.shards), shard}:
                self._add(source, number, at, (one, "", version))
        when: Any = "" if due_ms is None else due_ms
        if dialect == "rejected":
            when = min(due_ms or 0, now_ms)
        if change is not None:
            when = f"{change}|{when}"
        taken = self._add(source, shard, at, (schedule_id, when, packed))
        if taken and dialect == "rejected":
            self.rejected[taken] += 1
            self.reasons[f"rejected:{_reason(row[HEADERS])}"] += 1
        self.ends[source] = max(self.ends[source], at + 1)

    def _is_known(self, source: str, at: int) -> bool:
        """Whether the store was filled with a record: read again, it would count as new."""
        until, left = self.undecided[source]
        return at < until and at not in left

    def _add(
        self, source: str, shard: int, at: int, row: tuple[Any, ...]
    ) -> tuple[int, bool] | None:
        """Where the row waits; a full call is written first. None if the shard has seen it."""
        if at < int(self.seen[source][shard] or 0):
            return None
        place = (shard, self.is_journal[source])
        if len(self.rows[place]) >= 3 * PARK_COUNT_MAX or self.sizes[place] >= PARK_BYTES_MAX:
            self._write(place)
        self.rows[place] += row
        self.sizes[place] += len(row[-1])
        return place

    def flush(self) -> None:
        """Write what is left, and the positions to every shard."""
        kinds = set(self.is_journal.values())
        for shard in range(len(self.shards)):
            for journal in sorted(kinds):
                self._write((shard, journal))
        tell(self.shards[0], self.reasons)
        self.reasons.clear()
        if self.spans:
            self.spans.end()

    def _write(self, place: tuple[int, bool]) -> None:
        number, journal = place
        ends = [
            (source, self.seen[source][number], str(end))
            for source, end in self.ends.items()
            if end > int(self.seen[source][number] or 0) and self.is_journal[source] == journal
        ]
        rows = self.rows[place]
        if not rows and not ends:
            return
        self.shards[number].park(
            rows,
            owner=str(self.owner),
            ends=ends,
            journal=journal,
            rejected_count=self.rejected.pop(place, 0),
        )
        self.rows[place] = []
        del self.sizes[place]
        for source, _, end in ends:
            self.seen[source][number] = end


def _reason(headers: Any) -> str:
    """The reason: decoding appended it to the headers, so it is the last of that name."""
    told = [header["value"] for header in headers if header["key"] == REJECTED]
    return str(told[-1].decode())
