"""The book of a chaos run: every version of every id, when the broker had it, and what arrived.

It knows nothing of the service: what was sent is compared with what stands on the target topic.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sendlater.spark.intake.watermark import TOLD_EVERY_MS

ACKED_BEFORE_MS = 5_000
"""A change that the broker had later than this before the old due time may come too late."""
IN_FLIGHT_MS = 5_000
"""Without a journal what was claimed at a fault may come twice: lanes x window_ms, and a second."""
LET_GO_MS = 2_000
"""What is claimed when deliveries wait for intake no longer arrives so much later, or before the
log has its line."""
TOLD_COUNT_MAX = 20
"""Ids whose whole story is told, of each kind of broken promise."""
AROUND_MS = 5_000
"""A fault this near to a schedule's life is part of its story."""


@dataclass(slots=True, kw_only=True)
class Version:
    """One record on the inbox: a schedule, or with `due_ms` None a cancellation."""

    number: int
    due_ms: int | None
    sent_ms: int
    acked_ms: int | None = None
    place: str = ""
    """Partition and offset on the inbox."""
    error: str = ""


@dataclass(slots=True, kw_only=True)
class Delivery:
    """One record on the target topic."""

    number: int
    append_ms: int
    place: str


@dataclass(slots=True, kw_only=True)
class Fault:
    """Something that was done to the installation, and how long it took until all was up again."""

    kind: str
    began_ms: int
    ended_ms: int
    told: str = ""


@dataclass(slots=True)
class Story:
    """All versions of one id, and all that arrived of it."""

    id: str
    versions: list[Version] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)

    @property
    def newest(self) -> Version:
        """What counts."""
        return self.versions[-1]

    def missing(self) -> bool:
        """Whether its newest version is a schedule that the broker has, and has not arrived."""
        newest = self.newest
        return (
            newest.due_ms is not None
            and newest.acked_ms is not None
            and all(delivery.number != newest.number for delivery in self.deliveries)
        )

    def excused(self, *, margin_ms: int) -> bool:
        """Whether a change was too late to be sure that the older version does not arrive."""
        for before, after in pairwise(self.versions):
            if before.due_ms is not None and (
                after.sent_ms > before.due_ms - margin_ms
                or after.acked_ms is None
                or after.acked_ms > before.due_ms - ACKED_BEFORE_MS
            ):
                return True
        return False

    def doubles(self) -> list[Delivery]:
        """Copies of a version after its first one."""
        seen: set[int] = set()
        later = []
        for delivery in sorted(self.deliveries, key=lambda d: d.append_ms):
            if delivery.number in seen:
                later.append(delivery)
            seen.add(delivery.number)
        return later


