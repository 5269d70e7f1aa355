// The overview: the one sentence that matters, four numbers, what is wrong; then the timeline and the table.
import { $, ask, count, el, given, guard, LATE_MS, onBack, onStats, put, short, span } from "./shared.js";
import { askFirst, drawTimeline, onSelect, onTopic, readAddress, topicsSeen } from "./timeline.js";
import { callersSeen, fillField, idsSeen, isCostly, isUsed, look, onSelected, search, showPage, tagsSeen, tellStill } from "./table.js";
import { suggestFrom } from "./search.js";
import { tellSelection } from "./selection.js";
import { drawSpark } from "./spark.js";

const [HEARD_MS_MAX, TREND_MS, TABLE_MS] = [10000, 15000, 10000];
let trendAsked = 0, tableAsked = Date.now(), firstStart = null;

// --- the sentence ---
function sentence(s) {
  const late = s.late_hour_ms ?? {};
  if (s.starting) return ["warn", s.why[0]];
  if (s.error || s.service_heard_ms == null || s.service_heard_ms > HEARD_MS_MAX) return ["bad", s.why[0] ?? "Nothing is known."];
  const ended = Object.values(s.workers ?? {}).includes(false) && s.why.find((one) => !isPlanned(one));
  if (ended) return ["bad", ended];
  if (s.overdue && s.delivered_per_s >= 1) return ["bad", `Late: ${count(s.overdue)} overdue, draining at ${count(s.delivered_per_s)}/s, done in ${span((s.overdue / s.delivered_per_s) * 1000)}`];
  if (s.overdue) return ["bad", `Late: ${count(s.overdue)} overdue, the oldest by ${span(s.oldest_overdue_ms)}, and nothing is delivered`];
  if (late.p99 == null && !(late.window_s >= KNOWS_S)) return ["good", "Ready: what was due before is not known yet"];
  if (late.p99 == null) return ["good", `Ready: nothing has been due in ${hour(late.window_s)}`];
  if (late.p99 > LATE_MS) return ["warn", `On time again, nothing is overdue; p99 was ${span(late.p99)} over ${hour(late.window_s)}`];
  return ["good", `On time: p99 ${span(late.p99)} over ${hour(late.window_s)}`];
}
// A process of the server that has just started has counted nothing yet.
const KNOWS_S = 60;
const hour = (s) => (s >= 3500 ? "the last hour" : s >= 90 ? `the last ${Math.round(s / 60)} min` : s >= KNOWS_S ? "the last minute" : `the last ${Math.max(1, s)} s`);

// --- four numbers ---
function number(name, value, more, bad = false) {
  const place = $(`#number-${name}`);
  place.classList.toggle("bad", bad);
  put(place.querySelector("b"), value);
  place.querySelector("b").title = more;
  put(place.querySelector("small"), more);
}
function showNumbers(s) {
  const late = s.late_ms.p99 == null ? s.late_hour_ms ?? {} : s.late_ms;
  number("late", span(late.p99), late.p50 == null ? (s.delivered ? "not known yet" : "nothing delivered yet") : `p50 ${span(late.p50)}, estimated`, late.p99 > LATE_MS);
  number("rate", count(s.delivered_per_s), `${count(s.delivered)} in all`);
  number("pending", s.pending >= 1e7 ? short(s.pending) : count(s.pending), Object.entries({ "1m": "1 min", "1h": "1 h", "1d": "1 d" }).map(([name, told]) => `${short(s.due[name] ?? 0)} in ${told}`.replaceAll(" ", "\u00a0")).join(", "));
  number("overdue", count(s.overdue), s.overdue ? `the oldest by ${span(s.oldest_overdue_ms)}` : "nothing is late", s.overdue > 0);
}
async function showTrend() {
  if (Date.now() - trendAsked < TREND_MS) return;
  trendAsked = Date.now();
  const got = await ask("GET", "/v1/trend");
  drawSpark($("#number-late svg"), got.late_p99_ms);
  drawSpark($("#number-rate svg"), got.delivered_per_s);
  drawSpark($("#number-pending svg"), got.pending);
  drawSpark($("#number-overdue svg"), got.overdue, { bad: true });
}

