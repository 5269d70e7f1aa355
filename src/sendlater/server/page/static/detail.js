// One schedule: its life as a timeline, its payload and versions, and the actions on it.
import { $, ask, body, can, confirmed, count, el, given, guard, inWords, iso, onBack, onStats, put, query, say, span, state, stillIt, time, undone, visible, visibleLines, when } from "./shared.js";
import { bytesOf, difference, showPayload } from "./payload.js";

const id = given("id");
const encoded = given("b") ? Array.from(bytesOf(given("b")), (n) => "%" + n.toString(16).padStart(2, "0")).join("") : encodeURIComponent(id);
// Not in the path: no browser sends `.` and `..` there.
const path = (verb = "") => `/v1/schedules/${verb}?id=${encoded}`;
const [VERSIONS, DELIVERIES, CHANGES] = [20, 20, 500];
const NEW_TIME = /^(\+?P?[\dT]|\+)/i;

function fact(name, value) { $("#facts").append(el("dt", {}, name), el("dd", {}, value)); }
const placeOf = (record) => `${record.topic}-${record.place.replace("/", "@")}`;
const toPlace = (record) => el("a", { href: "/records?" + query({ topic: record.topic, place: record.place }) }, placeOf(record));

// --- retries ---
const headerOf = (one, name) => (one.headers ?? []).map((each) => (Array.isArray(each) ? each : [each.name, each.value])).findLast(([key]) => key === name)?.[1];
const attemptOf = (one) => 1 + (Number(one && headerOf(one, "retry-attempt")) || 0);
const nth = (one) => (attemptOf(one) > 1 ? `, attempt ${attemptOf(one)}` : "");
// What it is a retry of: the delivery that failed first, and every attempt that is on the topic.
function tellRetry(one) {
  if (attemptOf(one) === 1) return;
  const of = headerOf(one, "retry-of"), first = of?.match(/^(.+)@\d+$/s)?.[1], [, topic, place] = of?.match(/^([^/]+)\/(\d+\/\d+)$/) ?? [];
  const places = of ? [", first failed as ", first ? el("a", { href: "/schedule?" + query({ id: first }) }, visible(first)) : place ? toPlace({ topic, place }) : of, ", ", el("a", { href: "/records?" + query({ topic: one.topic, search: of }) }, "all attempts")] : [];
  fact("attempt", el("span", {}, count(attemptOf(one)), ...places));
}

// --- asking ---
let unread = false; // an inbox does not answer
async function itsVersions(one) {
  if (!can.payload) return [];
  const inboxes = one?.origin ? [one.origin.topic] : body.inboxes.split(" ");
  unread = false;
  const got = await Promise.all(inboxes.map((topic) => ask("GET", "/v1/records?" + query({ topic, limit: VERSIONS }) + "&key=" + encoded).catch(() => { unread = true; return { items: [] }; })));
  return got.flatMap((each) => each.items).sort((a, b) => b.at_ms - a.at_ms);
}
// Each delivery is looked up on its topic, for its place and content.
async function itsDeliveries() {
  const told = await ask("GET", "/v1/deliveries?" + query({ limit: DELIVERIES }) + "&id=" + encoded);
  return Promise.all(told.items.map(async (each) => {
    const found = await ask("GET", "/v1/records?" + query({ topic: each.topic, since_ms: each.at_ms, limit: DELIVERIES }) + "&id=" + encoded).catch(() => ({ items: [] }));
    // Later ones of the same id, such as the next attempt of a retry, are due at another time.
    return [each, found.items.findLast((record) => Number(record.due_ms) === each.due_ms)];
  }));
}
// Of what is gone: whether it was rejected, or has expired.
async function itsRefusal() {
  const of = (topic) => ask("GET", "/v1/records?" + query({ topic, limit: 1 }) + "&id=" + encoded).catch(() => ({ items: [] }));
  const told = await Promise.all([body.topic, body.dead].map(of));
  return told.flatMap((each) => each.items).sort((a, b) => b.at_ms - a.at_ms)[0];
}
const refusal = (record) => (record.reason === "expired" ? "expired" : "rejected");
async function itsChanges() {
  return (await ask("GET", `/v1/audit?limit=${CHANGES}&id=${encoded}`)).items;
}