class Book:
    """Sent and arrived. `judge` compares them."""

    def __init__(self, *, margin_ms: int) -> None:
        self.margin_ms = margin_ms
        self.stories: dict[str, Story] = {}
        self.strangers: list[str] = []
        """Arrived, but never sent so."""
        self.ends: Counter[int] = Counter()
        """By partition of the target, the offset after the last record that was read."""

    def write(self, name: str, due_ms: int | None, *, now_ms: int) -> Version:
        """A version is sent now."""
        story = self.stories.setdefault(name, Story(name))
        version = Version(number=len(story.versions), due_ms=due_ms, sent_ms=now_ms)
        story.versions.append(version)
        return version

    def payload(self, name: str, version: Version) -> bytes:
        """What tells id, version and due time."""
        return json.dumps([name, version.number, version.due_ms]).encode()

    def arrived(self, messages: Iterable[Any]) -> None:
        """Enter records of the target topic; one that was read before is passed over."""
        for message in messages:
            partition, offset = message.partition(), message.offset()
            if offset < self.ends[partition]:
                continue
            self.ends[partition] = offset + 1
            place = f"{partition}/{offset}"
            name, number, due_ms = json.loads(message.value())
            versions = self.stories[name].versions if name in self.stories else []
            headers = dict(message.headers() or [])
            told = (message.key(), headers.get("sendlater-id"), headers.get("sendlater-due"))
            expected = (name.encode(), name.encode(), str(due_ms).encode())
            if number >= len(versions) or versions[number].due_ms != due_ms or told != expected:
                self.strangers.append(f"{place}: {message.value()!r} {told}")
                continue
            self.stories[name].deliveries.append(
                Delivery(number=number, append_ms=message.timestamp()[1], place=place)
            )

    def last_due_ms(self) -> int:
        """The latest due time of any version."""
        return max(v.due_ms or 0 for s in self.stories.values() for v in s.versions)

    def lateness_ms(self) -> list[int]:
        """Of the first copy of each newest version, counted from when it was due and acked."""
        found = []
        for story in self.stories.values():
            newest = story.newest
            appended = [d.append_ms for d in story.deliveries if d.number == newest.number]
            if appended and newest.due_ms is not None and newest.acked_ms is not None:
                found.append(min(appended) - max(newest.due_ms, newest.acked_ms))
        return sorted(found)

    def judge(
        self, faults: Sequence[Fault], *, journal: bool, let_go_ms: Sequence[int] = ()
    ) -> dict[str, list[str]]:
        """Ids by the promise that was broken to them; `doubled in flight` and `held too long` are
        allowed.

        With a journal nothing may come twice. `let_go_ms`: when a service told that deliveries wait
        for intake no longer, because they had waited for hold_ms_max.
        """
        names = ("lost", "early", "wrong version", "fired though cancelled", "doubled")
        allowed_names = ("doubled in flight", "held too long")
        broken: dict[str, list[str]] = {name: [] for name in (*names, *allowed_names)}
        for name, story in self.stories.items():
            if story.missing():
                broken["lost"].append(name)
            dues = [version.due_ms or 0 for version in story.versions]
            if any(d.append_ms < dues[d.number] for d in story.deliveries):
                broken["early"].append(name)
            older = [d for d in story.deliveries if d.number != story.newest.number]
            if older and not story.excused(margin_ms=self.margin_ms):
                cancelled = story.newest.due_ms is None
                what = "fired though cancelled" if cancelled else "wrong version"
                if all(let_go(d.append_ms, let_go_ms) for d in older):
                    what = "held too long"
                broken[what].append(name)
            if story.doubles():
                allowed = not journal and in_flight(story, faults)
                broken["doubled in flight" if allowed else "doubled"].append(name)
        return broken

    def tell(self, name: str, faults: Sequence[Fault], *, since_ms: int) -> str:
        """The full story of one id; times in seconds since the load began."""

        def at(ms: int | None) -> str:
            return "never" if ms is None else f"{(ms - since_ms) / 1_000:.3f}"

        story = self.stories[name]
        events: list[tuple[int, str]] = []
        for v in story.versions:
            what = "cancelled" if v.due_ms is None else f"due {at(v.due_ms)}"
            acked = f"acked {at(v.acked_ms)} at {v.place}{v.error}"
            events.append((v.sent_ms, f"version {v.number} sent, {what}, {acked}"))
        for d in story.deliveries:
            events.append((d.append_ms, f"version {d.number} DELIVERED at {d.place}"))
        from_ms = min(ms for ms, _ in events) - AROUND_MS
        until_ms = max(ms for ms in (*(ms for ms, _ in events), *dues(story))) + AROUND_MS
        for fault in faults:
            if fault.ended_ms >= from_ms and fault.began_ms <= until_ms:
                told = f"fault {fault.kind} until {at(fault.ended_ms)} {fault.told}"
                events.append((fault.began_ms, told))
        return f"{name}\n" + "\n".join(f"  {at(ms):>8} {told}" for ms, told in sorted(events))


def let_go(at_ms: int, let_go_ms: Sequence[int]) -> bool:
    """Whether deliveries did not wait for intake: a service tells it when that begins, and again
    each ten seconds."""
    return any(-LET_GO_MS < at_ms - ms < TOLD_EVERY_MS + LET_GO_MS for ms in let_go_ms)


def dues(story: Story) -> list[int]:
    """The due times of its versions."""
    return [version.due_ms for version in story.versions if version.due_ms is not None]


def in_flight(story: Story, faults: Sequence[Fault]) -> bool:
    """Whether every double has a fault near the copy before it."""
    copies = sorted(story.deliveries, key=lambda d: (d.number, d.append_ms))
    return all(
        any(
            fault.began_ms - IN_FLIGHT_MS <= before.append_ms <= fault.ended_ms + IN_FLIGHT_MS
            for fault in faults
        )
        for before, after in pairwise(copies)
        if before.number == after.number
    )
