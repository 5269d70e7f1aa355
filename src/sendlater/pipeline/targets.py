"""Target topics: looked up before anything is delivered to them, so that one bad one hurts nobody.

Spark's Kafka sink fails its whole query when a topic is missing, forbidden or too small for a
record. So tasks deliver only to topics in the list kept here, and set the rest aside.
"""

import threading
from dataclasses import replace

import structlog

from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.dialects import names
from sendlater.errors import BadSettings, Fenced, StoreUnavailable
from sendlater.model import Reason, Record, Schedule
from sendlater.pending import Pending
from sendlater.pending.desk import tell
from sendlater.pipeline.kafka_topics import KafkaTopics

TICK_S = 0.1
ASIDE_COUNT_MAX = 500
"""Rows set aside that one round looks at, per shard."""
LOOK_UP_ATTEMPTS_MAX = 20
"""Rounds a topic may stay unanswered (a broker may be creating it) before it counts as unknown."""
REFRESH_MS = 30_000
"""How long a topic's answer is trusted; one deleted meanwhile is noticed then."""
REFUSED_MS = 5_000
"""How long a refusal is trusted, so that a topic created late is used soon."""

_log = structlog.get_logger()


class Targets:
    """Keeps the list of usable targets in the store, and settles what was set aside."""

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
        self._after_delivery = (*settings.journals, *history) if settings.journals else ()
        # A copy of what is delivered goes there; a topic smaller than the target would stop a lane.
        self._history_bytes_max = 2**31
        self._answers: dict[str, tuple[int | Reason, int]] = {}
        self._attempts: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="targets", daemon=True)

    def start(self) -> None:
        """The rejected topic is known first; then keep going until `stop`.

        Raises BadSettings when the history topic or a journal takes nothing from us.
        """
        self._forget()
        for topic in self._after_delivery:
            answer = self._topics.look_up(topic)
            if isinstance(answer, Reason):
                raise BadSettings(f"topic {topic!r} takes nothing from us: {answer.value}")
            if answer is not None and topic == self._settings.history_topic:
                self._history_bytes_max = answer
        self._answer(self._settings.rejected_topic)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; waits for the round under way."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self.tick()
            except Fenced:
                return
            except StoreUnavailable as error:
                _log.warning("targets wait for the store", cause=str(error))
            except Exception:
                _log.exception("looking up targets failed, will go on")

    def tick(self) -> None:
        """One round: what intake asked for, what was set aside, what is getting old."""
        first = self._pending.shards[0]
        for topic in first.wanted(count_max=ASIDE_COUNT_MAX):
            if self._answer(topic) is None:
                first.want([topic.encode()])
        for shard in self._pending.shards:
            for schedule in shard.aside(count_max=ASIDE_COUNT_MAX):
                self._settle_aside(schedule)
        now_ms = self._clock.now_ms()
        for topic, (answer, until_ms) in list(self._answers.items()):
            if until_ms < now_ms and isinstance(answer, int):
                self._answer(topic)

    def _settle_aside(self, schedule: Schedule) -> None:
        """Back to pending when its target turned out well, rejected when not."""
        answer = self._answer(schedule.record.topic)
        shard = self._pending.shard_of(schedule.id)
        if answer is None:
            return
        size = len(schedule.record.key or b"") + len(schedule.record.value or b"")
        if isinstance(answer, int) and size > answer:
            detail = f"target {schedule.record.topic!r} takes {answer} bytes, got {size}"
            shard.readmit(
                schedule,
                owner=self._owner,
                instead=self._rejected(schedule, Reason.TOO_LARGE, detail),
            )
        elif isinstance(answer, int):
            shard.readmit(schedule, owner=self._owner)
        else:
            detail = f"target {schedule.record.topic!r}: the broker says {answer.value}"
            shard.readmit(
                schedule, owner=self._owner, instead=self._rejected(schedule, answer, detail)
            )

    def _answer(self, topic: str) -> int | Reason | None:
        """What is known of a topic, asked anew when too old; None while the broker is undecided."""
        now_ms = self._clock.now_ms()
        known = self._answers.get(topic)
        if known and now_ms < known[1]:
            return known[0]
        answer = self._topics.look_up(topic)
        if isinstance(answer, int):
            answer = min(answer, self._history_bytes_max)
        if answer is None:
            self._attempts[topic] = self._attempts.get(topic, 0) + 1
            if self._attempts[topic] < LOOK_UP_ATTEMPTS_MAX:
                return None
            answer = Reason.UNKNOWN_TOPIC
        self._attempts.pop(topic, None)
        good = isinstance(answer, int)
        self._answers[topic] = (answer, now_ms + (REFRESH_MS if good else REFUSED_MS))
        self._pending.set_target(topic, answer if isinstance(answer, int) else None)
        if not good:
            _log.warning("target topic refused", topic=topic, reason=answer)
        return answer

    def _forget(self) -> None:
        for topic in self._pending.shards[0].targets():
            self._pending.set_target(topic.decode(), None)

    def _rejected(self, schedule: Schedule, reason: Reason, detail: str) -> Schedule:
        tell(self._pending.shards[0], {f"rejected:{reason.value}": 1})
        return rejected_schedule(
            schedule, reason, detail, rejected_topic=self._settings.rejected_topic
        )


def rejected_schedule(
    schedule: Schedule, reason: Reason, detail: str, *, rejected_topic: str
) -> Schedule:
    """The same record for the rejected topic, its id the place it was read from."""
    origin = schedule.origin
    assert origin is not None, "only intake writes schedules with unchecked targets"
    place = f"{origin.topic}/{origin.partition}/{origin.position}"
    headers = [
        *schedule.record.headers,
        (names.REJECTED, reason.value.encode()),
        (names.REJECTED_DETAIL, detail.encode()),
        (names.ORIGIN, place.encode()),
        (names.ORIGIN_TIMESTAMP_MS, b"%d" % origin.timestamp_ms),
        (names.REJECTED_TARGET, schedule.record.topic.encode()),
        (names.REJECTED_ID, schedule.id),
    ]
    record = Record(
        topic=rejected_topic,
        key=schedule.record.key,
        value=schedule.record.value,
        headers=headers,
    )
    return replace(schedule, id=place.replace("/", "-").encode(), record=record, dialect="rejected")