// --- life ---
const VERBS = { undo: "undone", reschedule: "moved", shift: "moved", spread: "moved", move: "moved", cancel: "cancelled", "deliver-now": "delivered at once", redrive: "redriven", pause: "paused", resume: "resumed", trigger: "triggered" };
const KINDS = { cancelled: "bad" };
function stepsOf(one, changes, delivered, versions, refused) {
  // To enqueue an event also cancels its next attempt, which is seldom there.
  const oldest = versions.toReversed(), first = oldest.findIndex((each) => each.value !== null);
  const steps = oldest.map((each, n) => {
    const [what, kind] = each.value !== null ? ["scheduled", "calm"] : first >= 0 && first < n ? ["cancelled", "bad"] : ["cancelled, if there was one", "calm"];
    return { at: each.at_ms, what, kind, more: ["on ", toPlace(each)] };
  });
  if (one?.origin && !versions.some((each) => each.place === one.origin.place)) steps.push({ at: one.origin.timestamp_ms, what: "scheduled", kind: "calm", more: ["on ", toPlace(one.origin)] });
  for (const entry of changes) {
    const what = VERBS[entry.action] ?? entry.action;
    steps.push({ at: entry.at_ms, what, kind: KINDS[what] ?? "calm", more: [`by ${entry.who}` + (entry.count > 1 ? `, with ${count(entry.count - 1)} more` : "")] });
  }
  for (const [each, record] of delivered) {
    const held = each.held_ms ? `, after ${span(each.held_ms)} held by a limit` : "";
    steps.push({ at: each.at_ms, what: "claimed", kind: "calm", more: [`late by ${span(each.late_ms)}${held}`] });
    steps.push(record ? { at: record.at_ms, what: "produced", kind: "good", more: ["at ", toPlace(record), `, late by ${span(record.at_ms - each.due_ms - each.held_ms)}${nth(record)}`] } : { at: each.at_ms, what: "produced", kind: "good", more: [`on ${each.topic}`] });
  }
  if (refused) steps.push({ at: refused.at_ms, what: refusal(refused), kind: "bad", more: [`${refused.reason}: ${refused.detail} `, toPlace(refused)] });
  if (one?.held_since_ms !== undefined) steps.push({ at: one.due_ms, what: "due" + nth(one), kind: "", more: [] }, { at: one.held_since_ms, what: "held by a limit", kind: "", more: [] });
  else if (one && !one.plan?.paused) steps.push({ at: one.due_ms, what: (one.state === "pending" ? "will be due" : `${one.state}, due`) + nth(one), kind: "", more: [] });
  return steps.sort((a, b) => a.at - b.at);
}
function drawLife(steps) {
  $("#life").replaceChildren(...steps.map(({ at, what, kind, more }, n) => {
    const gap = n + 1 < steps.length ? el("span", { class: "gap" }, span(steps[n + 1].at - at)) : null;
    return el("li", { class: kind }, el("b", {}, what), el("span", {}, ...more), more.length ? el("br") : null, time(at), gap);
  }));
}
function drawVersions(versions) {
  const text = (each) => each.value ?? "(bytes)";
  $("#versions").replaceChildren(...versions.map((each, n) => {
    const before = versions.slice(n + 1).find((other) => other.value !== null);
    const what = each.value === null ? el("p", { class: "bad" }, "(cancelled)") : before && text(before) !== text(each) ? difference(text(before), text(each)) : el("pre", { tabindex: "0" }, visibleLines(text(each).slice(0, 2000)));
    return el("li", {}, el("div", { class: "row head" }, time(each.at_ms), toPlace(each), before && each.value !== null && text(before) === text(each) ? el("span", { class: "soft" }, "the same payload as before") : null), what);
  }));
  $("#versions-note").textContent = !can.payload ? "Payloads are hidden for this role." : unread ? "The inbox does not answer now." : versions.length ? "" : body.kafka === "true" ? "None among the last records of the inbox." : "None on the inbox. Without Kafka, what is scheduled through REST, the client or the shell goes straight to Redis, which keeps only the last version.";
}
// --- coming again ---
const NEXT = 10;
const MISSED = { one: "one, late", none: "none", all: "all, late" };
async function showPlan(plan) {
  $("#plan-part").hidden = !plan;
  if (!plan) return;
  const facts = [["comes again", inWords(plan)], ["left", plan.left ? count(plan.left) : "without end"], ["missed ones", MISSED[plan.missed ?? "one"]]];
  if (plan.end_ms !== undefined) facts.push(["ends", when(plan.end_ms)]);
  $("#next-title").hidden = Boolean(plan.paused);
  $("#next").replaceChildren();
  if (plan.paused) facts.unshift(["paused", "nothing is delivered until it is resumed"]);
  $("#plan").replaceChildren(...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  if (plan.paused) return;
  const told = await ask("GET", "/v1/next?" + query({
    cron: plan.cron, zone: plan.zone, every: plan.every_ms && `${plan.every_ms}ms`, start: iso(plan.planned_ms),
    end: plan.end_ms && iso(plan.end_ms), count: Math.min(NEXT, plan.left ?? NEXT),
  })).catch(() => ({ times: [], times_ms: [], notes: [] }));
  const inZone = (n) => (plan.zone ? el("span", { class: "zone" }, `${told.times[n].replace("T", " ").replace(".000", "")} ${plan.zone}`) : null);
  $("#next").replaceChildren(...told.times_ms.map((ms, n) => el("li", {}, when(ms), " ", inZone(n), told.notes[n] ? el("b", { class: "note" }, told.notes[n]) : null)));
}

async function showLife(one) {
  const [changes, delivered, versions, refused] = await Promise.all([itsChanges(), itsDeliveries(), itsVersions(one), one ? null : itsRefusal()]);
  const steps = stepsOf(one, changes, delivered, versions, refused);
  drawLife(steps);
  drawVersions(versions);
  if (!one) showEnd(delivered[0], refused, steps.findLast(({ what }) => what === "cancelled"));
}
// What is gone is what became of it last.
function showEnd(delivered, refused, cancelled) {
  const ends = [];
  if (delivered) ends.push([delivered[0].at_ms, () => showDelivered(...delivered)]);
  if (refused) ends.push([refused.at_ms, () => showRefused(refused)]);
  if (cancelled) ends.push([cancelled.at, () => showCancelled(cancelled)]);
  ends.sort(([a], [b]) => b - a)[0]?.[1]();
}
function showCancelled({ at, more }) {
  $("#facts").replaceChildren();
  $("#state").replaceChildren(state("cancelled"));
  fact("cancelled", when(at));
  if (typeof more[0] === "string" && more[0].startsWith("by ")) fact("by", more[0].slice(3));
}
function showRefused(record) {
  $("#facts").replaceChildren();
  $("#state").replaceChildren(state(refusal(record)));
  fact("reason", record.reason ?? ""); fact("detail", record.detail ?? ""); fact("place", toPlace(record));
  showPayload(record);
}
function showDelivered(each, record) {
  $("#facts").replaceChildren();
  $("#one").textContent = visible(id);
  $("#state").replaceChildren(state("delivered"));
  fact("due", when(each.due_ms)); fact("topic", each.topic); fact("late by", span(each.late_ms));
  if (!record) return;
  fact("place", toPlace(record));
  tellRetry(record);
  if (record.origin) fact("origin", record.origin);
  showPayload(record);
}

// --- actions ---
// The way back from a change of one schedule is its entry in the audit trail.
const taken = (action) => async () => {
  const entry = (await itsChanges()).find((each) => each.action === action && each.can_undo);
  if (!entry) throw new Error("It can no longer be undone.");
  await undone(entry.id);
  await show();
};
function deed(label, words, work, { action = "", kind = "" } = {}) {
  return el("button", { type: "button", class: kind, onclick: guard(async () => {
    const what = typeof words === "function" ? words() : words;
    if (!(await confirmed(`${label}?`, what, { danger: kind === "danger" }))) return;
    try {
      const told = await work(), done = DONE.has(told.answer);
      say(`${label}: ${told.answer}.`, { undo: action && done && can.admin ? taken(action) : null, bad: !done });
    } finally { await show(); }
  }) }, label);
}
const DONE = new Set(["cancelled", "moved", "paused", "resumed", "ended", "triggered"]);
// Only what was shown is changed, not what has replaced it since.
const asShown = async (one) => ({ "If-Match": `"${(await stillIt(one, path()) ?? one).version}"` });
function offerRecurring(one) {
  const act = (verb) => async () => {
    const now = await stillIt(one, path());
    if (!now) throw new Error("the schedule has changed since");
    return ask("POST", path(`:${verb}`), undefined, verb === "trigger" ? {} : { "If-Match": `"${now.version}"` });
  };
  $("#actions").append(
    one.plan.paused
      ? deed("Resume", "It goes on with its first planned time from now on.", act("resume"))
      : deed("Pause", "Nothing of it is delivered until it is resumed.", act("pause")),
    deed("Trigger", "One more is delivered at once; the plan stays as it is.", act("trigger")));
}
function newTime(text) {
  if (/^\d{4}-/.test(text) && !/(z|[+-]\d\d:?\d\d)$/i.test(text)) throw new Error(`Expected a time with its zone, such as 2026-12-01T08:00:00Z, got ${text}`);
  if (!NEW_TIME.test(text)) throw new Error(`Expected when: +1h, or 2026-12-01T08:00:00Z; got ${text || "nothing"}`);
  if (Date.parse(text) <= Date.now()) return `${text} is past: it will be delivered at once. This cannot be undone.`;
  return `It will be due ${text.startsWith("+") ? `${text.slice(1)} from now` : `at ${text}`}. This can be undone.`;
}
function offerActions(one) {
  if (one.plan) offerRecurring(one);
  const cancel = deed("Cancel", "It will not be delivered. This can be undone.", async () => ask("DELETE", path(), undefined, await asShown(one)), { action: "cancel", kind: "danger" });
  if (one.plan?.paused) return void $("#actions").append(cancel);
  const to = el("input", { value: "+1h", size: 20, "aria-label": "new time: +1h or 2026-12-01T08:00:00Z" });
  $("#actions").append(
    cancel,
    deed("Deliver now", "It will be delivered at once. This cannot be undone.", async () => ask("POST", path(":deliver-now"), undefined, await asShown(one))),
    deed("Move to", () => newTime(to.value.trim()), async () => ask("PATCH", path(), { due_at: to.value }, await asShown(one)), { action: "reschedule" }), to);
}

let stands = null, shown = 0;
async function show() {
  shown = Date.now();
  let one = null, problem = "";
  const named = id || given("b");
  if (named) try { one = await ask("GET", path()); } catch (error) { problem = error.message; }
  stands = one;
  for (const place of ["#facts", "#actions", "#state"]) $(place).replaceChildren();
  $("#payload-part").hidden = $("#plan-part").hidden = true;
  put($("#one"), named ? visible(id) : "Which schedule?");
  if (!named) return fact("expected", "an address that ends with ?id= and the schedule's id");
  if (problem) fact("state", problem);
  if (one) {
    $("#one").textContent = visible(one.id);
    document.title = `${visible(one.id)} - sendlater`;
    $("#state").replaceChildren(state(one.held_since_ms === undefined ? one.state : "held"));
    fact("due", one.plan?.paused ? "when it is resumed" : when(one.due_ms)); fact("topic", one.topic);
    if (one.expires_ms !== undefined) fact("expires", when(one.expires_ms));
    if (one.partition !== null) fact("partition", String(one.partition));
    if (one.key != null) fact("key", visible(one.key));
    if (one.tags) fact("tags", one.tags.map(visible).join(", "));
    if (one.caller) fact("caller", visible(one.caller));
    tellRetry(one);
    if (one.origin) fact("origin", toPlace(one.origin));
    fact("version", one.version);
    showPayload(one);
    await showPlan(one.plan);
    if (can.write && one.state === "pending") offerActions(one);
  }
  await showLife(one);
}
// Nobody's place is taken away: who has gone to something here, marks it or is asked a question sees it stand still.
const isUsed = () => $("#main").contains(document.activeElement) || !getSelection().isCollapsed || $("dialog[open]");
// What is due changes soon; claimed lasts seconds at most, until the batch is settled.
const [SOON_MS, STILL_MS] = [1_000, 10_000];
onStats(() => {
  const soon = stands && (stands.state === "claimed" || (!stands.plan?.paused && stands.due_ms <= Date.now()));
  if (stands && Date.now() - shown >= (soon ? SOON_MS : STILL_MS) && !isUsed()) guard(show)();
});
onBack(guard(show));
guard(show)();
