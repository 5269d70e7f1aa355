"""A topic with a limit on real servers: its rate holds over lanes and shards, its callers share by
weight, and what goes elsewhere is as punctual as without it."""

import json
import os
import sys
import uuid
from collections import Counter

import pytest
from confluent_kafka import Producer
from installation import now_ms
from ledger import Reader, create_topics
from servers import ServiceProcess, cli, own_redis, wait_until

pytestmark = pytest.mark.story
WEIGHTS = {"a": 4, "b": 3, "c": 2}
PER_SECOND, BURST = 50, 100
FOR_S = int(os.environ.get("LIMITS_FOR_S", "20"))
MAILS_PER_S = 50


def arrivals(reader, topic):
    """(broker's time, headers, key) of what came to a topic."""
    found = [m for m in reader.messages if m.topic() == topic]
    read = ((m.timestamp()[1], dict(m.headers() or ()), m.key()) for m in found)
    return sorted(read, key=lambda one: one[0])


def p99_late_ms(mails, since_ms, until_ms):
    late = [at - int(headers["sendlater-due"]) for at, headers, _ in mails]
    due = [int(headers["sendlater-due"]) for _, headers, _ in mails]
    chosen = sorted(one for one, at in zip(late, due, strict=True) if since_ms <= at < until_ms)
    assert len(chosen) > FOR_S * MAILS_PER_S * 0.4
    return chosen[int(0.99 * len(chosen))]


def test_the_rate_holds_callers_share_and_others_are_on_time(kafka, tmp_path_factory):
    name = uuid.uuid4().hex[:8]
    inbox, sms, mail, bad = (f"{kind}-{name}" for kind in ("in", "sms", "mail", "bad"))
    create_topics(kafka, inbox, sms, mail, bad)
    producer = Producer({"bootstrap.servers": kafka, "queue.buffering.max.messages": 1_000_000})

    def schedule(id, topic, due_ms, caller):
        headers = [
            ("sendlater-due-ms", str(due_ms)),
            ("scheduler-target-topic", topic),
            ("scheduler-target-key", id),
            ("CALLER_SERVICE", caller),
        ]
        producer.produce(inbox, value=b"v", key=id, headers=headers)

    with own_redis(tmp_path_factory.mktemp("redis")) as server, Reader(kafka, sms, mail) as reader:
        service = ServiceProcess(
            tmp_path_factory.mktemp("service"),
            bootstrap_servers=kafka,
            redis=server.url,
            space=name,
            inboxes=json.dumps([{"topic": inbox}]),
            rejected_topic=bad,
            limits=json.dumps(
                {sms: {"per_second": PER_SECOND, "burst": BURST, "weights": WEIGHTS}}
            ),
        )
        with service.start():
            begins_ms = now_ms() + 15_000
            flood_ms, ends_ms = begins_ms + FOR_S * 1_000, begins_ms + 2 * FOR_S * 1_000
            for n in range(2 * FOR_S * MAILS_PER_S):
                schedule(f"mail-{n}", mail, begins_ms + n * 1_000 // MAILS_PER_S, "mailer")
            count = PER_SECOND * FOR_S // 2 + BURST
            for n in range(4 * count):
                schedule(f"sms-{n}", sms, flood_ms, "abcd"[n % 4])
            assert producer.flush(30) == 0
            wait_until(
                lambda: sum(m.topic() == mail for m in reader.messages) == 2 * FOR_S * MAILS_PER_S,
                "all mails",
                timeout_s=2 * FOR_S + 60,
            )
            wait_until(lambda: now_ms() > ends_ms, "the end of the flood's time", timeout_s=60)
            stats = json.loads(cli(service, "stats", "--json").stdout)
            assert stats["limited"] > count

            got = [one for one in arrivals(reader, sms) if one[0] < ends_ms]
            first_ms = got[0][0]
            took_s = (ends_ms - first_ms) / 1_000
            assert len(got) == len({key for _, _, key in got}), "once each"
            rate = len(got) / took_s
            shares = Counter(headers["CALLER_SERVICE"].decode() for _, headers, _ in got)
            mails = arrivals(reader, mail)
            before, during = (
                p99_late_ms(mails, since, since + FOR_S * 1_000) for since in (begins_ms, flood_ms)
            )
            told = f"{rate:.2f} a second for {took_s:.0f} s, {shares}, p99 {before} and {during}"
            sys.stdout.write(f"\n{told}\n")
            # A machine that stands still for a while may let less go, never more.
            assert 0.8 * PER_SECOND <= rate <= 1.05 * PER_SECOND + BURST / took_s
            for caller in "abcd":
                share = shares[caller] / len(got)
                assert share == pytest.approx(WEIGHTS.get(caller, 1) / 10, rel=0.1)
            assert during <= max(10 * before, 5_000), "they do not wait behind the flood"

            # A kill gives nothing back, and loses and doubles nothing that the limit would let go.
            service.kill()
            service.start()
            wait_until(
                lambda: len(arrivals(reader, sms)) > len(got) + 3 * PER_SECOND, "more of them"
            )
            # Three seconds of them may come late, and so together with those that follow.
            for at, _, _ in (them := arrivals(reader, sms)):
                within = sum(at <= other < at + 6_000 for other, _, _ in them)
                assert within <= 6 * PER_SECOND + BURST + 3 * PER_SECOND
