"""REST on a real Redis: pages of what a filter selects, bulk changes, and their undo."""

import pytest
from rest_calls import FAR_MS, HOUR_MS, ids, refused, send

from sendlater.errors import BrokerUnavailable, StoreUnavailable
from sendlater.limits import (
    BULK_IDS_MAX,
)
from sendlater.store import Batch


def test_what_is_on_its_way_passes_the_same_filters(api, pending):
    for n in range(4):
        send(api, id=f"{'ab'[n % 2]}{n}", topic=["even", "odd"][n % 2], delay=0)
    owner = pending.fence()
    batch = Batch(lane=0, run=pending.open_lane(0, owner=owner), end_ms=FAR_MS)
    for shard in pending.shards:
        shard.claim(batch, owner=owner, now_ms=FAR_MS, count_max=5)
    claimed = {"state": "claimed"}
    assert sorted(ids(api.get("/v1/schedules", params=claimed))) == ["a0", "a2", "b1", "b3"]
    assert sorted(ids(api.get("/v1/schedules", params=claimed | {"topic": "odd"}))) == ["b1", "b3"]
    assert ids(api.get("/v1/schedules", params=claimed | {"id_prefix": "a2"})) == ["a2"]
    assert ids(api.get("/v1/schedules", params=claimed | {"due_from": "+1h"})) == []
    assert ids(api.get("/v1/schedules?state=claimed&due_from=+1h")) == []


def test_pages_show_each_once_with_every_filter(api, pending):
    for n in range(25):
        topic = "even" if n % 2 == 0 else "odd"
        send(api, id=f"{'ab'[n % 2]}{n:02}", topic=topic, due_ms=FAR_MS + n * 1000)
    found, query = [], {"limit": 7}
    while True:
        page = api.get("/v1/schedules", params=query)
        found += ids(page)
        if page.json()["next_cursor"] is None:
            break
        query["cursor"] = page.json()["next_cursor"]
    assert found == [f"{'ab'[n % 2]}{n:02}" for n in range(25)]
    assert len(ids(api.get("/v1/schedules", params={"topic": "odd"}))) == 12
    assert len(ids(api.get("/v1/schedules", params={"id_prefix": "a"}))) == 13
    within = {"due_from": "2030-03-17T17:46:42Z", "due_to": "2030-03-17T17:46:45Z"}
    assert ids(api.get("/v1/schedules", params=within)) == ["a02", "b03", "a04"]
    refused(api.get("/v1/schedules", params={"limit": 1001}), 400, "limit")
    refused(api.get("/v1/schedules", params={"cursor": "x"}), 422, "cursor: expected one")
    refused(api.get("/v1/schedules", params={"due_from": "noon"}), 422, "expected an RFC 3339")
    backwards = {"due_from": "+2h", "due_to": "+1h"}
    refused(api.get("/v1/schedules", params=backwards), 422, "before due_to, got +2h and +1h")


def test_a_caller_selects_and_the_last_come_first_if_asked(api, pending):
    for n in range(12):
        headers = [["CALLER_SERVICE", "shop" if n % 3 else "shopping"]] if n % 2 else []
        send(api, id=f"n{n:02}", due_ms=FAR_MS + n, headers=headers)
    shop = ["n01", "n05", "n07", "n11"]
    assert ids(api.get("/v1/schedules", params={"caller": "shop"})) == shop
    last = api.get("/v1/schedules", params={"caller": "shop", "order": "last", "limit": 3})
    assert ids(last) == shop[:0:-1]
    cursor = last.json()["next_cursor"]
    rest = api.get(
        "/v1/schedules", params={"caller": "shop", "order": "last", "cursor": cursor}
    ).json()
    assert ([one["id"] for one in rest["items"]], rest["next_cursor"]) == (["n01"], None)
    cancelled = api.post("/v1/schedules:cancel", json={"caller": "shop"}).json()
    assert cancelled["changed"] == 4
    assert pending.counts()["pending"] == 8
    refused(api.get("/v1/schedules", params={"order": "middle"}), 400, "order")


