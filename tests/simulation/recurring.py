"""The ledger of recurring schedules: each planned time once, or left out as its plan says."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sendlater.dialects.recurrence import Plan
from sendlater.limits import MISSED_LATE_MS_MAX
from sendlater.model import Schedule
from sendlater.store.codec import unpack, with_due

if TYPE_CHECKING:
    from promises import Ledger, Version
    from world import Actor


@dataclass(eq=False)
class Recurring:
    """A plan as it was sent, and what has become of its planned times."""

    plan: Plan
    occurrences: dict[int, "Version"] = field(default_factory=dict)
    """By planned times: those that took the place of the schedule in a batch."""
    left_out: set[int] = field(default_factory=set)
    ended: bool = False

    def grid(self, after_ms: int, before_ms: int) -> list[int]:
        """Planned times between two, without them, as far as the plan goes."""
        every_ms, first_ms = self.plan.every_ms, self.plan.planned_ms
        assert every_ms is not None, "the simulation draws intervals"
        steps = max(0, (after_ms - first_ms) // every_ms + 1)
        last_ms = before_ms if self.plan.end_ms is None else min(before_ms, self.plan.end_ms + 1)
        return list(range(first_ms + steps * every_ms, last_ms, every_ms))

    def due_ms(self, id: bytes, planned_ms: int) -> int:
        """When an occurrence is due."""
        at = self.plan.at(planned_ms)
        assert at is not None
        return at.due_ms(id)

    def complete(self) -> bool:
        """Whether all that is planned was delivered: a store that went back may never tell."""
        arrived, plan = self.arrived(), self.plan
        if plan.left is not None and len(arrived) >= plan.left:
            return True
        return plan.end_ms is not None and not self.grid(max(arrived, default=0), plan.end_ms + 1)

    def arrived(self) -> list[int]:
        """Planned times that were delivered."""
        return [at for at, one in self.occurrences.items() if one.arrivals]


def look_at_recurring(ledger: "Ledger", actor: "Actor", args: tuple[Any, ...], answer: Any) -> None:
    """The script `recur` has put occurrences where recurring schedules were."""
    rest = args[2 + int(args[1]) + 3 :]
    for n, stood in enumerate(answer):
        id, one, packed, next_ms, record = rest[5 * n : 5 * n + 5]
        if not stood:
            continue
        instead = unpack(one, packed) if one else None
        again = unpack(id, with_due(int(next_ms), record)) if next_ms else None
        if instead and instead.record.value is None:  # only its journal's tombstone
            instead = None
        version = _written(ledger, id, instead or again)
        if version is None:
            if (instead or again) and not ledger.unsure[id]:
                ledger._break(f"an occurrence of what nobody wrote: {id!r}")
        elif not instead:
            late_ms = actor.clock_read - version.due_ms
            if version.recurs.plan.missed != "none" or late_ms <= MISSED_LATE_MS_MAX:
                ledger._break(f"an occurrence of {id!r} is left out")
            _left_out(ledger, actor, version, again)
        else:
            _made(ledger, actor, version, instead, again)


def _written(ledger: "Ledger", id: bytes, schedule: Schedule | None) -> "Version | None":
    named = [v for v in ledger.by_id[id] if v.recurs and v.place is not None]
    if schedule:
        named = [v for v in named if v.value == schedule.record.value]
    return named[-1] if named else None


def _made(
    ledger: "Ledger", actor: "Actor", version: "Version", one: Schedule, again: Schedule | None
) -> None:
    recurs, id = version.recurs, version.id
    planned_ms = int(one.id.rpartition(b"@")[2])
    if planned_ms not in recurs.grid(planned_ms - 1, planned_ms + 1):
        ledger._break(f"{one.id!r} was never planned")
    if one.due_ms != recurs.due_ms(id, planned_ms) and not ledger.unsure[id]:
        ledger._break(f"{one.id!r} is due {one.due_ms}")
    if planned_ms in recurs.occurrences:
        if not ledger.losses and not ledger.rebuilt:
            ledger._break(f"{one.id!r} takes its place twice")
    else:
        recurs.occurrences[planned_ms] = version.occurrence(planned_ms, one.due_ms)
    ledger._look_for_newer(
        recurs.occurrences[planned_ms], actor.claimed_at, read_until=ledger.world.elapsed
    )
    counted = recurs.plan.left is not None and len(recurs.occurrences) >= recurs.plan.left
    next_ms = ledger.plan_of(again).planned_ms if again else None
    over_ms = planned_ms if counted else recurs.plan.end_ms
    if next_ms is None and over_ms is None:
        ledger._break(f"{one.id!r} is the last")
        over_ms = planned_ms
    forgot = bool(ledger.losses) and not ledger.settings.journals
    anew = forgot and counted and next_ms is None and recurs.plan.missed != "all"
    if anew and recurs.plan.end_ms is not None:
        # A store that forgot counts anew, and may come to the plan's end before.
        over_ms = max(planned_ms, recurs.plan.end_ms)
    between = recurs.grid(planned_ms, over_ms + 1 if next_ms is None else next_ms)
    missed = [at for at in between if recurs.due_ms(id, at) <= actor.clock_read]
    if (missed != between and not anew) or (missed and recurs.plan.missed == "all"):
        ledger._break(f"{one.id!r} leaves out {between} at {actor.clock_read}")
    recurs.left_out.update(missed)
    recurs.ended = again is None


def _left_out(ledger: "Ledger", actor: "Actor", version: "Version", again: Schedule | None) -> None:
    """Nothing is delivered: all that was missed before the next time."""
    recurs = version.recurs
    before_ms = ledger.plan_of(again).planned_ms if again else int(actor.clock_read) + 1
    missed = [at for at in recurs.grid(0, before_ms) if at not in recurs.occurrences]
    if any(recurs.due_ms(version.id, at) > actor.clock_read for at in missed):
        ledger._break(f"{version.id!r} leaves out {missed} at {actor.clock_read}")
    recurs.left_out.update(missed)
    recurs.ended = again is None


def close_recurring(ledger: "Ledger", version: "Version") -> None:
    """Everything has settled: what is missing of a recurring schedule, or twice."""
    recurs = version.recurs
    for one in recurs.occurrences.values():
        ledger.count(one)
    owed = ledger.is_owed(version)
    forgets = bool(ledger.losses) and not ledger.settings.journals
    arrived = recurs.arrived()
    if owed and not recurs.ended and not recurs.complete():
        ledger._break(f"it has not ended: {version.id!r}, {sorted(arrived)}")
    last_ms = max(recurs.occurrences, default=0)
    for planned_ms in recurs.grid(0, last_ms + 1) if owed else recurs.occurrences:
        known = planned_ms in arrived or planned_ms in recurs.left_out
        # What waits beside a newer version is in no journal: that one took its place.
        if not known and (owed or not (ledger.losses or ledger.rebuilt)):
            ledger._break(f"lost: {version.id!r}@{planned_ms}")
    left, end_ms = recurs.plan.left, recurs.plan.end_ms
    if left is None or forgets:
        return
    if len(arrived) > left or (owed and end_ms is None and len(arrived) < left):
        ledger._break(f"{version.id!r} came {len(arrived)} times of {left}")
