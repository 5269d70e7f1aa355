"""Looks up target topics before anything is delivered to them, so that a bad one stops no others.

Spark's Kafka sink fails its whole query when a topic is missing, forbidden or does not take a
record. So tasks deliver only to topics in the list kept here, and set aside all other rows.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from itertools import takewhile
from typing import TypeVar

import structlog

from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.errors import (
    BadSettings,
    BrokerUnavailable,
    Fenced,
    StoreUnavailable,
    TopicUnavailable,
)
from sendlater.limits import REJECTED_BYTES_MAX
from sendlater.model import Reason, Schedule, Target
from sendlater.spark.delivery.refusal import refusal, rejected
from sendlater.spark.kafka_sink import STILL_SENT_MS, request_bytes_max
from sendlater.store import Pending, Shard
from sendlater.store.codec import unpack
from sendlater.store.recent import tell
from sendlater.store.wakeup import Wake

TICK_S, CALM_MS = 0.05, 250
"""Pause between two rounds: after one that was asked for, as what waits for it may be set aside
just then, and longest one otherwise."""
ASIDE_COUNT_MAX = 500
"""Rows set aside that one round checks, per shard."""
LOOK_UP_ATTEMPTS_MAX = 20
"""Rounds without an answer after which a topic counts as unknown: the broker may be creating it."""
REFRESH_MS = 30_000
"""How long an answer about a topic is used; a topic deleted meanwhile is noticed then."""
REFUSED_MS = 5_000
"""How long a refusal is used, so that a topic created late is used soon. Also the highest age of an
answer by which a record is rejected: its topic may take larger records since."""
UNAVAILABLE_MS = 1_000
"""Pause between two looks at a topic that takes nothing for the moment."""
BLOCKING_LOOK_MS = 250
"""Pause between two looks whether topics in use still exist, and still take something. One that
does not blocks the producer of each lane that delivers to it for half a minute. Two looks must
agree that it was deleted."""
BLOCKING_LOOK_COUNT_MAX = 20
"""Topics of one such look, a request for each; more take turns."""
BLOCKING_MS = 20_000
"""For how long after that a lane may have something for the topic: the other one starts again."""
SETTINGS_MS = 2_000
"""Pause between two such looks that ask too how many of their replicas must be in sync."""
SILENT_MS = 2_000
"""A topic that takes nothing for so long ends its lanes; a change of a leader is over sooner."""
TELL_MS = 60_000
"""Pause between two equal log lines."""

_One = TypeVar("_One")
_log = structlog.get_logger()


class Targets:
    """Keeps the list of usable targets in the store, and decides about rows set aside."""

    def __init__(
        self,
        pending: Pending,
        topics: KafkaTopics,
        settings: Settings,
        *,
        owner: int,
        clock: Clock | None = None,
    ) -> None:
        self._pending, self._topics, self._settings = pending, topics, settings
        self._owner = owner
        self._clock = clock or SystemClock()
        history = (settings.history_topic,) if settings.history_topic else ()
        self._copies = {journal: (journal, *history) for journal in settings.journals}
        after_delivery = (*settings.journals, *history) if settings.journals else ()
        self._own = (*after_delivery, settings.rejected_topic)
        self._request_bytes_max = request_bytes_max(settings)
        self._answers: dict[str, tuple[Target | Reason, int]] = {}
        """Per topic the answer, and when it was given."""
        self._doubted: set[str] = set()
        self._attempts: Counter[str] = Counter()
        self._again_ms: dict[str, int] = {}
        """When to look up again a topic that takes nothing for the moment."""
        self._deleted: dict[str, int] = {}
        """Topics in use that were deleted, and when that was seen."""
        self._missing: set[str] = set()
        """Those that were not there at the last look: a broker may not know of a new one yet."""
        self._blocked: dict[str, int] = {}
        """Topics in use that took nothing for SILENT_MS, and when that was seen first."""
        self._silent_ms: dict[str, int] = {}
        """Those that took nothing at the last look, and since when."""
        self._look_ms, self._looked_at, self._settings_ms = 0, "", 0
        self._cursors = [0] * len(pending.shards)
        self._told_ms: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="targets", daemon=True)

    def start(self, *, inherited: bool = False) -> None:
        """Look up our own topics, then keep going until `stop`.

        `inherited`: the last owner's answers are used until the first round has asked for new ones.
        Raises BadSettings if the history topic or a journal takes nothing from us.
        """
        if inherited:
            known = self._pending.shards[0].targets()
            self._answers = {topic.decode(): (known[topic], 0) for topic in known}
        else:
            self._forget()
        for topic in self._own:
            answer = self._answer(topic)
            if isinstance(answer, Reason) and topic != self._settings.rejected_topic:
                raise BadSettings(f"topic {topic!r} takes nothing from us: {answer.value}")
        self._thread.start()

    def stop(self) -> None:
        """End the thread; waits for the round under way."""
        self._stop.set()
        with suppress(StoreUnavailable):
            self._pending.shards[0].ask()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with closing(self._pending.shards[0].asked()) as asked:
                    self._keep_looking(asked)
            except Fenced:
                return
            except StoreUnavailable as error:
                _log.warning("targets wait for the store", cause=str(error))
                self._stop.wait(CALM_MS / 1_000)
            except Exception:
                _log.exception("looking up targets failed, will go on")
                self._stop.wait(CALM_MS / 1_000)

    def _keep_looking(self, asked: Wake) -> None:
        woken = asked.wait(CALM_MS)
        while not self._stop.is_set():
            self.tick()
            if woken:
                self._stop.wait(TICK_S)
            woken = asked.wait(0 if woken else CALM_MS)

    def tick(self) -> None:
        """One round: topics deleted, topics that intake asked for, rows set aside, old answers."""
        self._look_for_blocking()
        first = self._pending.shards[0]
        for topic in self._unless_stopped(first.wanted(count_max=ASIDE_COUNT_MAX)):
            self._look_for_doubt(topic)
            if self._answer(topic) is None:
                first.want([topic.encode()])
        for number, shard in enumerate(self._pending.shards):
            self._cursors[number], rows = shard.aside(
                count_max=ASIDE_COUNT_MAX, cursor=self._cursors[number]
            )
            for schedule_id, packed in self._unless_stopped(rows.items()):
                self._look_at(shard, schedule_id, packed)
        self._refresh()

    def _unless_stopped(self, all_of: Iterable[_One]) -> Iterator[_One]:
        """Each may be a question to a broker that is away: who stops waits for one at most."""
        return takewhile(lambda _: not self._stop.is_set(), all_of)

    def _look_for_doubt(self, topic: str) -> None:
        """A topic that a task has taken from the list: it has refused a record, maybe."""
        known = isinstance(self.known(topic), Target)
        if known and topic.encode() not in self._pending.shards[0].targets():
            _log.warning("a delivery is tried again: its target is looked up", topic=topic)
            self._doubted.add(topic)

    def _look_for_blocking(self) -> None:
        now_ms = self._clock.now_ms()
        if now_ms < self._look_ms:
            return
        self._look_ms = now_ms + BLOCKING_LOOK_MS
        used = sorted(t for t, (answer, _) in self._answers.items() if isinstance(answer, Target))
        some = [t for t in used if t > self._looked_at][:BLOCKING_LOOK_COUNT_MAX]
        self._looked_at = some[-1] if len(some) == BLOCKING_LOOK_COUNT_MAX else ""
        asked = {*some, *self._missing, *self._silent_ms}
        anew = now_ms >= self._settings_ms
        self._settings_ms = now_ms + SETTINGS_MS if anew else self._settings_ms
        if (told := self._topics.missing_and_silent(asked, anew=anew)) is None:
            return
        missing, silent = told
        now_ms = self._clock.now_ms()  # a broker that has died answers late
        for topic in missing & self._missing:
            self.doubt(topic)
            self._deleted[topic] = now_ms
        self._missing = missing - self._missing
        self._silent_ms = {topic: self._silent_ms.get(topic, now_ms) for topic in silent}
        if silent >= set(used):
            return  # the broker is away, or just back: to end lanes helps nobody
        for topic in self._silent_ms.keys() - set(self._own):
            since_ms = self._silent_ms[topic]
            if now_ms >= since_ms + SILENT_MS and self._blocked.get(topic, -1) < since_ms:
                self.doubt(topic)
                self._blocked[topic] = now_ms

    def deleted(self) -> set[str]:
        """Topics of which it was seen just now that they were deleted while in use."""
        return self._of_late(self._deleted)

    def silent(self) -> set[str]:
        """Topics in use that take nothing, as was seen just now. Not our own: whatever comes by a
        journal would end its lane again."""
        return self._of_late(self._blocked) & self._silent_ms.keys()

    def _of_late(self, seen: Mapping[str, int]) -> set[str]:
        since_ms = self._clock.now_ms() - BLOCKING_MS
        return {topic for topic, seen_ms in list(seen.items()) if seen_ms > since_ms}

    def hold(self, topics: Iterable[str]) -> None:
        """Deliver nothing to these topics while the producer of a lane that they have blocked may
        send what it has for them, as to a deleted topic that is created again."""
        for topic in topics:
            self._again_ms[topic] = self._clock.now_ms() + STILL_SENT_MS
            self.doubt(topic)

    def _refresh(self) -> None:
        """Ask again about topics in use; forget refusals, which are asked again when needed."""
        now_ms = self._clock.now_ms()
        for topic, (answer, asked_ms) in self._unless_stopped(list(self._answers.items())):
            if isinstance(answer, Target):
                self._answer(topic)
            elif now_ms >= asked_ms + REFUSED_MS and topic not in self._own:
                del self._answers[topic]
        for topic in self._own:
            self._answer(topic)

    def _look_at(self, shard: Shard, schedule_id: bytes, packed: bytes) -> None:
        """Decide about a row set aside; an error with one row must not stop the others."""
        try:
            self._settle_aside(shard, unpack(schedule_id, packed))
        except (Fenced, StoreUnavailable):
            raise
        except Exception as error:
            self._complain("a row stays aside", id=schedule_id[:100], cause=repr(error)[:500])

    def _settle_aside(self, shard: Shard, schedule: Schedule) -> None:
        """Put a row back to pending if its target takes it; otherwise reject it.

        If the rejected topic takes nothing, the row stays: somebody may repair one of the two.
        """
        if self._answer(schedule.record.topic, trusted_ms=REFUSED_MS) is None:
            return
        refused = refusal(schedule, self.known)
        if refused is None:
            shard.readmit(schedule, owner=self._owner)
            return
        topic = self._settings.rejected_topic
        takes = self._answer(topic, trusted_ms=REFUSED_MS)
        if takes is None:
            return
        instead = None
        if isinstance(takes, Target) and takes.record_bytes_max >= REJECTED_BYTES_MAX:
            instead = rejected(schedule, refused, self.known, rejected_topic=topic)
        if instead is None:
            self._complain("the rejected topic takes nothing, rejected records wait", says=takes)
            return
        if schedule.dialect != "rejected":
            tell(self._pending.shards[0], {f"rejected:{refused[0].value}": 1})
        shard.readmit(schedule, owner=self._owner, instead=instead)

    def copies_of(self, schedule: Schedule) -> tuple[str, ...]:
        """Topics for copies of a schedule's delivery: its journal, and the history topic if any."""
        return self._copies.get(schedule.origin.topic, ()) if schedule.origin else ()

    def known(self, topic: str) -> Target | Reason | None:
        """What a topic takes, why it takes nothing, or None if that is not known."""
        sure = topic in self._answers and topic not in self._doubted
        return self._answers[topic][0] if sure else None

    def _answer(self, topic: str, *, trusted_ms: int = REFRESH_MS) -> Target | Reason | None:
        """The answer about a topic, asked again if too old; None while the broker gives none."""
        now_ms = self._clock.now_ms()
        if topic in self._doubted:
            self._doubted.discard(topic)
            self._answers.pop(topic, None)
        known, asked_ms = self._answers.get(topic, (None, 0))
        if known and now_ms < asked_ms + (REFUSED_MS if isinstance(known, Reason) else trusted_ms):
            return known
        if now_ms < self._again_ms.get(topic, 0):
            return None
        try:
            answer = self._topics.look_up(topic)
        except TopicUnavailable as error:
            # A producer would wait for it, and with it what goes elsewhere.
            if self._answers.pop(topic, None) is not None:
                self._pending.set_target(topic, None)
                self._silent_ms.setdefault(topic, self._clock.now_ms())
            self._complain(
                "a target takes nothing now: its messages wait", topic=topic, cause=str(error)
            )
            self._again_ms[topic] = now_ms + UNAVAILABLE_MS
            return None
        except BrokerUnavailable:
            # Even a long outage says nothing about a topic.
            return None
        if answer is None:
            self._attempts[topic] += 1
            if self._attempts[topic] < LOOK_UP_ATTEMPTS_MAX:
                return None
            answer = Reason.UNKNOWN_TOPIC
        del self._attempts[topic]
        self._again_ms.pop(topic, None)
        if isinstance(answer, Target):
            answer = replace(
                answer,
                record_bytes_max=min(answer.record_bytes_max, self._request_bytes_max),
                copies=self._copies.get(topic, ()),
            )
        elif answer != known:
            _log.warning("target topic refused", topic=topic, reason=answer)
        self._answers[topic] = (answer, now_ms)
        self._pending.set_target(topic, answer if isinstance(answer, Target) else None)
        return answer

    def doubt(self, topic: str) -> None:
        """A record was not taken there: ask again before anything else is delivered to it."""
        self._doubted.add(topic)
        self._pending.set_target(topic, None)

    def _forget(self) -> None:
        """Forget what targets took, and have them looked up before the first message for them."""
        known = self._pending.shards[0].targets()
        for topic in known:
            self._pending.set_target(topic.decode(), None)
        if known:
            self._pending.shards[0].want(known)

    def _complain(self, event: str, **told: object) -> None:
        """Log what lasts until somebody repairs it, but not for each row in each round."""
        now_ms = self._clock.now_ms()
        if now_ms >= self._told_ms.get(event, now_ms - TELL_MS) + TELL_MS:
            self._told_ms[event] = now_ms
            _log.error(event, rejected_topic=self._settings.rejected_topic, **told)