def test_a_bulk_change_is_counted_first_then_made_then_undone(api, pending):
    for n in range(20):
        send(api, id=f"n{n:02}", topic="ab"[n % 2], due_ms=FAR_MS + n)
    dry = api.post("/v1/schedules:cancel", json={"topic": "a", "dry_run": True}).json()
    assert (dry["matched"], dry["changed"], dry["audit_id"]) == (10, 0, None)
    assert pending.counts()["pending"] == 20
    done = api.post("/v1/schedules:cancel", json={"topic": "a"}).json()
    assert done["answers"] == {"cancelled": 10}
    assert pending.counts()["pending"] == 10
    (entry,) = api.get("/v1/audit").json()["items"][:1]
    assert (entry["action"], entry["count"], entry["who"]) == ("cancel", 10, "local")
    assert entry["what"] == {"topic": "a"}
    assert entry["can_undo"]
    back = api.post(f"/v1/audit/{entry['id']}:undo").json()
    assert back["answers"] == {"restored": 10}
    assert api.get("/v1/schedules/n00").json()["due_ms"] == FAR_MS
    refused(api.post(f"/v1/audit/{entry['id']}:undo"), 404, "undone already")


def test_a_spike_can_be_shifted_spread_and_put_back(api):
    for n in range(10):
        send(api, id=f"n{n}", due_ms=FAR_MS)
    shifted = api.post("/v1/schedules:reschedule", json={"shift": "2h", "all": True}).json()
    assert shifted["answers"] == {"moved": 10}
    due = [one["due_ms"] for one in api.get("/v1/schedules").json()["items"]]
    assert due == [FAR_MS + 2 * HOUR_MS] * 10
    spread = api.post("/v1/schedules:reschedule", json={"spread": 100, "id_prefix": "n"}).json()
    due = [one["due_ms"] for one in api.get("/v1/schedules").json()["items"]]
    assert due == [FAR_MS + 2 * HOUR_MS + n * 10_000 for n in range(10)]
    undone = api.post(f"/v1/audit/{spread['audit_id']}:undo").json()
    assert undone["answers"] == {"moved": 10}
    api.patch("/v1/schedules/n0", json={"due_ms": FAR_MS + 5})
    undone = api.post(f"/v1/audit/{shifted['audit_id']}:undo").json()
    assert undone["answers"] == {"changed": 1, "moved": 9}, "what was changed since stays"


def test_a_selection_too_large_to_change_is_counted_all_the_same(api, monkeypatch):
    monkeypatch.setattr("sendlater.server.bulk_changes.BULK_COUNT_MAX", 3)
    for n in range(5):
        send(api, id=f"n{n}", due_ms=FAR_MS + n)
    within = {"due_from": "2030-03-17T17:46:40Z"}
    dry = api.post("/v1/schedules:cancel", json={**within, "dry_run": True}).json()
    assert dry["matched"] == 5
    refused(api.post("/v1/schedules:cancel", json=within), 422, "at most 3, got 5")
    refused(api.post("/v1/schedules:cancel", json={"id_prefix": "n"}), 422, "got 4 or more")
    assert len(ids(api.get("/v1/schedules"))) == 5


def test_bulk_by_ids_and_bulk_refusals(api):
    send(api, id="a", delay="1h")
    got = api.post("/v1/schedules:deliver-now", json={"ids": ["a", "zz"]}).json()
    assert got["answers"] == {"unknown": 1, "moved": 1}
    both = {"ids": ["a"], "topic": "t"}
    refused(api.post("/v1/schedules:cancel", json=both), 422, "expected one of ids")
    fewer = {"ids": ["a"], "versions": []}
    refused(api.post("/v1/schedules:cancel", json=fewer), 422, "for each of the 1 ids")
    refused(api.post("/v1/schedules:cancel", json={"all": True, "versions": ["x"]}), 422, "0 ids")
    many = {"ids": ["a"] * (BULK_IDS_MAX + 1)}
    refused(api.post("/v1/schedules:cancel", json=many), 422, "at most")
    refused(api.post("/v1/schedules:reschedule", json={}), 422, "exactly one of shift")
    wrong = {"ids": ["a"], "shift": "soon"}
    refused(api.post("/v1/schedules:reschedule", json=wrong), 422, "with or without a sign")


