"""Create once and debounce: by Python and REST, who are told, and by a header, which nobody is; and
a retry that is asked for twice."""

import json
import re
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from confluent_kafka import Producer
from installation import now_ms
from ledger import Reader, create_topics
from servers import ServiceProcess, wait_until

from sendlater import ConditionFailed, Scheduler
from sendlater.store import Pending

pytestmark = pytest.mark.story

COUNT = 40


class World:
    """A service with REST on Kafka, a reader of its topics, and clients."""

    def __init__(self, kafka, redis_url, directory):
        self.kafka, self.redis_url, self.space = kafka, redis_url, uuid.uuid4().hex[:8]
        self.inbox, self.out, self.bad = (f"{n}-{self.space}" for n in ("in", "out", "bad"))
        create_topics(kafka, self.inbox, self.out, self.bad)
        self.service = ServiceProcess(
            directory,
            bootstrap_servers=kafka,
            redis=redis_url,
            space=self.space,
            inboxes=json.dumps([{"topic": self.inbox}]),
            rejected_topic=self.bad,
            http_addr="127.0.0.1:0",
        )

    def client(self):
        settings = {"space": self.space, "inboxes": ({"topic": self.inbox},)}
        return Scheduler(self.kafka, redis_url=self.redis_url, rejected_topic=self.bad, **settings)

    def rest(self):
        return Scheduler(re.search(r"page and REST at (http\S+)", self.service.said())[1])

    def arrived(self, prefix, topic=None):
        """id -> messages on the target topic."""
        found = {}
        for message in list(self.reader.messages):
            if message.topic() == (topic or self.out):
                name = dict(message.headers()).get("sendlater-id", b"").decode()
                if name.startswith(prefix):
                    found.setdefault(name, []).append(message)
        return found

    def store(self):
        return Pending.open(self.redis_url, space=self.space, shards=2)


@pytest.fixture(scope="module")
def world(kafka, redis_url, tmp_path_factory):
    found = World(kafka, redis_url, tmp_path_factory.mktemp("conditions"))
    with found.service.start(), Reader(kafka, found.out, found.bad) as found.reader:
        yield found


def test_of_all_who_try_one_creates_it_and_the_last_call_moves_it(world):
    """Two programs at once, one over Kafka and one over REST, forty times."""
    with world.client() as client, world.rest() as rest, ThreadPoolExecutor(4) as threads:

        def create(who, door, n):
            try:
                door.send_later(world.out, who, delay="3s", id=f"once-{n}", only_if="absent")
            except ConditionFailed as failed:
                return None if failed.standing.id == f"once-{n}" else failed
            return f"once-{n}", who

        calls = [
            threads.submit(create, who, door, n)
            for n in range(COUNT)
            for who, door in ((b"kafka", client), (b"rest", rest))
        ]
        won = [call.result() for call in calls if call.result() is not None]
        assert sorted(name for name, _ in won) == sorted(f"once-{n}" for n in range(COUNT))

        last = None
        for n in range(10):
            door = (client, rest)[n % 2]
            last = door.send_later(world.out, b"%d" % n, delay="2s", id="calm", only_if="later")
        with pytest.raises(ConditionFailed):
            client.send_later(world.out, b"early", delay="1s", id="calm", only_if="later")

        wait_until(lambda: len(world.arrived("once-")) == COUNT, "each has arrived")
        wait_until(lambda: world.arrived("calm"), "the last change has arrived")
        # What comes after them would have come before this.
        client.send_later(world.out, b"end", delay="2s", id="end", only_if="absent")
        wait_until(lambda: world.arrived("end"), "the end has arrived")

    once = world.arrived("once-")
    assert {name: [m.value() for m in found] for name, found in once.items()} == {
        name: [who] for name, who in won
    }
    (calm,) = world.arrived("calm")["calm"]
    assert calm.value() == b"9"
    assert calm.timestamp()[1] >= last.due_ms


def test_a_store_that_has_lost_everything_knows_what_was_created(world):
    """The inbox has a copy of each."""
    with world.client() as client:
        made = client.send_later(world.out, b"kept", delay="1h", id="kept", only_if="absent")
        with pytest.raises(ConditionFailed):
            client.send_later(world.out, b"no", delay="2h", id="kept", only_if="absent")
    world.service.stop()
    store = redis.Redis.from_url(world.redis_url)
    for key in list(store.scan_iter(f"*{world.space}*")):
        store.delete(key)
    world.service.start()
    with world.client() as client:
        found = client.get("kept")
        assert (found.value, found.due_ms) == (b"kept", made.due_ms)
        with pytest.raises(ConditionFailed):
            client.send_later(world.out, b"no", delay="2h", id="kept", only_if="absent")
        assert client.cancel("kept") == "cancelled"


