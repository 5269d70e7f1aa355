// The future as a chart: bars by topic, the overdue in red left of now, the drain rate, predicted lateness.
import { $, ask, body, count, el, iso, isLive, onStats, onTheme, query, span, time } from "./shared.js";

const RANGES = [["minute", 60e3], ["hour", 3600e3], ["day", 86400e3], ["week", 7 * 86400e3], ["month", 30 * 86400e3], ["year", 365 * 86400e3], ["all", 0]];
const BUCKETS = 60;
const COLOURS = ["#3b7dd8", "#2a9d6f", "#c9852b", "#8d63c9", "#c2588f", "#4a9fb0", "#8a8f2f", "#7b7f8c"];
let range = new URLSearchParams(location.search).get("range") || "all";
let selected = null;
let told = () => {};
let asked = 0;

export const onSelect = (work) => { told = work; };

let loading = null;
function plotly() {
  loading ??= new Promise((done, failed) => {
    const script = el("script", { src: body.plotly });
    script.addEventListener("load", () => done(window.Plotly));
    script.addEventListener("error", () => failed(new Error("the chart's script could not be loaded")));
    document.head.append(script);
  });
  return loading;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function ranges() {
  $("#ranges").replaceChildren(...RANGES.map(([name]) =>
    el("button", { type: "button", "aria-pressed": String(name === range), onclick: () => { range = name; ranges(); drawTimeline(); } }, name)));
}

export async function drawTimeline() {
  const mine = ++asked;
  const length = RANGES.find(([name]) => name === range)[1];
  const to = length ? iso(Date.now() + length) : "";
  const [got, Plotly] = await Promise.all([ask("GET", "/v1/histogram?" + query({ buckets: BUCKETS, due_to: to })), plotly()]);
  if (mine !== asked) return;
  asTable(got);
  const width = got.edges_ms[1] - got.edges_ms[0];
  const middle = got.edges_ms.slice(0, -1).map((edge) => new Date(edge + width / 2));
  const hover = got.counts.map((n, i) => `${count(n)} due, late by up to ${span(got.late_ms[i])}`);
  const bars = Object.entries(got.topics).map(([topic, counts], n) => ({
    type: "bar", name: topic, x: middle, y: counts, width, marker: { color: COLOURS[n % COLOURS.length] }, text: hover, textposition: "none", hovertemplate: "%{text}<extra>%{fullData.name}: %{y}</extra>",
  }));
  if (got.overdue) bars.unshift({ type: "bar", name: "overdue", x: [new Date(got.now_ms - width)], y: [got.overdue], width, marker: { color: "#d33a2c" } });
  const drain = Math.round(got.drain_per_s * width / 1000);
  const top = Math.max(...got.counts, got.overdue, 1);
  if (drain <= 5 * top) bars.push({ type: "scatter", mode: "lines", name: `drain rate, ${count(got.drain_per_s)}/s`, x: [middle[0], middle.at(-1)], y: [drain, drain], line: { dash: "dot", color: colour("--soft") } });
  const layout = {
    barmode: "stack", bargap: 0, margin: { l: 60, r: 12, t: 32, b: 36 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--text") }, dragmode: "select", selectdirection: "h", showlegend: true, legend: { orientation: "h", y: 1.12 }, uirevision: range,
    xaxis: { type: "date", gridcolor: colour("--line") }, yaxis: { type: $("#log").checked ? "log" : "linear", gridcolor: colour("--line"), fixedrange: true },
    selections: selected ? [{ type: "rect", xref: "x", yref: "paper", x0: selected[0], x1: selected[1], y0: 0, y1: 1 }] : [],
  };
  const chart = $("#chart");
  await Plotly.react(chart, bars, layout, { responsive: true, displayModeBar: false, scrollZoom: false, doubleClick: false });
  if (!chart.dataset.ready) {
    chart.dataset.ready = "yes";
    chart.on("plotly_selected", (event) => event && event.range && select(...event.range.x));
  }
  const worst = got.late_ms.indexOf(Math.max(...got.late_ms));
  $("#spike").textContent = got.late_ms[worst] > 1000
    ? `The spike of ${count(got.counts[worst])} at ${iso(got.edges_ms[worst])} will be up to ${span(got.late_ms[worst])} late.` : "";
}

function asTable(got) {
  const rows = [];
  got.counts.forEach((n, i) => {
    if (!n) return;
    const topics = Object.entries(got.topics).filter(([, counts]) => counts[i]).map(([topic, counts]) => `${topic} ${count(counts[i])}`).join(", ");
    rows.push(el("tr", {}, el("td", { class: "time" }, time(got.edges_ms[i])), el("td", { class: "time" }, time(got.edges_ms[i + 1])), el("td", {}, count(n)), el("td", {}, topics), el("td", {}, span(got.late_ms[i]))));
  });
  if (got.overdue) rows.unshift(el("tr", { class: "bad" }, el("td", {}, "before now"), el("td", { class: "time" }, time(got.now_ms)), el("td", {}, count(got.overdue)), el("td", {}, "overdue"), el("td", {})));
  $("#chart-table tbody").replaceChildren(...rows);
}

const utc = (text) => new Date(String(text).replace(" ", "T") + (/[zZ]$/.test(text) ? "" : "Z"));
function select(from, to) {
  const edges = [utc(from), utc(to)].sort((a, b) => a - b);
  selected = edges.map((edge) => edge.toISOString());
  $("#clear").hidden = false;
  told(...selected);
}
export function clearSelection() {
  selected = null;
  $("#clear").hidden = true;
  told(null, null);
  drawTimeline();
}

$("#log").addEventListener("change", () => drawTimeline());
onTheme(() => $("#chart").dataset.ready && drawTimeline());
let drawn = 0;
onStats(() => {
  if (isLive() && $("#chart").dataset.ready && Date.now() - drawn > 4000) { drawn = Date.now(); drawTimeline(); }
});
ranges();
