"""The comparison with other systems, its pure parts: workloads, bounds, figures, tables."""

import json
import os
import re
import shutil
import sys
import threading
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import bench.__main__ as door
import bench.measure
import bench.soak
import bench.workloads
from bench.__main__ import FAILED, OK, compare, main
from bench.bounds import BOUNDS, Bound, judge
from bench.cost import DELIVERED, JAVA, STEADY, STORE, TAKEN_IN, WORKER, Meter, Reading, cost_tables
from bench.cost import _between as between_readings
from bench.cost import _threads as threads_of
from bench.measure import figures, measure
from bench.report import COLUMNS, markdown, page, verdicts, workload_table
from bench.soak import drift, plot, soak
from bench.system import Servers, System
from bench.systems import SYSTEMS
from bench.workloads import (
    BURST_MARGIN_MS,
    CANCEL,
    LEAD_MS,
    MOVE,
    SCHEDULE,
    WORKLOADS,
    Workload,
    due_times,
    plan,
)
from sendlater.bench.ledger import Ledger
from sendlater.errors import BadRequest, MissingTool, Unavailable

ROOT = Path(__file__).parents[2]


def run_of(**changed):
    """What one run of a load has shown: 4 messages, one of them 8 ms late."""
    ledger = Ledger(due_ms=[1_000] * 4)
    ledger.arrived([(0, 1_000), (1, 1_002), (2, 1_008), (3, 1_001)])
    told = figures(ledger, used_s={"broker": 0.25, "sender": 0.15}, span_s=2.0)
    return {
        **told,
        "unwanted": 0,
        "memory_mib": {"broker": 10.0},
        "memory_total_mib": 10,
        **changed,
    }


def result_of(results, scale=1.0):
    about = {"versions": {"thing": "1.2"}, "settings": {"acks": "all, as it must be"}}
    names = {name: about for systems in results.values() for name in systems}
    machine = "A machine."
    told = {"machine": machine, "load_before": 0.1, "scale": scale}
    return {**told, "systems": names, "results": results}


def burst(rate, **wrong):
    return {"first": run_of(delivered_per_s=rate, **wrong), "warm": run_of(delivered_per_s=rate)}


def test_a_steady_load_orders_each_message_at_its_time():
    load = Workload(name="x", rate=10, seconds=2, delays_ms=(0, 500))
    orders = plan(load, first=100, sends_per_s=1)

    assert [o.number for o in orders] == list(range(100, 120))
    assert [o.at_ms for o in orders[:3]] == [0, 100, 200]
    assert [o.due_ms for o in orders[:4]] == [0, 600, 200, 800]
    assert due_times(orders) == [o.due_ms for o in orders]


def test_a_burst_is_due_when_a_slow_system_has_taken_it_in():
    orders = plan(Workload(name="x", burst=1_000), first=0, sends_per_s=500)

    assert {(o.at_ms, o.due_ms) for o in orders} == {(0, BURST_MARGIN_MS + 2_000)}
    assert len({o.number for o in orders}) == 1_000


def test_a_herd_is_a_steady_load_and_a_burst_at_the_end_of_each_period():
    load = Workload(name="x", rate=10, seconds=20, burst=50, every_s=10)
    orders = plan(load, first=0, sends_per_s=1)
    due = Counter(due_times(orders))

    assert sum(due.values()) == 10 * 20 + 2 * 50
    assert due[10_000 + LEAD_MS] >= 50
    assert due[20_000 + LEAD_MS] >= 50
    assert [o.at_ms for o in orders] == sorted(o.at_ms for o in orders)
    assert all(o.due_ms - o.at_ms >= LEAD_MS - 1 for o in orders), "in good time"


