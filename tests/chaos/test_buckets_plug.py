"""Pull the plug on a service that keeps its schedules in Kafka alone: nothing lost, few doubled.

SENDLATER_TEST_BUCKETS=full runs it at full size: 20,000 schedules over three minutes, five kills.
"""

import math
import os
import time
from collections import Counter

import pytest
from ledger import Ledger, Reader, create_topics
from servers import ServiceProcess, wait_until

pytestmark = pytest.mark.chaos

FULL = os.environ.get("SENDLATER_TEST_BUCKETS") == "full"
COUNT, SPREAD_MS, KILLS = (20_000, 180_000, 5) if FULL else (2_000, 20_000, 1)


@pytest.fixture
def service(kafka, space, topic_name, tmp_path):
    inbox, rejected = topic_name("in"), topic_name("bad")
    create_topics(kafka, inbox, topic_name("out"), rejected)
    settings = {
        "bootstrap_servers": kafka,
        "pending": "buckets",
        "space": space,
        "inboxes": f'[{{"topic": "{inbox}"}}]',
        "rejected_topic": rejected,
    }
    with ServiceProcess(tmp_path, **settings) as service:
        yield service


@pytest.fixture
def ledger(kafka, topic_name):
    return Ledger(kafka, inbox=topic_name("in"), target=topic_name("out"))


def send_spread(ledger, *, count=COUNT, spread_ms=SPREAD_MS):
    began_ms = time.time_ns() // 1_000_000
    for number in range(count):
        ledger.send(began_ms + number * spread_ms // count)
    ledger.flush()
    return began_ms


@pytest.mark.timeout(900)
def test_killed_again_and_again_it_loses_nothing_and_doubles_little(
    kafka, service, ledger, topic_name, space
):
    service.start()
    with Reader(kafka, topic_name("out")) as out, Reader(kafka, f"^{space}-bucket-.*") as buckets:
        began_ms = send_spread(ledger)
        for kill in range(1, KILLS + 1):
            wait_until(
                lambda: len(out.messages) >= kill * COUNT // (KILLS + 2),  # noqa: B023
                f"enough has arrived before kill {kill}",
                timeout_s=SPREAD_MS / 1_000 + 60,
            )
            service.kill()
            service.start()
        wait_until(lambda: not ledger.missing(out), "everything has arrived", timeout_s=240)

        assert not ledger.early(out)
        # What a pass that died wrote and the next wrote again, if a batch ended between the two.
        doubled = ledger.doubled(out)
        assert len(doubled) <= KILLS * 1_000 * COUNT // SPREAD_MS, len(doubled)
        keys = [m.key().decode() for m in buckets.messages if m.key() is not None]
        written = Counter(key for key in keys if key in ledger.due_ms)
    for name, count in written.items():
        delay_s = max(1.0, (ledger.due_ms[name] - began_ms) / 1_000)
        most = 2 * math.log2(delay_s) + 3 + 2 * KILLS
        assert count <= most, f"{name}: written {count} times, for a delay of {delay_s} s"
