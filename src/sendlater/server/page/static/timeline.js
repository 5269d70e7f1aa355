// The timeline of the future: asks for the numbers of what is in view, draws them, and tells them as a table.
import { $, afterPaint, ask, body, count, el, given, guard, iso, isLive, LAST_MS, LATE_MS, onStats, onTimes, query, remember, span, time } from "./shared.js";
import { makeChart, overdueBefore, overdueCounts } from "./chart.js";
import { topTopics } from "./topics.js";

const RANGES = new Map([...$("#ranges").children].map((button) => [button.textContent, Number(button.dataset.ms)]));
const [BAR_PX, BARS_MAX] = [10, 120];
const WIDE_PX = 1000;
const PAST_SHARE = 0.03;
const ALL_MS_MIN = 60_000;
const SPIKES_TOLD = 3;
const REDRAW_MS = 4000;
let range, zoomed, selected, got = null, topics = [];
let last_ms = Math.min(Number(body.lastDue) || 0, LAST_MS);
let asked = 0, answered = 0;
let told = () => {}, filter = () => {};
export const onSelect = (work) => { told = work; };
export const onTopic = (work) => { filter = work; };
export const topicsSeen = () => Object.keys(got?.topics ?? {});

const chart = makeChart($("#chart"), {
  // One step back is where one came from, however often the wheel turned.
  onView: (view) => show(view ? { zoom_from: iso(Math.round(view[0])), zoom_to: iso(Math.round(view[1])) } : { zoom_from: "", zoom_to: "" }, { replace: zoomed !== null }),
  onSelect: select,
});

export function readAddress() {
  range = RANGES.has(given("range")) ? given("range") : body.range;
  const both = (from, to) => { const found = [given(from), given(to)].map((text) => Date.parse(text)); return found.some(Number.isNaN) ? null : found; };
  zoomed = both("zoom_from", "zoom_to");
  selected = both("due_from", "due_to");
  $("#log").checked = given("log") === "yes";
  for (const button of $("#ranges").children) button.setAttribute("aria-pressed", String(!zoomed && button.textContent === range));
  $("#clear").hidden = $("#zoom").hidden = !selected;
  $("#whole").hidden = !zoomed;
}
function show(changes, how) {
  remember(changes, how);
  readAddress();
  return guard(drawTimeline)();
}

// Now is a little right of the left edge, so that there is a place for what is overdue.
function view() {
  if (zoomed) return zoomed;
  const now = Date.now();
  const length = RANGES.get(range) || Math.max(ALL_MS_MIN, last_ms - now);
  return [now - PAST_SHARE * length, now + length * 1.01];
}
export async function askTimeline() {
  const buckets = Math.min(BARS_MAX, Math.max(20, Math.floor(($("#chart").clientWidth || innerWidth) / BAR_PX)));
  const [from, to] = view();
  return ask("GET", "/v1/histogram?" + query({ round: "true", buckets, due_from: iso(Math.max(0, Math.floor(from))), due_to: iso(Math.ceil(to)) }));
}
// On a wide screen the answer has come with the page.
export function askFirst() {
  const { asked } = $("#chart").dataset;
  return asked && innerWidth >= WIDE_PX ? ask("GET", asked) : askTimeline();
}

export async function drawTimeline(asking = askTimeline()) {
  const mine = ++asked;
  const answer = await asking;
  if (mine !== asked) return;
  got = answer;
  answered = Date.now();
  topics = topTopics(got, zoomed?.join() ?? range, $("#legend").matches(":hover, :focus-within"));
  if (got.last_due_ms) last_ms = Math.min(got.last_due_ms, LAST_MS);
  redraw();
  afterPaint(asTable);
  tellSpike();
  if ($("#chart").dataset.ready) return;
  $("#chart").dataset.ready = "yes";
  performance.mark("timeline-drawn");
}
function redraw() {
  if (!got || chart.busy()) return;
  chart.draw(got, view(), { topics, spikes: spikes(), log: $("#log").checked, selected });
  drawLegend();
}
// A button stays the same element as long as its topic is shown: it keeps the focus.
function drawLegend() {
  const place = $("#legend"), named = topics.filter(([, , , others]) => !others), names = named.map(([topic, , colour]) => `${colour} ${topic}`).join("\n");
  if (place.dataset.names !== names) {
    place.dataset.names = names;
    place.replaceChildren(...named.map(([topic, , colour]) => el("button", { type: "button", class: "plain", onclick: () => filter(topic) }, el("i", { class: `c${colour}` }), topic)));
  }
  const recurring = sum(got.recurring), held = sum(got.held);
  place.querySelectorAll(":scope > span").forEach((one) => one.remove());
  place.append(
    ...topics.filter(([, , , others]) => others).map(([told, , colour]) => el("span", {}, el("i", { class: `c${colour}` }), told)),
    ...(recurring ? [el("span", {}, el("i", { class: "recurring" }), "recurring")] : []),
    ...(held ? [el("span", {}, el("i", { class: "held" }), `${count(held)} held by limits`)] : []),
    ...(got.overdue ? [el("span", { class: "bad" }, el("i", { class: "overdue" }), `${count(got.overdue)} overdue`)] : []));
}
const sum = (counts) => counts.reduce((a, b) => a + b, 0);
const spikes = () => got.counts.map((n, i) => i)
  .filter((i) => got.late_ms[i] > LATE_MS && got.edges_ms[i + 1] > got.now_ms && got.counts[i] >= Math.max(1, got.counts[i - 1] || 0, got.counts[i + 1] || 0))
  .sort((a, b) => got.late_ms[b] - got.late_ms[a]).slice(0, SPIKES_TOLD);