def test_with_changes_a_third_is_moved_and_a_third_must_not_arrive():
    orders = plan(Workload(name="x", rate=30, seconds=3, changes=True), first=0, sends_per_s=1)
    verbs = Counter(o.verb for o in orders)
    cancelled = {o.number for o in orders if o.verb == CANCEL}
    scheduled_ms = {o.number: o.due_ms for o in orders if o.verb == SCHEDULE}
    moved = [o for o in orders if o.verb == MOVE]

    assert verbs == {SCHEDULE: 90, MOVE: 30, CANCEL: 30}
    assert cancelled == {n for n in scheduled_ms if n < 0}
    assert all(o.due_ms > scheduled_ms[o.number] for o in moved)
    due = due_times(orders)
    assert len(due) == 60
    assert all(due[o.number] == o.due_ms for o in moved), "the last order counts"


def test_two_runs_of_a_load_share_no_number():
    load = Workload(name="x", rate=30, seconds=3, changes=True)
    first, warm = ({o.number for o in plan(load, first=f, sends_per_s=1)} for f in (0, 1_000))

    assert not first & warm


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_every_workload_can_be_made_small(workload):
    small = workload.scaled(0.001)

    assert (small.rate, small.delays_ms, small.name) == (
        workload.rate,
        workload.delays_ms,
        workload.name,
    )
    assert small.most <= max(300, workload.most // 100)
    assert workload.scaled(1.0) == workload
    assert bool(plan(small, first=0, sends_per_s=100)) == bool(workload.rate or workload.burst)


def test_bounds_name_workloads_and_systems_that_exist():
    workloads = {workload.name for workload in WORKLOADS}
    systems = {system.name for system in SYSTEMS}
    for bound in BOUNDS:
        assert {bound.workload, bound.than_workload or bound.workload} <= workloads, str(bound)
        assert {bound.system, bound.than or bound.system} <= systems, str(bound)
        assert {bound.figure, bound.than_figure or bound.figure} <= {*COLUMNS.values()}, (
            f"no table shows it: {bound}"
        )


def test_a_ratio_of_two_systems_is_held_against_its_bound():
    bound = Bound(workload="w", figure="warm.delivered_per_s", than="NATS", at_least=4)
    slow = {"w": {"sendlater": burst(39), "NATS": burst(10)}}
    fast = {"w": {"sendlater": burst(40), "NATS": burst(10)}}

    assert bound.value(slow) == 3.9
    assert not bound.holds(3.9)
    assert bound.value(fast) == 4.0
    assert bound.holds(4.0)
    assert bound.value({"w": {"sendlater": burst(39)}}) is None, "not measured"
    assert bound.value({"w": {"sendlater": burst(39), "NATS": {"left_out": "failed"}}}) is None


def test_a_run_fails_by_a_bound_and_a_small_one_only_by_its_balance():
    name = "burst 300,000"
    short = {name: {"sendlater": burst(100), "NATS": burst(100)}}

    def failed(results, scale):
        return [str(v) for v in judge(results, scale=scale) if v.failed]

    assert len(failed(short, 1.0)) == 2
    assert failed(short, 0.1) == []
    losing = {name: {"sendlater": burst(100, lost=1), "NATS": burst(100, lost=5)}}
    told = "FAILED (1): burst 300,000: first.lost of sendlater: at most 0"
    assert failed(losing, 0.1) == [told]
    assert verdicts(result_of(losing))[-2:] == [
        told,
        "holds: 7 counts of what sendlater lost, doubled, sent early or unwanted are 0",
    ]


def test_figures_count_cpu_for_each_message_and_lateness_by_share():
    told = run_of()

    assert (told["delivered"], told["lost"], told["late_ms"]["max"]) == (4, 0, 8)
    assert told["cpu_us_per_message"] == 100_000
    assert told["cpu_us_of"] == {"broker": 62_500, "sender": 37_500}
    assert told["cpu_cores"] == 0.2
    assert told["delivered_per_s"] == 500, "4 in 8 ms"
    assert told["late_ms_at"][0] == [0, 0]
    assert told["late_ms_at"][-1] == [100, 8]


def test_a_load_without_messages_has_cpu_alone():
    told = figures(Ledger(), used_s={"service": 1.0}, span_s=10.0)

    assert (told["cpu_cores"], told["cpu_us_per_message"], told["late_ms_at"]) == (0.1, None, [])


def test_a_table_leaves_out_columns_that_nobody_has_and_tells_who_is_missing():
    text = workload_table({"sendlater": burst(500), "dramatiq": {"left_out": "cannot cancel"}})
    head, _, row = text.splitlines()[:3]

    assert "pending sent/s" not in head
    assert head.count("|") == row.count("|")
    assert row.startswith("| sendlater | 2 | 8 | 8 | 8 | 500 |")
    assert text.endswith("dramatiq: cannot cancel.")
    assert workload_table({"NATS": {"cold_s": 2.5}}).splitlines()[2] == "| NATS | 2.5 |"


def test_the_page_has_the_plots_and_needs_no_network():
    idle = run_of(scheduled=0, late_ms_at=[])
    results = {"burst 300,000": {"sendlater": burst(500)}, "idle": {"NATS": {"warm": idle}}}
    html = page(result_of(results))

    assert html.count("Plotly.newPlot(") >= 6, "four of the burst, two of idle"
    assert not re.search(r"<(script|link)[^>]*(src|href)=", html)
    assert "<h2>burst 300,000</h2>" in html


def test_the_documentation_is_made_from_the_json(tmp_path):
    result = result_of({"burst 300,000": {"sendlater": burst(500)}}, scale=0.5)
    (tmp_path / "compare.json").write_text(json.dumps(result))
    costs = cost_result()
    (tmp_path / "cost.json").write_text(json.dumps(costs))
    made = shutil.copy(ROOT / "docs" / "performance.md", tmp_path)
    for _ in range(2):
        assert main(["document", "--results", str(tmp_path), "--page", str(made)]) == OK
    text = Path(made).read_text()

    assert text.count(markdown(result)) == text.count(cost_tables(costs)) == 1
    for told in ("A machine.", "0.5 times", "### Burst 300,000", "- acks: all", "thing 1.2"):
        assert told in text


def test_small_loads_are_not_what_is_published(tmp_path, capsys):
    result = result_of({"burst 300,000": {"sendlater": burst(500)}}, scale=0.5)
    (tmp_path / "compare.json").write_text(json.dumps(result))
    published = (ROOT / "docs" / "performance.md").read_text()
    with pytest.raises(SystemExit):
        main(["document", "--results", str(tmp_path)])

    assert "expected full loads for performance.md, found scale 0.5" in capsys.readouterr().err
    assert (ROOT / "docs" / "performance.md").read_text() == published


def cost_result():
    """Of a second in which Java's threads used 0.3 s, a worker 0.2 and a client 0.1, for 1,000."""
    store = dict.fromkeys(STORE, 5_000.0)
    lane, rows, gone = (9, 9), (7, 70), 2.5
    before = Reading(
        10.0,
        {lane: 1.0, rows: 1.0},
        {lane: (WORKER, "python"), rows: (JAVA, "Executor task i")},
        {(7, JAVA): gone, (9, WORKER): 1.5},
        store,
    )
    after = Reading(
        11.0,
        {lane: 1.2, rows: 1.1},
        {lane: (WORKER, "sl-lane-1"), rows: (JAVA, "Executor task l")},
        {(7, JAVA): gone + 0.3, (9, WORKER): 1.7, (5, "sender"): 0.1},
        {name: count + 2_000 for name, count in store.items()},
    )
    told = between_readings(before, after, 1_000)
    loads = dict.fromkeys((STEADY, TAKEN_IN, DELIVERED), told)
    return {"machine": "A machine.", **loads, "log_bytes": {"inbox": 210.4, "cost1": 105.0}}


def test_what_a_message_costs_is_told_by_step():
    told = cost_result()[STEADY]
    used = {step: us for step, us in told["cpu_us"].items() if us}
    assert used == {
        "the client encodes and sends": 100,
        "lanes claim": 200,
        "Spark moves rows": 100,
        "all else in Java": 200,
    }
    assert (told["cores"], set(told["store"].values())) == (0.6, {2.0})
    text = cost_tables(cost_result())
    assert "| lanes claim | 200 | 200 | 200 |" in text
    assert "| **all** | 600 | 600 | 600 |" in text
    assert "takes 210 bytes on the inbox, 105 on its target" in text


def test_processes_and_threads_are_metered_where_they_are():
    done = threading.Event()
    mine = threading.Thread(target=done.wait)
    mine.start()
    drivers = SimpleNamespace(processes={"service": os.getpid()})
    store = SimpleNamespace(info=lambda: dict.fromkeys(STORE, 1))
    try:
        told = Meter(drivers, store).read()
        assert told.processes_s[os.getpid(), "service"] > 0
        found = {thread: name for thread, name, _ in threads_of(psutil.Process(), JAVA)}
        assert (os.getpid(), mine.native_id) in found
        assert found[os.getpid(), os.getpid()] == Path("/proc/self/comm").read_text().strip()
    finally:
        done.set()
        mine.join()


def system_of(name, servers):
    return System(
        name=name,
        settings={},
        versions=dict,
        sender=["true"],
        receiver=["true"],
        servers=servers,
        verbs="s",
        rate_max=5,
        messages_max=10,
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["compare", "--scale=0"], "above zero, got '0'"),
        (["compare", "--scale=nan"], "above zero, got 'nan'"),
        (["compare", "--scale=much"], "above zero, got 'much'"),
        (["soak", "--minutes=-1"], "above zero, got '-1'"),
        (["soak", "--rate=inf"], "above zero, got 'inf'"),
        (["document", "--results=/nowhere"], "in /nowhere, found none"),
        (["cost", "--results=/dev/null/x"], "a folder for results, /dev/null/x: Not a directory"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_sentence(words, told, capsys):
    with pytest.raises(SystemExit):
        main(words)
    assert told in capsys.readouterr().err


def test_a_system_that_fails_or_does_not_fit_leaves_the_others_their_figures(
    tmp_path, monkeypatch, capsys
):
    def broken(_directory: Path) -> Servers:
        raise Unavailable("it does not start")

    systems = [system_of("NATS", broken), system_of("sendlater", broken)]
    load = Workload(name="burst 300,000", burst=5)
    assert compare(systems[:1], [load], scale=1.0, results=tmp_path) == FAILED
    assert "NATS: failed: it does not start." in capsys.readouterr().out

    rates = {"NATS": 100, "sendlater": 100}
    monkeypatch.setattr(door, "measure", lambda system, _load, *, tell: burst(rates[system.name]))
    assert compare(systems, [load], scale=1.0, results=tmp_path) == FAILED, "a bound"
    rates["sendlater"] = 1_000
    assert compare(systems, [load], scale=1.0, results=tmp_path) == OK
    assert "holds (10): burst 300,000" in capsys.readouterr().out
    told = json.loads((tmp_path / "compare.json").read_text())
    warm = next(one for one in told["bounds"] if "warm" in one["bound"])
    assert (told["scale"], warm["value"], warm["holds"]) == (1.0, 10, True)
    assert (tmp_path / "compare.html").exists()

    more = Workload(name="x", burst=5)
    assert compare(systems[:1], [more], scale=1.0, results=tmp_path, add=True) == OK
    both = json.loads((tmp_path / "compare.json").read_text())["results"]
    told = {name: list(found) for name, found in both.items()}
    assert told == {"burst 300,000": ["sendlater", "NATS"], "x": ["NATS"]}, "not as they ran"
    with pytest.raises(BadRequest, match=r"expected results of .*0\.5.* found .*1\.0"):
        compare(systems, [load], scale=0.5, results=tmp_path, add=True)
    with pytest.raises(SystemExit):
        main(["compare", "--add", "--scale=0.5", "--workload=idle", f"--results={tmp_path}"])
    assert "expected results of" in capsys.readouterr().err

    (tmp_path / "compare.json").write_text("{")
    with pytest.raises(BadRequest, match=r"expected results in .*compare\.json, it cannot be read"):
        compare(systems, [load], scale=1.0, results=tmp_path, add=True)

    def no_go() -> None:
        raise MissingTool("expected go on PATH, found none")

    absent = replace(systems[0], install=no_go)
    assert compare([absent, systems[1]], [load], scale=1.0, results=tmp_path) == FAILED
    told = capsys.readouterr().out
    assert "NATS: failed: expected go on PATH, found none." in told
    assert "| sendlater |" in told

    unfit = [
        Workload(name="x", burst=11),
        Workload(name="y", rate=1, seconds=1, changes=True),
        Workload(name="z", rate=6, seconds=1),
    ]
    assert [systems[0].unfit(one) for one in (load, *unfit)] == [
        None,
        "more than 10 messages at once",
        "cannot move or cancel",
        "more than 5 messages a second",
    ]


def test_what_is_installed_is_pinned():
    """An exact version for each package that is asked for, and hashes where the tool has them."""
    drivers = ROOT / "bench" / "drivers"
    wanted = json.loads((drivers / "node" / "package.json").read_text())["dependencies"]
    locked = json.loads((drivers / "node" / "package-lock.json").read_text())["packages"]
    for name, version in wanted.items():
        assert locked[f"node_modules/{name}"]["version"] == version
    assert all("integrity" in about for path, about in locked.items() if path)
    text = (drivers / "python" / "requirements.txt").read_text()
    assert text.count("==") <= text.count("--hash=")
    assert "http" not in text + json.dumps(locked)


SENDER = """
import os, sys
fault, due = sys.argv[1], {}
print("ready", flush=True)
for line in sys.stdin:
    verb, *rest = line.split()
    if verb in "sm":
        due[rest[0]] = int(rest[1])
    elif verb == "c":
        due.pop(rest[0]) if fault != "unwanted" else None
    else:
        lines = [f"{number} {at_ms + 3}\\n" for number, at_ms in due.items()]
        if fault == "ends":
            sys.exit("it has a bad day")
        changed = {"lost": lines[:-1], "duplicated": lines + lines[-1:]}.get(fault, lines)
        with open(os.environ["BENCH_ARRIVALS"], "a") as file:
            file.write("".join(changed))
        due.clear()
        print("flushed", flush=True)
"""
RECEIVER = """
import os, signal
with open(os.environ["BENCH_ARRIVALS"], "a") as file:
    file.write("ready\\n")
signal.pause()
"""

KEEPING = """
import os, signal, time
with open(os.environ["BENCH_ARRIVALS"], "a") as file:
    file.write(f"ready\\n0 {time.time_ns() // 10**6}\\n")
signal.pause()
"""


def pretended(fault):
    """A system without servers that "delivers" all at once, 3 ms late, and has one fault."""
    return System(
        name="pretended",
        settings={},
        versions=dict,
        sender=[sys.executable, "-c", SENDER, fault],
        receiver=[sys.executable, "-c", RECEIVER],
        servers=lambda _directory: nullcontext(Servers({}, {})),
    )


@pytest.mark.parametrize("fault", ["none", "lost", "duplicated", "unwanted"])
def test_a_run_finds_what_a_system_does_wrong(fault, monkeypatch):
    monkeypatch.setattr(bench.measure, "QUIET_S", 0.5)
    monkeypatch.setattr(bench.workloads, "CHANGE_AFTER_MS", 10)
    monkeypatch.setattr(bench.workloads, "MOVED_BY_MS", 100)
    load = Workload(name="x", rate=300, seconds=0.1, delays_ms=(0,), changes=True)
    told = measure(pretended(fault), load, tell=lambda _line: None)

    for phase in ("first", "warm"):
        counts = {name: told[phase][name] for name in ("lost", "early", "duplicated", "unwanted")}
        wrong = {"unwanted": 10}.get(fault, 1)
        assert counts == {name: wrong * (name == fault) for name in counts}
        assert told[phase]["scheduled"] == 20
        assert told[phase]["late_ms"]["max"] == 3
        assert set(told[phase]["memory_mib"]) == {"sender", "receiver"}


def test_a_driver_that_ends_is_told_with_its_last_words():
    load = Workload(name="x", rate=300, seconds=0.1)
    with pytest.raises(Unavailable, match="it has a bad day"):
        measure(pretended("ends"), load, tell=lambda _line: None)


def test_a_restart_counts_from_the_start_of_the_servers_to_the_first_delivery(monkeypatch):
    """The pretended system keeps nothing; but for one that delivers what it finds in a file."""
    monkeypatch.setattr(bench.measure, "QUIET_S", 0.5)
    monkeypatch.setattr(bench.measure, "RESTART_DUE_MS", 10)
    load = Workload(name="x", pending=5, restart=True)
    with pytest.raises(Unavailable, match="nothing was delivered"):
        measure(pretended("none"), load, tell=lambda _line: None)

    keeping = replace(pretended("none"), receiver=[sys.executable, "-c", KEEPING])
    told = measure(keeping, load, tell=lambda _line: None)
    assert told["pending"] == 5
    assert told["cold_s"] >= 0


@pytest.mark.parametrize("fault", ["none", "lost"])
def test_a_backlog_is_sent_while_the_service_is_away_and_counts_from_its_start(fault, monkeypatch):
    """The pretended sender delivers at once, so it is not given what is due in ten days."""
    monkeypatch.setattr(bench.measure, "BACKLOG_QUIET_S", 0.5)
    monkeypatch.setattr(bench.measure, "_fill", lambda _drivers, count: {"pending": count})
    did = []
    servers = Servers({}, {}, stop=lambda: did.append("stop"), start=lambda: did.append("start"))
    keeping = replace(pretended(fault), servers=lambda _directory: nullcontext(servers))
    load = Workload(name="x", pending=5_000, backlog=True)
    assert keeping.unfit(load) == "takes in what is sent at once, or not at all"
    assert replace(keeping, has_inbox=True).unfit(load) is None
    if fault == "lost":
        with pytest.raises(Unavailable, match="999 of the 1000 last messages, 0 of the others"):
            measure(keeping, load, tell=lambda _line: None)
        return
    told = measure(keeping, load, tell=lambda _line: None)

    assert did == ["stop", "start"]
    assert told["pending"] == 5_000
    assert told["taken_in_per_s"] == round(5_000 / told["taken_in_s"])


@pytest.mark.parametrize("fault", ["none", "lost", "duplicated"])
def test_a_soak_counts_all_and_follows_memory(fault, monkeypatch):
    for name, value in {"SAMPLE_S": 0.1, "QUIET_S": 0.3, "LEAD_MS": 0}.items():
        monkeypatch.setattr(bench.soak, name, value)
    told = soak(pretended(fault), rate=200, minutes=1 / 120)
    assert (told["scheduled"], told["early"]) == (100, 0)
    assert {n: told[n] for n in ("lost", "duplicated")} == {
        "lost": fault == "lost",
        "duplicated": fault == "duplicated",
    }
    assert told["late_ms"]["max"] == told["late_ms_by_minute"][0]["max"] == 3
    assert {"at_s", "sender", "receiver"} == set(told["memory_mib"][0])
    assert len(told["memory_mib"]) >= 5


def test_memory_drifts_from_what_it_was_once_it_had_settled():
    samples = [{"at_s": 10.0 * n, "a": 100.0 + (n >= 90) * 7 - (n == 100) * 9} for n in range(120)]
    samples[0]["a"] = 500.0
    assert drift(samples) == {"a": {"mib": 100.0, "lowest": -0.02, "highest": 0.07}}
    assert drift(samples[:60]) == {}
    assert "Memory at 5" in plot({"rate": 5, "memory_mib": samples}).to_json()
