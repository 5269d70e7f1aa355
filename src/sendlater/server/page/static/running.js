// Who is at work: services and handlers; and what waits for limits.
import { $, ask, badge, count, el, guard, isLive, onBack, onStats, query, rowsOrNone, span, when } from "./shared.js";

const CALLERS = 5;
const row = (...cells) => el("tr", {}, ...cells.map((cell) => el("td", {}, cell)));
const toTopic = (path, topic, text = topic) => el("a", { href: `${path}?` + query({ topic }) }, text);

// Rows are replaced only where something has changed, so that nothing moves under a reader.
function fill(table, told, rows, none) {
  const now = JSON.stringify(told);
  if ($(table).dataset.told === now) return;
  $(table).dataset.told = now;
  rowsOrNone(table, rows(), none);
}

function serviceRows({ active, standby, handovers }) {
  const now = active ? row(active.name, badge("active", "good"), active.since_ms ? when(active.since_ms) : "", "") : row("none", badge("nobody is active", "bad"), "", "");
  const before = handovers.map((one, n) => [one, handovers[n - 1]]).slice(active ? 1 : 0);
  return [now, ...standby.map((name) => row(name, badge("stands by", "calm"), "", "")), ...before.map(([one, after]) => row(one.name, badge("handed over"), when(one.at_ms), after ? when(after.at_ms) : ""))];
}
const handlerRows = (handlers) => handlers.map((one) => {
  const done = one.succeeded + one.retried + one.dead;
  const type = one.errors.length ? el("span", {}, toTopic("/records", one.type), " ", ...one.errors.map((error) => el("span", { class: "bad" }, error))) : toTopic("/records", one.type);
  const bad = (n) => (n ? el("b", { class: "bad" }, count(n)) : "0");
  return row(type, one.group, count(one.workers), count(one.ready), count(one.in_flight), count(one.succeeded), count(one.retried), bad(one.dead + one.skipped), done ? span((one.seconds / done) * 1000) : "");
});
const limitRows = (limits) => Object.entries(limits).map(([topic, limit]) => {
  const callers = Object.entries(limit.waiting).sort(([, a], [, b]) => b - a), sum = callers.reduce((all, [, n]) => all + n, 0);
  const by = callers.slice(0, CALLERS).map(([name, n]) => `${name || "no name"} ${count(n)}`);
  if (callers.length > CALLERS) by.push(`${count(callers.length - CALLERS)} more`);
  return row(toTopic("/", topic), limit.per_second.toLocaleString("en"), count(sum), sum ? span((sum / limit.per_second) * 1000) : "", by.join(", "));
});

async function show() {
  const { services, handlers } = await ask("GET", "/v1/running");
  fill("#services", services, () => serviceRows(services), "");
  fill("#handlers", handlers, () => handlerRows(handlers), "No worker handles events.");
}
const showLimits = (limits) => fill("#limits", limits, () => limitRows(limits), "No topic has a limit.");
const look = guard(show);
look();
guard(async () => showLimits((await ask("GET", "/v1/stats")).limits ?? {}))();
onBack(look);
onStats((stats) => { if (isLive()) { showLimits(stats.limits ?? {}); look(); } });
