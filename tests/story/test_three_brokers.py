"""Three brokers, one of which dies or is upgraded, and topics that grow or lack a replica: nothing
is lost, doubled or early."""

import json
import time
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka.admin import NewPartitions
from handovers import Load, latest_ms, longest_gap_ms, more, say
from ledger import Ledger, Reader, create_topics
from servers import ServiceProcess, own_redis, wait_until
from three_brokers import NODES, ThreeBrokers

from sendlater.brokers.kafka_topics import KafkaTopics
from sendlater.config import Settings
from sendlater.store import Pending
from sendlater.store.unsettled import count_rows

pytestmark = pytest.mark.story

RATE, JOURNAL_RATE = 150, 50
"""Messages a second by the inbox and by the journal."""
PARTITIONS = 3
ARRIVE_S = 60.0


class Here:
    """One service on three brokers, and a ledger and a reader for each target."""

    def __init__(self, kafka, redis_url, directory):
        self.kafka, self.servers = kafka, kafka.bootstrap_servers
        self.defaults = Settings()
        self.pending = Pending.open(
            redis_url, space=self.defaults.space, shards=self.defaults.shards
        )
        self.inbox, self.journal = "inbox", "journal"
        self.targets = ("target", "target-of-journal")
        self.topics = (self.inbox, self.journal, *self.targets)
        self.create(self.inbox, *self.targets)
        self.create(self.journal, cleanup_policy="compact")
        self.service = ServiceProcess(
            directory,
            bootstrap_servers=self.servers,
            redis=redis_url,
            rejected_topic="rejected",
            inboxes=json.dumps(
                [{"topic": self.inbox}, {"topic": self.journal, "journal": True}],
            ),
        )
        self.ledgers = [
            Ledger(self.servers, inbox=inbox, target=target, prefix=f"{inbox}-")
            for inbox, target in zip((self.inbox, self.journal), self.targets, strict=True)
        ]
        self.readers = [Reader(self.servers, target) for target in self.targets]

    def create(self, *topics, **config):
        create_topics(self.servers, *topics, partitions=PARTITIONS, **config)

    @contextmanager
    def load(self):
        """A steady one."""
        with ExitStack() as stack:
            for ledger, rate in zip(self.ledgers, (RATE, JOURNAL_RATE), strict=True):
                stack.enter_context(Load(ledger, rate=rate))
            self.goes_on()
            yield

    def goes_on(self, *, s=3):
        """Wait for what both targets get in some seconds."""
        for reader, rate in zip(self.readers, (RATE, JOURNAL_RATE), strict=True):
            more(reader, s * rate)

    def balance(self):
        """Everything that was ever sent has arrived, once, and not early."""
        for ledger in self.ledgers:
            balance(ledger, self.servers)

    def settles(self):
        """Wait until its lanes have settled all that they have delivered."""
        lanes = range(self.defaults.lanes)
        wait_until(lambda: count_rows(self.pending, lanes) == 0, "all is settled")

    @contextmanager
    def cost(self, what):
        """Tells what something costs, by the times of the brokers; with `-s` it is seen."""
        since_ms = time.time_ns() // 1_000_000
        yield
        for reader, name in zip(self.readers, self.targets, strict=True):
            gap_ms = longest_gap_ms(reader, since_ms=since_ms)
            say(what, name, "gap", gap_ms, "late", latest_ms(reader, since_ms=since_ms), "ms")


def balance(ledger, servers):
    """By a new reader, up to the end: librdkafka's may stand for minutes if it has read through an
    outage, or a topic that was made anew."""
    topics = KafkaTopics({"bootstrap.servers": servers})
    with Reader(servers, ledger.target) as reader:
        what = f"everything arrives on {ledger.target}"
        try:
            wait_until(lambda: not ledger.missing(reader), what, timeout_s=ARRIVE_S)
        except AssertionError as error:
            missing = sorted(ledger.missing(reader))
            error.add_note(f"{len(missing)} of {len(ledger.due_ms)} are missing: {missing[:20]}")
            failed = dict(list(ledger.failed.items())[:20])
            error.add_note(f"not acknowledged by the inbox: {failed}")
            raise
        end = sum(topics.ends([ledger.target])[ledger.target].values())
        wait_until(lambda: len(reader.messages) >= end, f"{ledger.target} is read")
    places = [(m.key(), m.partition(), m.offset(), m.timestamp()[1]) for m in reader.messages]
    doubled = ledger.doubled(reader)
    copies = [one for one in sorted(places) if one[0].decode() in doubled]
    assert not copies, "these have come more than once"
    assert ledger.early(reader) == []