function tellSpike() {
  const drain = `Delivered at ${count(got.drain_per_s)} a second when much is due, as ${got.drain_measured ? "measured" : "assumed until it is measured"}.`;
  const late = spikes().map((i) => `The spike of ${count(got.counts[i])} at ${iso(got.edges_ms[i])} will be up to ${span(got.late_ms[i])} late.`);
  $("#spike").textContent = [...late, drain].join(" ");
}
function asTable() {
  const rows = [], red = overdueCounts(got);
  const before = (n, from, at) => el("tr", { class: "bad" }, el("td", {}, from), el("td", { class: "time" }, time(at)), el("td", {}, count(n)), el("td", {}, "overdue"), el("td", {}), el("td", {}));
  const early = overdueBefore(got, got.edges_ms[0]);
  if (early) rows.push(before(early, "before", got.edges_ms[0]));
  got.counts.forEach((n, i) => {
    if (!n && !got.held[i]) return;
    const [from, to] = [got.edges_ms[i], got.edges_ms[i + 1]];
    const topics = Object.entries(got.topics).filter(([, counts]) => counts[i]).map(([topic, counts]) => `${topic} ${got.estimated[i] ? "≈ " : ""}${count(counts[i])}`);
    const apart = [[got.recurring[i], "recurring"], [got.held[i], "held by limits until then"], [red[i], "overdue"]].filter(([some]) => some).map(([some, what]) => `${count(some)} ${what}`);
    rows.push(el("tr", { class: red[i] ? "bad" : "" }, el("td", { class: "time" }, time(from)), el("td", { class: "time" }, time(to)), el("td", {}, count(n)), el("td", {}, [...topics, ...apart].join(", ")), el("td", {}, span(got.late_ms[i])),
      el("td", {}, el("button", { type: "button", "aria-label": `Select from ${iso(from)}`, onclick: () => select(from, to) }, "Select"))));
  });
  // The focused element must stay while numbers are updated.
  if (!$("#chart-table").contains(document.activeElement)) $("#chart-table tbody").replaceChildren(...rows);
}

// How many are due in a span, whether or not it is in view.
export async function countSpan(due_from, due_to) {
  return sum((await ask("GET", "/v1/histogram?" + query({ buckets: 1, due_from, due_to }))).counts);
}

function select(from, to) {
  told(...[Math.floor(from), Math.ceil(to)].map((ms) => iso(ms).replace(".000Z", "Z")));
  readAddress();
  redraw();
}

for (const button of $("#ranges").children) button.addEventListener("click", () => show({ range: button.textContent, zoom_from: "", zoom_to: "" }));
$("#clear").addEventListener("click", () => { told("", ""); readAddress(); redraw(); });
$("#zoom").addEventListener("click", () => show({ zoom_from: iso(selected[0]), zoom_to: iso(selected[1]) }));
$("#whole").addEventListener("click", () => show({ zoom_from: "", zoom_to: "" }));
$("#log").addEventListener("change", (event) => show({ log: event.target.checked ? "yes" : "" }));
onTimes(() => { if (got) { redraw(); asTable(); } });
// Between two answers only the view moves with the time.
onStats(() => {
  if (!isLive() || !got || chart.busy()) return;
  if (Date.now() - answered > REDRAW_MS) guard(drawTimeline)();
  else redraw();
});
readAddress();