def test_a_header_says_it_from_any_language(world):
    """In the order of the partition; nothing that cannot be read is lost."""
    producer = Producer({"bootstrap.servers": world.kafka})
    due_ms = now_ms() + 4_000

    def put(name, value, condition, at_ms=due_ms):
        headers = [("sendlater-due-ms", str(at_ms)), ("scheduler-target-topic", world.out)]
        headers += [] if condition is None else [("sendlater-if", condition)]
        producer.produce(world.inbox, value, name, headers=headers)

    for n in range(COUNT):
        for value in ("first", "second", "third"):
            put(f"h-once-{n}", value, "absent")
        for at in (1, 3, 2, 4, 0):
            put(f"h-later-{n}", str(at), "later", due_ms + at)
            put(f"h-early-{n}", str(at), "earlier", due_ms + at)
        put(f"h-new-{n}", "old", "absent")
        put(f"h-new-{n}", "new", None)
        put(f"h-never-{n}", "never", "version=0123456789abcdef")
    hostile = [
        b"perhaps",
        b"",
        b"\xff\xfe",
        b"absent\x00",
        b"if absent|1",
        b"version=\xff",
        b"x" * 999,
    ]
    for n, condition in enumerate(hostile):
        put(f"h-bad-{n}", "bad", condition)
    unmet = world.store().counts()["unmet"]
    assert producer.flush(30) == 0

    wait_until(lambda: len(world.arrived("h-")) == 4 * COUNT, "all that stood have arrived")
    got = world.arrived("h-")
    for n in range(COUNT):
        for kind, value in (("once", b"first"), ("later", b"4"), ("early", b"0"), ("new", b"new")):
            (message,) = got[f"h-{kind}-{n}"]
            assert message.value() == value
            assert "sendlater-if" not in dict(message.headers())
    # Of each three one stood, of the later ones 1, 3 and 4, of the earlier ones 1 and 0.
    assert world.store().counts()["unmet"] - unmet == COUNT * (2 + 2 + 3 + 1)

    def rejected():
        return [m for m in list(world.reader.messages) if m.topic() == world.bad]

    wait_until(lambda: len(rejected()) == len(hostile), "what cannot be read was rejected")
    reasons = Counter(dict(m.headers())["sendlater-rejected"] for m in rejected())
    assert reasons == {b"bad-condition": len(hostile)}
    assert {m.key() for m in rejected()} == {b"h-bad-%d" % n for n in range(len(hostile))}


def of(letters, place):
    """The keys of dead letters about records from there."""
    told = [(m.key(), dict(m.headers() or ())) for m in list(letters.messages)]
    return [key for key, one in told if one.get("event-id", b"").startswith(place.encode())]


def test_a_retry_that_is_asked_for_twice_comes_once(world):
    """A consumer died before it committed: it reads the record again, when its retry has come, and
    its dead letter too."""
    producer = Producer({"bootstrap.servers": world.kafka})
    place = f"orders-{world.space}/0"

    def fail(n, attempts):
        """As a consumer does, of a record from elsewhere."""
        headers = [("retry-origin", f"{place}/{n}"), ("sendlater-retry", "1s")]
        headers += [("scheduler-target-topic", world.out)]
        headers += [("retry-attempt", str(attempts))] if attempts else []
        producer.produce(world.inbox, f"{n}", f"order-{n}", headers=headers)
        assert producer.flush(30) == 0

    def came():
        return [m.key() for found in world.arrived("retry-").values() for m in found]

    unmet = world.store().counts()["unmet"]
    with Reader(world.kafka, "dead-letters") as letters:
        for n in range(COUNT):
            fail(n, 0)
            fail(n, 0)
            fail(n, 1)
        wait_until(lambda: len(came()) >= COUNT, "each has come again")
        wait_until(lambda: len(of(letters, place)) >= COUNT, "each has a dead letter")
        world.service.kill()
        world.service.start()
        for n in range(COUNT):
            fail(n, 0)
            fail(n, 1)
        fail(COUNT, 0)
        wait_until(lambda: len(came()) > COUNT, "the last one has come")
        assert sorted(came()) == sorted(b"order-%d" % n for n in range(COUNT + 1))
        assert sorted(of(letters, place)) == sorted(b"order-%d" % n for n in range(COUNT))
    assert world.store().counts()["unmet"] - unmet == 3 * COUNT
