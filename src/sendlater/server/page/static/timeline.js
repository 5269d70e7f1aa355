// Due times as a chart: bars by topic, overdue in red left of now, the drain rate, predicted lateness.
import { $, ask, body, count, el, iso, isLive, onStats, onTheme, onTimes, query, remember, span, time, timesAre } from "./shared.js";

const RANGES = [["minute", 60e3], ["hour", 3600e3], ["day", 86400e3], ["week", 7 * 86400e3], ["month", 30 * 86400e3], ["year", 365 * 86400e3], ["all", 0]];
const BUCKETS = 60;
const COLOURS = ["#3b7dd8", "#2a9d6f", "#c9852b", "#8d63c9", "#c2588f", "#4a9fb0", "#8a8f2f", "#7b7f8c"];
const SPIKES_TOLD = 3;
const LATE_WORTH_TELLING_MS = 1000;
const REDRAW_MS = 4000;
let range, zoomed, selected, plotly = null;
let told = () => {};
let asked = 0, drawn = 0;

export const onSelect = (work) => { told = work; };
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Plotly shows numbers as UTC: in local time the axis is moved by the zone's offset.
const offset = (ms) => (timesAre() === "local" ? -60000 * new Date(ms).getTimezoneOffset() : 0);
const onAxis = (ms) => ms + offset(ms);
const offAxis = (text) => { const ms = typeof text === "number" ? text : Date.parse(String(text).replace(" ", "T") + "Z"); return ms - offset(ms); };

export function readAddress() {
  const given = new URLSearchParams(location.search);
  range = RANGES.some(([name]) => name === given.get("range")) ? given.get("range") : "all";
  zoomed = given.get("zoom_from") && given.get("zoom_to") ? [given.get("zoom_from"), given.get("zoom_to")] : null;
  $("#log").checked = given.get("log") === "yes";
  const both = [given.get("due_from"), given.get("due_to")].map((text) => Date.parse(text));
  selected = both.some(Number.isNaN) ? null : both;
  for (const button of $("#ranges").children) button.setAttribute("aria-pressed", String(!zoomed && button.textContent === range));
  $("#clear").hidden = $("#zoom").hidden = !selected;
  $("#whole").hidden = !zoomed;
}
function show(changes) {
  remember(changes);
  readAddress();
  return drawTimeline();
}

function loadPlotly() {
  plotly ??= new Promise((done, failed) => {
    const script = el("script", { src: body.plotly });
    script.addEventListener("load", () => done(window.Plotly));
    script.addEventListener("error", () => failed(new Error("the chart's script could not be loaded")));
    document.head.append(script);
  });
  return plotly;
}

export function askTimeline() {
  const length = RANGES.find(([name]) => name === range)[1];
  const [from, to] = zoomed || ["", length ? iso(Date.now() + length) : ""];
  return ask("GET", "/v1/histogram?" + query({ buckets: BUCKETS, due_from: from, due_to: to }));
}

export async function drawTimeline(asking = askTimeline()) {
  const mine = ++asked;
  const got = await asking;
  if (mine !== asked) return;
  asTable(got);
  tellSpike(got);
  const Plotly = await loadPlotly();
  if (mine !== asked) return;
  const chart = $("#chart");
  await Plotly.react(chart, bars(got), layout(got), { responsive: true, displayModeBar: false, scrollZoom: false, doubleClick: false });
  drawn = Date.now();
  if (chart.dataset.ready) return;
  chart.dataset.ready = "yes";
  performance.mark("timeline-drawn");
  chart.on("plotly_selected", (event) => event && event.range && select(...event.range.x.map(offAxis)));
}

