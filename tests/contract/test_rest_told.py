"""REST on a real Redis: numbers, deliveries, versions and rejected records."""

import time
from dataclasses import asdict
from urllib.parse import quote_from_bytes

from rest_calls import FAR_MS, HOUR_MS, refused, send, settings_for

from sendlater.brokers.redis import open_topics
from sendlater.client.event_worker import Tally
from sendlater.limits import (
    HANDLERS_HEARD_MS,
    ID_BYTES_MAX,
)
from sendlater.model import DUE_MS_MAX, Record
from sendlater.store.at_work import Handling
from sendlater.store.recent import Delivery, tell


def test_what_workers_tell_is_summed_by_group_and_event_type(api, pending):
    """On Redis each counts what is ready for its whole group. Who is silent is forgotten."""
    now_ms = time.time_ns() // 1_000_000
    ours = asdict(Tally(taken=9, succeeded=5, retried=2, dead=1, ready=3, in_flight=1, seconds=2.5))
    handling = Handling(pending)
    for worker, group, heard_ms in (
        ("a", "g", now_ms),
        ("b", "g", now_ms),
        ("c", "h", now_ms),
        ("d", "g", now_ms - 2 * HANDLERS_HEARD_MS),
    ):
        handling.tell(worker, group, {"orders": ours | {"error": worker}}, now_ms=heard_ms)
    told = api.get("/v1/running").json()
    assert told["services"] == {"active": None, "standby": [], "handovers": []}
    both, one = told["handlers"]
    assert (both["group"], both["type"], both["workers"], both["ready"]) == ("g", "orders", 2, 3)
    assert (both["in_flight"], both["succeeded"], both["seconds"]) == (2, 10, 5.0)
    assert both["errors"] == ["a", "b"]
    assert (one["group"], one["workers"], one["dead"]) == ("h", 1, 1)
    handling.forget("a", "b")
    assert [one["group"] for one in api.get("/v1/running").json()["handlers"]] == ["h"]


