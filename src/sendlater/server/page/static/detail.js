// One schedule: its facts, payload, life and versions, and the actions on it.
import { $, ask, body, can, confirmed, count, el, guard, query, say, span, time } from "./shared.js";

const given = new URLSearchParams(location.search);
const bytesOf = (packed) => Uint8Array.from(atob(packed), (one) => one.charCodeAt(0));
const path = given.get("b")
  ? "/v1/schedules/" + Array.from(bytesOf(given.get("b")), (n) => "%" + n.toString(16).padStart(2, "0")).join("")
  : "/v1/schedules/" + encodeURIComponent(given.get("id"));
const id = given.get("id") || "";

function fact(name, value) { $("#facts").append(el("dt", {}, name), el("dd", {}, value)); }

// --- payload ---
// Numbers are shown as written: JavaScript would change 1.0, 1e400 and numbers above 2^53.
class Written { constructor(source) { this.source = source; } }
const exact = (_, value, context) => (typeof value === "number" && context?.source ? new Written(context.source) : value);
function tree(value, name) {
  const label = name === undefined ? "" : `${name}: `;
  if (value instanceof Written) return el("li", {}, label + value.source);
  if (value === null || typeof value !== "object") return el("li", {}, label + JSON.stringify(value));
  const entries = Object.entries(value);
  const shut = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  return el("li", {}, el("details", { open: true }, el("summary", {}, label + shut), el("ul", {}, ...entries.map(([key, one]) => tree(one, key)))));
}
const [TEXT_MAX, HEX_MAX] = [65536, 16384];
function hex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_MAX); at += 16) {
    const some = Array.from(bytes.slice(at, at + 16));
    lines.push(at.toString(16).padStart(8, "0") + "  " + some.map((n) => n.toString(16).padStart(2, "0")).join(" ").padEnd(49) + some.map((n) => (n > 31 && n < 127 ? String.fromCharCode(n) : ".")).join(""));
  }
  return lines.join("\n");
}
function showPayload(one) {
  $("#payload-part").hidden = false;
  if (!can.payload) { $("#payload-part").replaceChildren(el("p", {}, "Payloads are hidden for this role.")); return; }
  const bytes = one.value_base64 !== undefined ? bytesOf(one.value_base64) : new TextEncoder().encode(one.value ?? "");
  const forms = [["hex", () => el("pre", {}, hex(bytes))]];
  if (one.value != null) {
    forms.unshift(["text", () => el("pre", {}, one.value.slice(0, TEXT_MAX))]);
    try {
      const parsed = JSON.parse(one.value, exact);
      forms.unshift(["JSON", () => el("ul", { class: "tree" }, tree(parsed))]);
    } catch { /* it is text */ }
  }
  const choose = (name) => {
    $("#payload").replaceChildren(forms.find(([form]) => form === name)[1]());
    $("#forms").replaceChildren(...forms.map(([form]) => el("button", { type: "button", "aria-pressed": String(form === name), onclick: () => choose(form) }, form)));
  };
  choose(forms[0][0]);
  $("#size").textContent = `${count(bytes.length)} bytes` + (bytes.length > HEX_MAX ? `; of it are shown ${count(TEXT_MAX)} as text, ${count(HEX_MAX)} as hex` : "");
  $("#download").href = URL.createObjectURL(new Blob([bytes]));
  $("#download").download = "payload";
  $("#headers tbody").replaceChildren(...(one.headers || []).map((header) => {
    const [name, value] = Array.isArray(header) ? header : [header.name, `base64:${header.value_base64}`];
    return el("tr", {}, el("td", {}, name), el("td", {}, value === null ? "(null)" : value));
  }));
}