function bars(got) {
  const width = got.edges_ms[1] - got.edges_ms[0];
  const middle = got.edges_ms.slice(0, -1).map((edge) => onAxis(edge + width / 2));
  const hover = got.counts.map((n, i) => `${count(n)} due, late by up to ${span(got.late_ms[i])}`);
  const made = topTopics(got.topics).map(([topic, counts], n) => ({
    type: "bar", name: topic, x: middle, y: counts, width, marker: { color: COLOURS[n] }, text: hover, textposition: "none", hovertemplate: "%{text}<extra>%{fullData.name}: %{y}</extra>",
  }));
  if (got.overdue && !zoomed) made.unshift({ type: "bar", name: "overdue", x: [onAxis(got.now_ms - width / 2)], y: [got.overdue], width, marker: { color: "#d33a2c" } });
  const drain = Math.round(got.drain_per_s * width / 1000);
  if (drain <= 5 * Math.max(...got.counts, got.overdue, 1))
    made.push({ type: "scatter", mode: "lines", name: `drain rate, ${count(got.drain_per_s)}/s`, x: [middle[0], middle.at(-1)], y: [drain, drain], line: { dash: "dot", color: colour("--soft") } });
  return made;
}
function topTopics(topics) {
  const sum = (counts) => counts.reduce((a, b) => a + b, 0);
  const all = Object.entries(topics).sort((a, b) => sum(b[1]) - sum(a[1]));
  const rest = all.length > COLOURS.length ? all.splice(COLOURS.length - 1) : [];
  all.sort((a, b) => (a[0] < b[0] ? -1 : 1)); // the same colour while numbers change
  if (!rest.length) return all;
  return [...all, [`${rest.length} others`, rest[0][1].map((_, i) => sum(rest.map(([, counts]) => counts[i])))]];
}
function spikes(got) {
  return got.counts.map((n, i) => i)
    .filter((i) => got.late_ms[i] > LATE_WORTH_TELLING_MS && got.counts[i] >= Math.max(got.counts[i - 1] || 0, got.counts[i + 1] || 0))
    .sort((a, b) => got.late_ms[b] - got.late_ms[a]).slice(0, SPIKES_TOLD);
}
function layout(got) {
  const log = $("#log").checked;
  const width = got.edges_ms[1] - got.edges_ms[0];
  return {
    barmode: "stack", bargap: 0, margin: { l: 60, r: 12, t: 32, b: 36 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--text") }, dragmode: "select", selectdirection: "h", showlegend: true, legend: { orientation: "h", y: 1.12 }, uirevision: `${range} ${zoomed}`,
    xaxis: { type: "date", gridcolor: colour("--line") }, yaxis: { type: log ? "log" : "linear", gridcolor: colour("--line"), fixedrange: true },
    annotations: spikes(got).map((i) => ({ x: onAxis(got.edges_ms[i] + width / 2), y: log ? Math.log10(got.counts[i] || 1) : got.counts[i], text: `late ${span(got.late_ms[i])}`, showarrow: true, arrowhead: 2, ay: -18, ax: 0 })),
    selections: selected ? [{ type: "rect", xref: "x", yref: "paper", x0: onAxis(selected[0]), x1: onAxis(selected[1]), y0: 0, y1: 1 }] : [],
  };
}

function tellSpike(got) {
  const drain = `Delivered at ${count(got.drain_per_s)} a second, as ${got.drain_measured ? "measured" : "assumed until it is measured"}.`;
  const late = spikes(got).map((i) => `The spike of ${count(got.counts[i])} at ${iso(got.edges_ms[i])} will be up to ${span(got.late_ms[i])} late.`);
  $("#spike").textContent = [...late, drain].join(" ");
}
function asTable(got) {
  const rows = [];
  got.counts.forEach((n, i) => {
    if (!n) return;
    const [from, to] = [got.edges_ms[i], got.edges_ms[i + 1]];
    const topics = Object.entries(got.topics).filter(([, counts]) => counts[i]).map(([topic, counts]) => `${topic} ${count(counts[i])}`).join(", ");
    rows.push(el("tr", {}, el("td", { class: "time" }, time(from)), el("td", { class: "time" }, time(to)), el("td", {}, count(n)), el("td", {}, topics), el("td", {}, span(got.late_ms[i])),
      el("td", {}, el("button", { type: "button", "aria-label": `Select from ${iso(from)}`, onclick: () => select(from, to) }, "Select"))));
  });
  if (got.overdue && !zoomed) rows.unshift(el("tr", { class: "bad" }, el("td", {}, "before now"), el("td", { class: "time" }, time(got.now_ms)), el("td", {}, count(got.overdue)), el("td", {}, "overdue"), el("td", {}), el("td", {})));
  // The focused element must stay while numbers are updated.
  if (!$("#chart-table").contains(document.activeElement)) $("#chart-table tbody").replaceChildren(...rows);
}

function select(from, to) {
  const [first, last] = [from, to].sort((a, b) => a - b);
  told(iso(Math.floor(first)), iso(Math.ceil(last)));
  readAddress();
}

$("#ranges").replaceChildren(...RANGES.map(([name]) =>
  el("button", { type: "button", onclick: () => show({ range: name === "all" ? "" : name, zoom_from: "", zoom_to: "" }) }, name)));
$("#clear").addEventListener("click", () => { told("", ""); readAddress(); drawTimeline(); });
$("#zoom").addEventListener("click", () => show({ zoom_from: iso(selected[0]), zoom_to: iso(selected[1]) }));
$("#whole").addEventListener("click", () => show({ zoom_from: "", zoom_to: "" }));
$("#log").addEventListener("change", (event) => show({ log: event.target.checked ? "yes" : "" }));
const again = () => $("#chart").dataset.ready && drawTimeline();
onTheme(again);
onTimes(again);
// A redraw would end a drag.
let held = false;
$("#chart").addEventListener("pointerdown", () => { held = true; });
addEventListener("pointerup", () => { held = false; });
onStats(() => { if (isLive() && !held && Date.now() - drawn > REDRAW_MS) again(); });
readAddress();
