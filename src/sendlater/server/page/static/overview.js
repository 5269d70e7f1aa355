// Numbers, the table of pending schedules, and actions on all that match.
import { $, ask, can, confirmed, count, el, guard, onStats, query, remember, say, span, time } from "./shared.js";
import { askTimeline, drawTimeline, onSelect, readAddress } from "./timeline.js";

const FIELDS = ["id_prefix", "topic", "caller", "due_from", "due_to"];
const form = $("#filter");
const [ROWS, ASKS_MAX] = [50, 100];
let next = null;
let showing = 0;

// --- numbers ---
function tile(name, value, told, more = "") {
  return el("div", { class: `tile ${more}`, id: `tile-${name}` }, el("span", {}, told), el("b", {}, value));
}
function showStats(s) {
  const late = s.late_ms || {};
  $("#tiles").replaceChildren(
    tile("late", `${span(late.p50)} / ${span(late.p99)}`, "late, p50 / p99", "first"),
    tile("pending", count(s.pending), "pending"),
    tile("minute", count(s.due["1m"]), "due within a minute"),
    tile("hour", count(s.due["1h"]), "within an hour"),
    tile("day", count(s.due["1d"]), "within a day"),
    tile("overdue", count(s.overdue), "overdue", s.overdue ? "bad" : ""),
    tile("oldest", s.overdue ? span(s.oldest_overdue_ms) : "-", "oldest overdue", s.overdue ? "bad" : ""),
    tile("rate", count(s.delivered_per_s), "delivered a second"),
    tile("rejected", count(s.rejected), "rejected", s.rejected ? "bad" : ""),
    tile("dead", count(s.dead), "dead", s.dead ? "bad" : ""),
    tile("redis", s.error ? "no answer" : `${count(s.redis.used_bytes / 1048576)} MiB`, "Redis", s.error ? "bad" : ""),
    tile("broker", s.intake_lag === null ? "no answer" : "answers", "broker", s.intake_lag === null ? "bad" : ""),
    tile("lag", s.intake_lag ? count(Object.values(s.intake_lag).reduce((a, b) => a + b, 0)) : "-", "intake lag"),
    tile("lanes", workers(s), "queries running", s.service_heard_ms == null || s.service_heard_ms > 10000 ? "bad" : ""),
    ...(s.canary_late_ms == null ? [] : [tile("canary", span(s.canary_late_ms), "last canary late")]),
  );
  if (!performance.getEntriesByName("numbers-shown").length) performance.mark("numbers-shown");
  $("#why").replaceChildren(...s.why.map((sentence) => el("li", {}, sentence)));
}
function workers(s) {
  const all = Object.values(s.workers || {});
  if (s.service_heard_ms == null || s.service_heard_ms > 10000) return "none";
  return `${all.filter(Boolean).length} of ${all.length}`;
}

// --- table ---
const chosen = () => Object.fromEntries(FIELDS.map((name) => [name, form.elements[name].value.trim()]));
const fromAddress = (name) => new URLSearchParams(location.search).get(name) || "";
function fillForm() {
  for (const name of FIELDS) form.elements[name].value = fromAddress(name);
}
// Each answer searches a bounded number of schedules: with a filter, ask until the page is full.
async function* gather(order) {
  const items = [];
  next = fromAddress("cursor");
  for (let asks = 0; asks < ASKS_MAX && items.length < ROWS && next !== null; asks += 1) {
    const got = await ask("GET", "/v1/schedules?" + query({ ...chosen(), order, cursor: next, limit: ROWS - items.length }));
    next = got.next_cursor;
    items.push(...got.items);
    yield items;
  }
}
async function showPage() {
  const order = fromAddress("order");
  const mine = ++showing;
  $("#by-due").setAttribute("aria-sort", order === "last" ? "descending" : "ascending");
  for await (const items of gather(order)) {
    if (mine !== showing) return;
    showRows(items);
  }
}
function showRows(items) {
  $("#schedules tbody").replaceChildren(...items.map((one) => el("tr", {},
    el("td", { class: "cut" }, el("a", { href: "/schedule?" + query({ id: one.id_base64 ? "" : one.id, b: one.id_base64 }) }, one.id)),
    el("td", { class: "time" }, time(one.due_ms)),
    el("td", {}, one.topic), el("td", {}, one.caller || ""), el("td", {}, count(one.value_bytes)),
    el("td", { class: "cut" }, (one.value ?? (one.value_base64 ? "(bytes)" : can.payload ? "" : "(hidden)")).slice(0, 120)))));
  if (!performance.getEntriesByName("table-shown").length) performance.mark("table-shown");
  $("#next").disabled = !next;
  $("#page-note").textContent = `${items.length} shown${next ? "; there may be more" : ""}`;
}
async function look(changes) {
  remember({ cursor: "", ...changes });
  await showPage();
}
form.addEventListener("submit", guard(async (event) => { event.preventDefault(); const looking = look(chosen()); readAddress(); await looking; }));
$("#next").addEventListener("click", guard(() => look({ cursor: next })));
$("#first").addEventListener("click", guard(() => look({})));
$("#sort").addEventListener("click", guard(() => look({ order: fromAddress("order") ? "" : "last" })));
addEventListener("popstate", guard(async () => { fillForm(); readAddress(); await Promise.all([showPage(), drawTimeline()]); }));

// --- actions on all that match ---
function selection() {
  const given = Object.fromEntries(Object.entries(chosen()).filter(([, value]) => value));
  if (!Object.keys(given).length) throw new Error("select something first: drag over the chart, or filter");
  return given;
}
function deed(label, path, more, words) {
  return el("button", { type: "button", onclick: guard(async () => {
    const given = { ...selection(), ...more() };
    const dry = await ask("POST", path, { ...given, dry_run: true });
    const which = Object.entries(given).map(([name, value]) => `${name} ${value}`).join(", ");
    if (!(await confirmed(`${label}: ${count(dry.matched)} schedules`, `${words} Chosen: ${which}. It goes into the audit trail.`))) return;
    const done = await ask("POST", path, given);
    say(`${label}: ${count(done.changed)} of ${count(done.matched)} changed.`);
    await Promise.all([showPage(), drawTimeline()]);
  }) }, label);
}
if (can.admin) {
  const by = el("input", { id: "by", value: "1h", size: 6, "aria-label": "how long, for shift and spread" });
  $("#actions").append(
    deed("Cancel all", "/v1/schedules:cancel", () => ({}), "All of them are cancelled; this can be undone."),
    deed("Deliver all now", "/v1/schedules:deliver-now", () => ({}), "All of them are delivered at once; this cannot be undone."),
    deed("Shift all by", "/v1/schedules:reschedule", () => ({ shift: by.value }), "Each gets a later (or earlier) due time; this can be undone."),
    deed("Spread all over", "/v1/schedules:reschedule", () => ({ spread: by.value }), "They are spread evenly, from the first one's due time on; this can be undone."),
    by);
}

onSelect(guard(async (from, to) => {
  form.elements.due_from.value = from;
  form.elements.due_to.value = to;
  await look({ due_from: from, due_to: to });
}));

fillForm();
onStats(showStats);
// Numbers and table first: plotly's script takes a while to load.
const timeline = askTimeline();
timeline.catch(() => {}); // reported when it is drawn
Promise.all([guard(async () => showStats(await ask("GET", "/v1/stats")))(), guard(showPage)()]).then(() => guard(drawTimeline)(timeline));