@pytest.fixture(autouse=True)
def all_three(here):
    """A test begins with all of them."""
    here.kafka.start_all()
    here.kafka.wait_until_in_sync(here.topics, *NODES)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("three-brokers")
        kafka = stack.enter_context(ThreeBrokers(directory))
        redis_url = stack.enter_context(own_redis(directory / "redis")).url
        one = Here(kafka, redis_url, directory)
        with one.service.start():
            for reader in one.readers:
                stack.enter_context(reader)
            yield one


def test_a_broker_that_is_killed_and_comes_back_costs_nothing_but_time(here):
    node = here.kafka.leaders(here.inbox)[0]
    assert node in here.kafka.leaders(here.targets[0]).values(), "it leads a part of both"
    others = set(NODES) - {node}
    with here.load():
        with here.cost("killed"):
            here.kafka.kill(node)
            here.kafka.wait_until_in_sync(here.topics, *others)
            here.goes_on()
        assert node not in here.kafka.leaders(here.inbox).values()
        with here.cost("came back"):
            here.kafka.start(node)
            here.kafka.wait_until_in_sync(here.topics, *NODES)
            here.goes_on()
    here.balance()


def test_leaders_move_away_from_a_broker_that_is_upgraded_and_back_again(here):
    here.kafka.elect_preferred()
    before = [here.kafka.leaders(topic) for topic in here.topics]
    node = before[0][0]
    with here.load():
        with here.cost("stopped"):
            here.kafka.stop(node)
            here.goes_on()
        assert node not in here.kafka.leaders(here.inbox).values()
        here.kafka.start(node)
        here.kafka.wait_until_in_sync(here.topics, *NODES)
        with here.cost("elected"):
            here.kafka.elect_preferred()
            here.goes_on()
        assert [here.kafka.leaders(topic) for topic in here.topics] == before
    here.balance()


def test_partitions_that_are_added_are_read_and_delivered_to(here):
    topics = (here.inbox, here.targets[0])
    with Reader(here.servers, here.inbox) as written, here.load(), here.cost("grown"):
        new = [NewPartitions(topic, 2 * PARTITIONS) for topic in topics]
        for future in here.kafka.admin.create_partitions(new).values():
            future.result(30)

        def on_new(reader):
            return {m.key() for m in list(reader.messages) if m.partition() >= PARTITIONS}

        wait_until(lambda: len(on_new(written)) > RATE, "new ones are written to")
        wait_until(lambda: len(on_new(here.readers[0])) > RATE, "new ones are delivered to")
    here.balance()

    def delivered():
        return {message.key() for message in list(here.readers[0].messages)}

    wait_until(lambda: on_new(written) <= delivered(), "what is written to new ones is delivered")


def test_a_target_that_lacks_a_replica_waits_and_the_others_go_on(here):
    """It wants all three in sync, and one is killed while it is delivered to. What its leader has
    taken, nobody can read until the third is back; the lanes do not wait for that."""
    here.create("strict", min_insync_replicas="3")
    ledger = Ledger(here.servers, inbox=here.inbox, target="strict", prefix="strict-")
    node = here.kafka.leaders("strict")[0]
    others, told = set(NODES) - {node}, len(here.service.said())
    with here.load(), Load(ledger, rate=RATE):
        with Reader(here.servers, "strict") as reader:
            more(reader, 3 * RATE)
        with here.cost("lacks a replica"):
            here.kafka.kill(node)
            here.kafka.wait_until_in_sync((*here.topics, "strict"), *others)
            here.goes_on(s=20)
        assert "deliveries wait for their topics" in here.service.said()[told:]
        here.kafka.start(node)
        here.kafka.wait_until_in_sync((*here.topics, "strict"), *NODES)
        here.goes_on()
    here.balance()
    balance(ledger, here.servers)
    assert "Expiring" not in here.service.said()[told:], "nobody waited until a producer gave up"


def test_topics_that_are_made_anew_are_read_and_delivered_to(here):
    """Nothing is under way by them when they go: what a deleted topic has, goes with it, and what
    was delivered to it and is not settled comes again."""
    here.balance()
    here.settles()
    inbox, target = topics = here.inbox, here.targets[0]
    ledger = Ledger(here.servers, inbox=inbox, target=target, prefix="anew-")
    with Load(here.ledgers[1], rate=JOURNAL_RATE):
        more(here.readers[1], 3 * JOURNAL_RATE)
        here.kafka.delete(topics)
        here.create(*topics)
        here.kafka.wait_until_in_sync(topics, *NODES)
        with Reader(here.servers, target) as reader, Load(ledger, rate=RATE):
            more(reader, 5 * RATE)
        balance(ledger, here.servers)
    balance(here.ledgers[1], here.servers)