def test_what_was_replaced_since_it_was_seen_stays(api):
    """Of those that are named with the version they had; without one, any is meant."""
    for name in "abc":
        send(api, id=name, due_ms=FAR_MS)
    seen = {one["id"]: one["version"] for one in api.get("/v1/schedules").json()["items"]}
    for name in "bc":
        send(api, id=name, due_ms=FAR_MS, value="newer")
    wanted = {"ids": ["a", "b", "c", "zz"], "versions": [seen["a"], seen["b"], "", "any"]}
    dry = api.post("/v1/schedules:cancel", json={**wanted, "dry_run": True}).json()
    assert (dry["matched"], dry["changed"]) == (4, 0)
    done = api.post("/v1/schedules:cancel", json=wanted).json()
    assert done["answers"] == {"cancelled": 2, "changed": 1, "unknown": 1}
    assert ids(api.get("/v1/schedules")) == ["b"]
    assert api.get("/v1/audit").json()["items"][0]["what"] == {"ids": wanted["ids"]}


@pytest.mark.parametrize("chosen", [{"id_prefix": "n"}, {"all": True}, {"ids": ["n0", "n1"]}])
def test_a_dry_run_refuses_what_the_change_would(api, chosen):
    """What recurs and is paused keeps its place, and is no reason."""
    for n in range(2):
        send(api, id=f"n{n}", due_ms=FAR_MS + n)
    send(api, id="n-every", every="1h")
    api.post("/v1/schedules/n-every:pause")
    for given in ({"shift": "3660d"}, {"spread": "3660d"}, {"due_ms": FAR_MS * 10}):
        told = [
            refused(
                api.post("/v1/schedules:reschedule", json={**chosen, **given, "dry_run": dry}),
                422,
                "within",
            )
            for dry in (True, False)
        ]
        assert told[0]["detail"] == told[1]["detail"]
    near = {**chosen, "shift": "1h", "dry_run": True}
    assert api.post("/v1/schedules:reschedule", json=near).status_code == 200


@pytest.mark.parametrize("chosen", [{"id_prefix": "n"}, {"all": True}, {"topic": "t"}])
def test_a_dry_run_tells_what_is_paused_and_stays(api, chosen):
    send(api, id="n0", topic="t", due_ms=FAR_MS)
    send(api, id="n-every", topic="t", every="1h")
    api.post("/v1/schedules/n-every:pause")
    given = {**chosen, "shift": "1h"}
    dry = api.post("/v1/schedules:reschedule", json={**given, "dry_run": True}).json()
    assert (dry["matched"], dry["answers"]) == (2, {"paused": 1})
    done = api.post("/v1/schedules:reschedule", json=given).json()
    assert done["answers"] == {"moved": 1, "paused": 1}
    assert (
        api.post("/v1/schedules:cancel", json={**chosen, "dry_run": True}).json()["answers"] == {}
    )
    assert api.post("/v1/schedules:cancel", json=chosen).json()["changed"] == 2


@pytest.mark.parametrize("deed", ["cancel", "deliver-now", "reschedule"])
def test_an_empty_filter_selects_nothing_and_everything_must_be_meant(api, deed):
    """A field left empty by mistake must not cancel or deliver all there is."""
    for n in range(3):
        send(api, id=f"n{n}", due_ms=FAR_MS)
    path, more = f"/v1/schedules:{deed}", {"shift": "1h"} if deed == "reschedule" else {}
    for empty in ({}, {"id_prefix": None}, {"all": False}, {"dry_run": True}):
        refused(api.post(path, json=more | empty), 422, '"all": true')
    for name in ("due_from", "due_to", "id_prefix", "topic", "tag", "caller"):
        unset = {**more, "id_prefix": "n", name: ""}
        refused(api.post(path, json=unset), 422, f"{name}: expected text that is not empty")
    refused(api.post(path, json={**more, "all": True, "topic": "orders"}), 422, "expected one of")
    assert {one["due_ms"] for one in api.get("/v1/schedules").json()["items"]} == {FAR_MS}
    assert api.get("/v1/audit").json()["items"] == []
    assert api.post(path, json={**more, "all": True}).json()["changed"] == 3
    assert api.get("/v1/audit").json()["items"][0]["what"] == {**more, "all": True}