def test_numbers_are_true(api):
    for n in range(10):
        send(api, due_ms=FAR_MS + n, topic="ab"[n % 2])
    send(api, delay="30s")
    stats = api.get("/v1/stats").json()
    assert (stats["pending"], stats["due"]["1m"], stats["overdue"]) == (11, 1, 0)
    assert stats["why"] == ["No service has run on this store yet: nothing is delivered."]
    whole = api.get("/v1/histogram", params={"buckets": 2}).json()
    assert (whole["counts"], whole["recurring"], whole["held"]) == ([1, 10], [0, 0], [0, 0])
    spike = {"due_from": str(FAR_MS // 1000), "due_to": str(FAR_MS / 1000 + 0.01), "buckets": 10}
    narrow = api.get("/v1/histogram", params=spike).json()
    assert narrow["counts"] == [1] * 10
    assert narrow["topics"] == {"a": [1, 0] * 5, "b": [0, 1] * 5}
    assert (narrow["estimated"], narrow["sampled"]) == ([False] * 10, False)
    hours = {"due_from": "7199.5", "due_to": "14401", "buckets": 2, "round": "true"}
    edges = api.get("/v1/histogram", params=hours).json()["edges_ms"]
    assert edges == [n * 7_200_000 for n in range(4)], "more than an hour each, so two"
    assert "sendlater_pending 11.0" in api.get("/metrics").text
    assert api.get("/healthz").text == "ok\n"
    assert api.get("/readyz").text == "ready\n"


def test_rejected_records_are_found_and_sent_again(api, pending, redis_url, space):
    headers = [("sendlater-rejected", b"no-time"), ("sendlater-rejected-target", b"orders")]
    with open_topics(redis_url, settings_for(redis_url, space)) as topics:
        for n in range(3):
            value = b"value %d" % n
            topics.produce(Record(topic="rejected", key=b"k", value=value, headers=headers))
    listed = api.get("/v1/records", params={"search": "value 1"}).json()["items"]
    assert [(one["value"], one["reason"]) for one in listed] == [("value 1", "no-time")]
    places = [listed[0]["place"], "0/1", f"9/{2**63}"]
    body = {"topic": "rejected", "places": places, "delay": "1h"}
    told = api.post("/v1/records:redrive", json=body).json()
    assert told["redriven"] == 1
    assert [one["place"] for one in told["skipped"]] == places[1:]
    (again,) = pending.list(count_max=9)
    assert (again.record.topic, again.record.key, again.record.value) == (
        "orders",
        b"k",
        b"value 1",
    )
    assert again.record.headers == []


def test_what_was_rejected_of_a_schedule_is_found_by_its_id(api, redis_url, space):
    """By its key if it never was one, else by its own header: its key may be another one's id."""
    why = ("sendlater-rejected", b"no-time")
    with open_topics(redis_url, settings_for(redis_url, space)) as topics:
        topics.produce(Record(topic="rejected", key=b"k", value=b"1", headers=[why]))
        was = [why, ("sendlater-rejected-id", b"\xffk")]
        topics.produce(Record(topic="rejected", key=b"k", value=b"2", headers=was))
        topics.produce(Record(topic="rejected", key=b"kk", value=b"3", headers=[why]))
    for named, values in (("k", ["1"]), ("%FFk", ["2"]), ("x", [])):
        items = api.get(f"/v1/records?id={named}").json()["items"]
        assert [one["value"] for one in items] == values
    assert "or rejected" in refused(api.get("/v1/schedules/k"), 404, "unknown")["detail"]


def test_a_dead_event_is_sent_to_its_handlers_with_all_attempts_before_it(
    api, pending, redis_url, space
):
    headers = [("context-who", b"me"), ("retry-attempt", b"3"), ("event-id", b"7")]
    told = [("event-type", b"remind"), ("event-error", b"ValueError: no"), ("sendlater-id", b"x")]
    with open_topics(redis_url, settings_for(redis_url, space)) as topics:
        topics.create("dead-letters", 1)
        topics.produce(Record(topic="dead-letters", value=b"e", headers=headers + told))
    (dead,) = api.get("/v1/records", params={"topic": "dead-letters"}).json()["items"]
    assert (dead["event_type"], dead["event_error"]) == ("remind", "ValueError: no")
    body = {"topic": "dead-letters", "places": [dead["place"]]}
    assert api.post("/v1/records:redrive", json=body).json() == {"redriven": 1, "skipped": []}
    (again,) = pending.list(count_max=9)
    assert (again.record.topic, again.record.value) == ("remind", b"e")
    assert again.record.headers == [("context-who", b"me"), ("event-id", b"7")]


def test_the_versions_and_the_deliveries_of_one_are_found(api, redis_url, space):
    with open_topics(redis_url, settings_for(redis_url, space)) as topics:
        for n in range(3):
            topics.produce(Record(topic="schedules", key=b"k1", value=b"%d" % n))
            topics.produce(Record(topic="schedules", key=b"k10", value=b"another"))
            named = [("sendlater-id", b"k1")]
            topics.produce(Record(topic="orders", value=b"%d" % n, headers=named))
    versions = api.get("/v1/records", params={"topic": "schedules", "key": "k1"}).json()["items"]
    assert [one["value"] for one in versions] == ["2", "1", "0"]
    asked = {"topic": "orders", "id": "k1", "since_ms": versions[0]["at_ms"]}
    assert len(api.get("/v1/records", params={**asked, "since_ms": 0}).json()["items"]) == 3
    late = {**asked, "since_ms": versions[0]["at_ms"] + HOUR_MS}
    assert api.get("/v1/records", params=late).json()["items"] == []
    refused(api.get("/v1/records", params={"since_ms": 1}), 422, "expected one of search, key")
    refused(api.get("/v1/records", params={**asked, "key": "k1"}), 422, "expected one of")


def test_the_versions_of_an_id_that_is_no_text_are_those_of_nobody_else(api, redis_url, space):
    with open_topics(redis_url, settings_for(redis_url, space)) as topics:
        for key in (b"\xff", b"\xfe", "\ufffd".encode(), b"a b+c", b""):
            named = [("sendlater-id", key)]
            topics.produce(Record(topic="schedules", key=key, value=b"of " + key, headers=named))
    asked = {"%FF": b"\xff", "%EF%BF%BD": "\ufffd".encode(), "a+b%2Bc": b"a b+c"}
    for name, key in asked.items():
        for query in (f"key={name}", f"id={name}&since_ms=0"):
            items = api.get(f"/v1/records?topic=schedules&{query}").json()["items"]
            assert [one["value_bytes"] for one in items] == [len(b"of " + key)], query


def test_a_topic_is_followed_call_by_call(api, redis_url, space):
    refused(api.get("/v1/records:follow", params={"topic": "t"}), 404, "no topic t")
    with open_topics(redis_url, settings_for(redis_url, space)) as topics:
        topics.create("t", 2)
        for n in range(5):
            topics.produce(Record(topic="t", value=b"%d" % n, partition=n % 2))
        seen, query = [], {"topic": "t", "from_start": True, "limit": 2}
        while len(seen) < 5:
            told = api.get("/v1/records:follow", params=query).json()
            assert len(told["items"]) <= 2
            seen += [one["value"] for one in told["items"]]
            query["cursor"] = told["cursor"]
        assert sorted(seen) == ["0", "1", "2", "3", "4"]
        told = api.get("/v1/records:follow", params={"topic": "t"}).json()
        assert told["items"] == [], "without a cursor: what comes from now on"
        topics.produce(Record(topic="t", value=b"new", partition=1))
        query["cursor"] = told["cursor"]
        (new,) = api.get("/v1/records:follow", params=query).json()["items"]
        assert new["value"] == "new"
    refused(api.get("/v1/records:follow?topic=t&cursor=x"), 400, "cursor")


def test_the_deliveries_of_the_longest_id_are_found_and_of_no_other(api, pending):
    longest = b"L" * ID_BYTES_MAX
    ids_told = [longest, b"a", b"ab", b"\xff"]
    tell(pending.shards[0], {}, [Delivery(one, "orders", 10, 20, 6) for one in ids_told])
    for search in (longest.decode(), f"{longest.decode()}@{DUE_MS_MAX}"):
        for path in ("/v1/deliveries", "/v1/records"):
            assert api.get(path, params={"search": search}).status_code == 200
    refused(api.get("/v1/records", params={"search": search + "x"}), 400, "search")
    for one in ids_told:
        found = api.get(f"/v1/deliveries?id={quote_from_bytes(one)}&limit=1").json()["items"]
        assert [(item["late_ms"], item["held_ms"]) for item in found] == [(4, 6)], one
    assert api.get("/v1/deliveries?id=b").json()["items"] == []