// --- life ---
const placeOf = (record) => `${record.topic}-${record.place.replace("/", "@")}`;
async function itsVersions(one) {
  if (!can.payload) return [];
  const inboxes = one?.origin ? [one.origin.topic] : body.inboxes.split(" ");
  const got = await Promise.all(inboxes.map((topic) => ask("GET", "/v1/records?" + query({ topic, limit: 20 }) + "&key=" + path.split("/").pop()).catch(() => ({ items: [] }))));
  return got.flatMap((each) => each.items).sort((a, b) => b.at_ms - a.at_ms);
}
// Each delivery is looked up on its topic, for its place and content.
async function itsDeliveries() {
  const told = await ask("GET", "/v1/deliveries?" + query({ search: id, limit: 20 }));
  return Promise.all(told.items.filter((each) => each.id === id).map(async (each) => {
    const found = await ask("GET", "/v1/records?" + query({ topic: each.topic, id, since_ms: each.at_ms, limit: 1 })).catch(() => ({ items: [] }));
    return [each, found.items[0]];
  }));
}
async function itsChanges() {
  const audit = await ask("GET", "/v1/audit?limit=500");
  return audit.items.filter((entry) => entry.what.id === id);
}
async function showLife(one) {
  const [changes, delivered, versions] = await Promise.all([itsChanges(), itsDeliveries(), itsVersions(one)]);
  const events = versions.map((each) => [each.at_ms, each.value === null ? `cancelled on ${placeOf(each)}` : `scheduled on ${placeOf(each)}`]);
  if (one?.origin && !versions.some((each) => each.place === one.origin.place)) events.push([one.origin.timestamp_ms, `scheduled on ${placeOf(one.origin)}`]);
  for (const entry of changes) events.push([entry.at_ms, `${entry.action === "reschedule" ? "moved" : entry.action} by ${entry.who}`]);
  for (const [each, record] of delivered) {
    events.push([each.at_ms, `claimed, late by ${span(each.late_ms)}`]);
    events.push([record ? record.at_ms : each.at_ms, record ? `produced at ${placeOf(record)}, late by ${span(record.at_ms - each.due_ms)}` : `produced on ${each.topic}`]);
  }
  if (one) events.push([one.due_ms, `${one.state}, due`]);
  events.sort((a, b) => a[0] - b[0]);
  $("#life").replaceChildren(...events.map(([at, text]) => el("li", {}, time(at), " ", text)));
  $("#versions").replaceChildren(...versions.map((each) =>
    el("li", {}, time(each.at_ms), ` ${placeOf(each)} `, each.value === null ? "(cancelled)" : (each.value ?? "(bytes)").slice(0, 200))));
  $("#versions-note").textContent = !can.payload ? "Payloads are hidden for this role." : versions.length ? "" : "None among the last records of the inbox.";
  if (!one && delivered.length) showDelivered(...delivered[0]);
}
function showDelivered(each, record) {
  $("#facts").replaceChildren();
  $("#one").textContent = id;
  fact("state", "delivered"); fact("due", time(each.due_ms)); fact("topic", each.topic); fact("late by", span(each.late_ms));
  if (!record) return;
  fact("place", placeOf(record));
  if (record.origin) fact("origin", record.origin);
  showPayload(record);
}

// --- actions ---
function deed(label, words, work) {
  return el("button", { type: "button", onclick: guard(async () => {
    if (!(await confirmed(label, words))) return;
    const told = await work();
    say(`${label}: ${told.answer}.`);
    await show();
  }) }, label);
}
async function show() {
  $("#facts").replaceChildren();
  $("#actions").replaceChildren();
  $("#payload-part").hidden = true;
  let one = null;
  try { one = await ask("GET", path); } catch (error) { fact("state", error.message); }
  if (one) {
    $("#one").textContent = one.id;
    fact("state", one.state); fact("due", time(one.due_ms)); fact("topic", one.topic);
    if (one.partition !== null) fact("partition", String(one.partition));
    if (one.key != null) fact("key", one.key);
    if (one.caller) fact("caller", one.caller);
    if (one.origin) fact("origin", placeOf(one.origin));
    fact("version", one.version);
    showPayload(one);
    if (can.write && one.state === "pending") {
      const to = el("input", { value: "+1h", size: 22, "aria-label": "new time: +1h or 2026-12-01T08:00:00Z" });
      $("#actions").append(
        deed("Cancel", "It is cancelled; this can be undone from the audit trail.", () => ask("DELETE", path)),
        deed("Deliver now", "It is delivered at once.", () => ask("POST", path + ":deliver-now")),
        deed("Move to", "It gets another due time.", () => ask("PATCH", path, { due_at: to.value })), to);
    }
  }
  await showLife(one);
}
guard(show)();