def test_a_bulk_change_that_stops_in_the_middle_leaves_its_entry_and_its_undo(
    api, pending, monkeypatch
):
    """Its entry is there before the first change, and a chunk can be undone from before it is
    changed: this one fails after the store has changed it."""
    for n in range(10):
        send(api, id=f"n{n}", topic="t", due_ms=FAR_MS + n)
    operations = api.app.server_state.operations
    really, entries = operations.cancel_many, []

    def fails(ids, before, **more):
        answers = really(ids, before, **more)
        entries.append(api.get("/v1/audit").json()["items"][0])
        if len(entries) == 4:
            raise BrokerUnavailable("the inbox is away")
        return answers

    monkeypatch.setattr("sendlater.server.bulk_changes.PARK_COUNT_MAX", 2)
    with monkeypatch.context() as patched:
        patched.setattr(operations, "cancel_many", fails)
        asked = {"json": {"topic": "t"}, "headers": {"Idempotency-Key": "once"}}
        stopped = api.post("/v1/schedules:cancel", **asked)
        told = refused(stopped, 503, "stopped after 6 of 10")
        again = api.post("/v1/schedules:cancel", **asked)
    assert {(one["state"], one["can_undo"]) for one in entries} == {("begun", True)}
    assert (again.status_code, again.json()) == (503, told), "a repeated one changes no more"
    assert again.headers["idempotency-replayed"] == "true"
    (entry,) = api.get("/v1/audit").json()["items"]
    assert entry["id"] == told["audit_id"]
    assert (entry["state"], entry["count"], entry["can_undo"]) == ("failed", 6, True)
    assert pending.counts()["pending"] == 2

    write = operations.write
    with monkeypatch.context() as patched:
        patched.setattr(operations, "write", lambda some: [*write(some[:1]), StoreUnavailable("")])
        refused(api.post(f"/v1/audit/{entry['id']}:undo"), 503, "")
    assert pending.counts()["pending"] == 3
    assert api.post(f"/v1/audit/{entry['id']}:undo").json()["answers"] == {"restored": 7}
    assert ids(api.get("/v1/schedules")) == [f"n{n}" for n in range(10)]
    last, first, bulk = api.get("/v1/audit").json()["items"]
    assert [(one["state"], one["count"]) for one in (last, first)] == [("done", 7), ("failed", 1)]
    assert not bulk["can_undo"]


def test_an_undo_does_not_schedule_again_what_was_being_delivered(api, pending):
    for n in range(3):
        send(api, id=f"n{n}", due_ms=FAR_MS + n)
    found = [pending.get(b"n%d" % n) for n in range(3)]
    api.app.server_state.operations.admin.all = lambda *_, **__: iter(found)
    pending.cancel(b"n1")
    done = api.post("/v1/schedules:cancel", json={"id_prefix": "n"}).json()
    assert done["answers"] == {"cancelled": 2, "unknown": 1}
    assert api.post(f"/v1/audit/{done['audit_id']}:undo").json()["answers"] == {"restored": 2}


def test_a_single_change_is_audited_and_can_be_undone(api):
    send(api, id="a", due_ms=FAR_MS, key="k", headers=[["h", "1"]])
    before = api.get("/v1/schedules/a").json()
    api.patch("/v1/schedules/a", json={"due_ms": FAR_MS + 1})
    api.delete("/v1/schedules/a")
    cancel, move = api.get("/v1/audit").json()["items"]
    assert (cancel["action"], move["action"]) == ("cancel", "reschedule")
    assert api.post(f"/v1/audit/{cancel['id']}:undo").json()["answers"] == {"restored": 1}
    assert api.post(f"/v1/audit/{move['id']}:undo").json()["answers"] == {"moved": 1}
    assert api.get("/v1/schedules/a").json() == before