// --- health ---
function vital(name, told, value, bad = false) {
  if (!$(`#vital-${name}`)) $("#vitals").append(el("span", { id: `vital-${name}` }, el("span", {}, told), " ", el("b")));
  $(`#vital-${name}`).className = bad ? "vital bad" : "vital";
  put($(`#vital-${name} b`), value);
}
function showHealth(s) {
  const lag = s.intake_lag && Object.values(s.intake_lag).reduce((a, b) => a + b, 0);
  const all = Object.values(s.workers || {}), heard = s.service_heard_ms != null && s.service_heard_ms <= HEARD_MS_MAX;
  vital("redis", "Redis", s.error ? "no answer" : `${count(s.redis.used_bytes / 1048576)} MiB`, Boolean(s.error));
  vital("broker", "Broker", s.intake_lag === null ? "no answer" : "answers", s.intake_lag === null);
  vital("lag", "Intake lag", count(lag));
  vital("queries", "Queries", heard ? `${all.filter(Boolean).length} of ${all.length}` : s.starting ? "starting" : "none", !s.starting && (!heard || !all.every(Boolean)));
  vital("rejected", "Rejected", count(s.rejected), s.rejected > 0);
  vital("dead", "Dead", count(s.dead), s.dead > 0);
  if (s.limits && Object.keys(s.limits).length) vital("limits", "Held by limits", count(s.limited));
  if (s.canary_late_ms != null) vital("canary", "Last canary", span(s.canary_late_ms));
  const more = s.why.filter((one) => one !== $("#headline-text").textContent && !isPlanned(one));
  const told = [...s.why.map((one) => [one]), ...LEFT.filter(([name]) => s[name]).map(([name, path, what]) => [`${count(s[name])} ${what(s[name] === 1)} `, el("a", { href: path }, "Look at them")])];
  tellWhy(told, more.join("\n"));
}
// What waits for a limit waits because somebody wants it to.
const isPlanned = (text) => text.includes(" wait for the limit of ");
// What was refused or failed stays until somebody looks: it is told, but does not open the row.
const LEFT = [["rejected", "/rejected", (one) => `${one ? "record was" : "records were"} rejected since the store was made; the reason is in ${one ? "its" : "their"} headers.`], ["dead", "/dead", (one) => (one ? "message is dead; what failed, or that it expired, is in its headers." : "messages are dead; what failed, or that they expired, is in their headers.")]];
function tellWhy(told, opening) {
  const place = $("#why"), text = told.map(([first]) => first).join("\n");
  if (place.dataset.told !== text) place.replaceChildren(...told.map((parts) => el("li", { class: isPlanned(parts[0]) ? "planned" : null }, ...parts)));
  place.dataset.told = text;
  if ((place.dataset.opening ?? "") === opening) return;
  place.dataset.opening = opening;
  $("#health").open = opening !== "";
}

function showStats(s) {
  const [kind, text] = sentence(s);
  $("#headline").className = kind;
  put($("#headline-text"), text);
  if (!s.error) showNumbers(s);
  $("#numbers").classList.toggle("past", Boolean(s.error));
  showHealth(s);
  guard(showTrend)();
  const empty = !s.error && !s.pending && !s.delivered;
  if (firstStart || empty) (firstStart ??= import("./first.js")).then((first) => first.show(s, empty));
  if (!performance.getEntriesByName("numbers-shown").length) performance.mark("numbers-shown");
  // The first page follows the time, unless one is at work in it, or asking for it costs much.
  if (Date.now() - tableAsked < TABLE_MS || given("cursor")) return;
  const used = isUsed();
  tellStill(used ? "they stand still while you are at them" : isCostly() ? "few match, so they are not looked for again by themselves" : "");
  if (used || isCostly()) return;
  tableAsked = Date.now();
  guard(() => showPage({ byItself: true }))();
}

// --- the parts know each other here ---
$("#filter").addEventListener("submit", guard(async (event) => { event.preventDefault(); const looking = search(); readAddress(); await looking; await drawTimeline(); }));
onSelect(guard((from, to) => look({ due_from: from, due_to: to })));
onTopic(guard((topic) => look({ topic: given("topic") === topic ? "" : topic })));
onSelected(tellSelection);
suggestFrom({ id: idsSeen, topic: topicsSeen, tag: tagsSeen, caller: callersSeen });
const refresh = guard(async () => { await Promise.all([showPage(), drawTimeline()]); });
onBack(refresh);
addEventListener("popstate", () => { fillField(); readAddress(); refresh(); });

fillField();
guard(drawTimeline)(askFirst());
guard(showPage)();
guard(async () => showStats(await ask("GET", "/v1/stats")))();
onStats(showStats);
