"""Metrics say what the store holds, and say so when it does not answer."""

import re
import threading
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sendlater.clock import FixedClock
from sendlater.errors import BadSettings, StoreUnavailable
from sendlater.limits import OVERDUE_AFTER_MS
from sendlater.model import Reason, Record, Schedule
from sendlater.redis_client import address_of
from sendlater.service import metrics
from sendlater.service.metrics import MetricsServer, StoreMetrics
from sendlater.spark.delivery.lateness import LatenessReport
from sendlater.store import Admin, Move, Pending

NOW_MS = 10_000_000


def scrape(collector):
    server = MetricsServer("127.0.0.1:0", collector)
    try:
        with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        server.close()
    return {
        (s.name, *sorted(s.labels.items())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


@pytest.fixture
def pending(redis_url, space):
    return Pending.open(redis_url, space=space, shards=2)


def put(pending, schedule_id, due_ms):
    pending.put(Schedule(id=schedule_id, due_ms=due_ms, record=Record(topic="t", value=b"v")))


def test_every_number_is_of_the_store(pending):
    for n, due_ms in enumerate((NOW_MS - 90_000, NOW_MS - OVERDUE_AFTER_MS + 1, NOW_MS + 30_000)):
        put(pending, b"%d" % n, due_ms)
    put(pending, b"far", NOW_MS + 7_200_000)
    put(pending, b"far", NOW_MS + 7_200_001)
    put(pending, b"gone", NOW_MS)
    unmet = [b"far", f"if absent|{NOW_MS}", b""]
    pending.shard_of(b"far").park(unmet, ends=[("in/0", "", "1")])
    admin = Admin(pending)
    admin.cancel(b"gone")
    admin.move(Move(b"far", NOW_MS + 7_200_002))
    admin.tell({"rejected:no-time": 2}.items())
    told = LatenessReport(pending.shards[1], FixedClock(NOW_MS))
    told.delivered([b"a", b"b"], [NOW_MS - 250, NOW_MS], [b"orders", b"orders"])
    told.delivered([b"c"], [NOW_MS], [b"dead-letters"])
    told.delivered([b"d", b"e"], [0, 5], [b"sms", b"sms"], {b"d": NOW_MS - 400, b"e": NOW_MS - 5})
    told.flush()

    clock = FixedClock(NOW_MS)
    lag = {"in": 7}
    got = scrape(StoreMetrics(pending, lag=lambda: lag, dead_topic="dead-letters", clock=clock))

    assert got[("sendlater_up",)] == 1
    assert got[("sendlater_pending",)] == 4
    assert got[("sendlater_overdue",)] == 1
    assert got[("sendlater_oldest_overdue_seconds",)] == 90
    assert got[("sendlater_due", ("within", "1m"))] == 3
    assert got[("sendlater_due", ("within", "1d"))] == 4
    assert got[("sendlater_parked_total",)] == 6
    assert got[("sendlater_replaced_total",)] == 1
    assert got[("sendlater_unmet_total",)] == 1
    assert got[("sendlater_cancelled_total",)] == 1
    assert got[("sendlater_rescheduled_total",)] == 1
    assert got[("sendlater_rejected_total", ("reason", "no-time"))] == 2
    assert got[("sendlater_delivered_total", ("topic", "orders"))] == 2
    assert got[("sendlater_dead_total",)] == 1
    assert got[("sendlater_lateness_seconds_bucket", ("le", "0.2"))] == 3
    assert got[("sendlater_lateness_seconds_bucket", ("le", "0.5"))] == 5
    assert got[("sendlater_lateness_seconds_count",)] == 5
    assert got[("sendlater_lateness_seconds_sum",)] == 0.65
    held_s = (2 * NOW_MS - 405) / 1000
    assert got[("sendlater_limited_seconds_total", ("topic", "sms"))] == pytest.approx(held_s)
    assert got[("sendlater_limited",)] == 0
    assert got[("sendlater_intake_lag_records", ("inbox", "in"))] == 7
    server = address_of(pending.clients[0])
    assert got[("sendlater_redis_memory_bytes", ("server", server))] > 0


def test_a_broker_that_is_away_costs_the_lag_only(pending, monkeypatch):
    monkeypatch.setattr(metrics, "LAG_S_MAX", 0.01)
    there = threading.Event()

    def lag():
        there.wait(60)
        return {"in": 7}

    collector = StoreMetrics(pending, lag=lag)
    for _ in range(2):
        got = scrape(collector)
        assert got[("sendlater_up",)] == 1
        assert ("sendlater_intake_lag_records", ("inbox", "in")) not in got
    there.set()
    monkeypatch.setattr(metrics, "LAG_S_MAX", 60)
    assert scrape(collector)[("sendlater_intake_lag_records", ("inbox", "in"))] == 7


def test_every_reason_has_a_number_before_the_first_rejected_record(pending):
    got = scrape(StoreMetrics(pending, lag=dict))
    told = {key[1][1]: value for key, value in got.items() if "rejected" in key[0]}
    assert told == dict.fromkeys(Reason, 0)


def test_the_reference_names_each_metric_and_no_other(pending):
    Admin(pending).note({"canary-at-ms": NOW_MS, "canary-late-ms": 3})
    page = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
    documented = set(re.findall(r"^\| `(sendlater_\w+)", page.read_text(), re.MULTILINE))
    got = scrape(StoreMetrics(pending, lag=lambda: {"in": 0}, clock=FixedClock(NOW_MS)))
    families = {re.sub("_(bucket|count|sum|created)$", "", name) for name, *_ in got}
    # Without a sample there is no name: nothing has been delivered, rejected or expired here.
    unseen = {f"sendlater_{kind}_total" for kind in ("delivered", "rejected", "expired")}
    unseen.add("sendlater_limited_seconds_total")
    assert families | unseen == documented


def test_a_canary_that_never_comes_is_missed_too(pending):
    Admin(pending).note({"canary-since-ms": NOW_MS - 200_000})
    got = scrape(StoreMetrics(pending, lag=dict, clock=FixedClock(NOW_MS)))
    assert got[("sendlater_canary_age_seconds",)] == 200
    assert ("sendlater_canary_lateness_seconds",) not in got
    Admin(pending).note({"canary-at-ms": NOW_MS - 7_000, "canary-late-ms": 20})
    got = scrape(StoreMetrics(pending, lag=dict, clock=FixedClock(NOW_MS)))
    assert got[("sendlater_canary_age_seconds",)] == 7
    assert got[("sendlater_canary_lateness_seconds",)] == 0.02


def test_what_is_a_little_overdue_is_no_news(pending):
    """Between falling due and being claimed a few milliseconds pass: no alert must see them."""
    put(pending, b"a", NOW_MS - OVERDUE_AFTER_MS + 1)
    got = scrape(StoreMetrics(pending, lag=dict, clock=FixedClock(NOW_MS)))
    assert got[("sendlater_overdue",)] == 0
    assert got[("sendlater_oldest_overdue_seconds",)] == 0


def test_a_store_that_does_not_answer_is_a_metric_too(pending, monkeypatch):
    def silent(self):
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(Pending, "counts", silent)
    assert scrape(StoreMetrics(pending, lag=silent.__get__(pending)))[("sendlater_up",)] == 0


def test_an_address_that_cannot_be_used_is_told_in_words(pending):
    with pytest.raises(BadSettings, match="metrics_addr: cannot listen on 'nonsense'"):
        MetricsServer("nonsense", StoreMetrics(pending, lag=dict))
