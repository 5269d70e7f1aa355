"""What a run becomes: tables, a page with plots, and the tables of docs/performance.md. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from bench.bounds import figure, judge
from sendlater.bench.all import number, table

COLUMNS = {
    "late ms p50": "warm.late_ms.p50",
    "p99": "warm.late_ms.p99",
    "p99.9": "warm.late_ms.p999",
    "max": "warm.late_ms.max",
    "delivered/s": "warm.delivered_per_s",
    "sent/s": "warm.sent_per_s",
    "first load p50": "first.late_ms.p50",
    "first load p99": "first.late_ms.p99",
    "first load delivered/s": "first.delivered_per_s",
    "CPU us/message, of all": "warm.cpu_us_per_message",
    "the service": "warm.cpu_us_of.service",
    "broker": "warm.cpu_us_of.broker",
    "store": "warm.cpu_us_of.store",
    "cores": "warm.cpu_cores",
    "MiB": "warm.memory_total_mib",
    "pending sent/s": "pending_sent_per_s",
    "bytes of Redis each beyond payload": "bytes_beyond_payload",
    "s to ready": "ready_s",
    "s until all is taken in": "taken_in_s",
    "taken in/s": "taken_in_per_s",
    "s to first delivery": "cold_s",
    "early": "warm.early",
    "doubled": "warm.duplicated",
    "lost": "warm.lost",
    "unwanted": "warm.unwanted",
}
"""Of a workload's table: head, and the figure in it. A column that is empty for all is left out."""
LOG_FLOOR_MS = 0.5
"""What a logarithmic axis shows for a lateness of 0 ms."""
SHARES = {"50 %": 2, "90 %": 10, "99 %": 100, "99.9 %": 1_000, "99.99 %": 10_000}
"""Marks of the axis of shares: 1 / (1 - share)."""


def workload_table(systems: Mapping[str, Mapping[str, Any]]) -> str:
    """A workload's systems as a table in Markdown; those without figures are told below it."""
    found = {name: figures for name, figures in systems.items() if "left_out" not in figures}
    cells = {head: [figure(f, path) for f in found.values()] for head, path in COLUMNS.items()}
    heads = [head for head, values in cells.items() if any(v is not None for v in values)]
    rows = [
        [name, *(number(cells[head][place]) for head in heads)] for place, name in enumerate(found)
    ]
    left_out = [
        f"{name}: {figures['left_out']}."
        for name, figures in systems.items()
        if "left_out" in figures
    ]
    parts = [table(("system", *heads), rows)] * bool(rows)
    return "\n\n".join([*parts, *([" ".join(left_out)] * bool(left_out))])


def verdicts(result: Mapping[str, Any]) -> list[str]:
    """Every bound that something was measured for, in words; what balances is one line."""
    judged = judge(result["results"], scale=result["scale"])
    found = [verdict for verdict in judged if verdict.value is not None]
    told = [str(verdict) for verdict in found if verdict.failed or not verdict.bound.any_scale]
    balanced = sum(verdict.bound.any_scale and not verdict.failed for verdict in found)
    line = f"holds: {balanced} counts of what sendlater lost, doubled, sent early or unwanted are 0"
    return [*told, *([line] * bool(balanced))]


def markdown(result: Mapping[str, Any]) -> str:
    """The measured part of docs/performance.md."""
    scale = result["scale"]
    parts = [f"{result['machine']} Load of the machine before: {result['load_before']:g}."]
    if scale != 1:
        parts.append(f"**Made smaller**: {scale:g} times the messages and seconds.")
    for name, systems in result["results"].items():
        parts.append(f"### {name[0].upper()}{name[1:]}\n\n{workload_table(systems)}")
    bounds = "\n".join(f"- {line}" for line in verdicts(result))
    parts.append(f"### Bounds\n\n{bounds or 'None was measured.'}")
    chosen = []
    for name, about in result["systems"].items():
        pinned = ", ".join(f"{what} {version}" for what, version in about["versions"].items())
        lines = "\n".join(f"- {what}: {why}" for what, why in about["settings"].items())
        chosen.append(f"**{name}** ({pinned})\n\n{lines}")
    parts.append("### Versions and settings\n\n" + "\n\n".join(chosen))
    return "\n\n".join(parts)


def page(result: Mapping[str, Any]) -> str:
    """A page with everything in it, scripts too: works without a network."""
    body, scripts = [], True
    for name, systems in result["results"].items():
        body.append(f"<h2>{escape(name)}</h2><pre>{escape(workload_table(systems))}</pre>")
        for plot in plots(systems):
            body.append(plot.to_html(full_html=False, include_plotlyjs=scripts))
            scripts = False
    bounds = "".join(f"<li>{escape(line)}</li>" for line in verdicts(result))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>sendlater and its peers'
        "</title><style>body{font-family:sans-serif;margin:2em;max-width:75em}"
        "pre{overflow-x:auto}</style></head><body><h1>sendlater and its peers</h1>"
        f"<p>{escape(result['machine'])} Scale {result['scale']:g}.</p>{''.join(body)}"
        f"<h2>Bounds</h2><ul>{bounds}</ul></body></html>"
    )


def plots(systems: Mapping[str, Mapping[str, Any]]) -> Iterator[go.Figure]:
    """Of a workload: lateness, the drain, CPU and memory."""
    warm = {name: f["warm"] for name, f in systems.items() if "warm" in f}
    measured = {name: f for name, f in warm.items() if f["late_ms_at"]}
    if measured:
        yield _lateness(measured)
        yield _drain(measured)
    if warm:
        yield _stacked(warm, "cpu_s", "CPU, microseconds a message (idle: milliseconds)")
        yield _stacked(warm, "memory_mib", "memory, MiB")


def _lateness(measured: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    lines = []
    for name, figures in measured.items():
        points = [(100 / (100 - s), max(ms, LOG_FLOOR_MS)) for s, ms in figures["late_ms_at"][:-1]]
        lines.append(_line(name, points))
    shares = {"type": "log", "tickvals": list(SHARES.values()), "ticktext": list(SHARES)}
    return _figure(
        lines,
        "Lateness: this share of the messages is at most so late",
        xaxis={**shares, "title": "share"},
        yaxis={"type": "log", "title": "ms"},
    )


def _drain(measured: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    lines = [
        _line(name, [(ms, share / 100 * f["delivered"]) for share, ms in f["late_ms_at"]])
        for name, f in measured.items()
    ]
    return _figure(
        lines,
        "Drain: messages delivered so long after they were due",
        xaxis={"title": "ms"},
        yaxis={"title": "messages"},
    )


def _stacked(warm: Mapping[str, Mapping[str, Any]], name: str, title: str) -> go.Figure:
    """Bars of a figure by process, one on the other."""
    labels = sorted({label for figures in warm.values() for label in figures[name]})
    bars = []
    for label in labels:
        heights = [f[name].get(label, 0) * _factor(f, name) for f in warm.values()]
        bars.append(go.Bar(name=label, x=list(warm), y=heights))
    return _figure(bars, title, barmode="stack")


def _factor(figures: Mapping[str, Any], name: str) -> float:
    if name != "cpu_s":
        return 1.0
    return 1e6 / figures["scheduled"] if figures["scheduled"] else 1e3


def _line(name: str, points: Sequence[tuple[float, float]]) -> go.Scatter:
    x, y = zip(*points, strict=True)
    return go.Scatter(name=name, x=x, y=y, mode="lines")


def _figure(traces: Sequence[Any], title: str, **layout: Any) -> go.Figure:
    return go.Figure(data=list(traces), layout={"title": title, "height": 380, **layout})
