import { $, ask, body, can, confirmed, count, el, guard, query, say, span, time, timeText } from "./shared.js";

const given = new URLSearchParams(location.search);
const bytesOf = (packed) => Uint8Array.from(atob(packed), (one) => one.charCodeAt(0));
const path = given.get("b")
  ? "/v1/schedules/" + Array.from(bytesOf(given.get("b")), (n) => "%" + n.toString(16).padStart(2, "0")).join("")
  : "/v1/schedules/" + encodeURIComponent(given.get("id"));
const id = given.get("id") || "";

function fact(name, value) { $("#facts").append(el("dt", {}, name), el("dd", {}, value)); }

// --- payload ---
function tree(value, name) {
  const label = name === undefined ? "" : `${name}: `;
  if (value === null || typeof value !== "object") return el("li", {}, label + JSON.stringify(value));
  const entries = Object.entries(value);
  const shut = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  return el("li", {}, el("details", { open: true }, el("summary", {}, label + shut), el("ul", {}, ...entries.map(([key, one]) => tree(one, key)))));
}
function hex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, 16384); at += 16) {
    const some = Array.from(bytes.slice(at, at + 16));
    lines.push(at.toString(16).padStart(8, "0") + "  " + some.map((n) => n.toString(16).padStart(2, "0")).join(" ").padEnd(49) + some.map((n) => (n > 31 && n < 127 ? String.fromCharCode(n) : ".")).join(""));
  }
  return lines.join("\n");
}
function showPayload(one) {
  if (!can.payload) { $("#payload-part").replaceChildren(el("p", {}, "Payloads are hidden for this role.")); return; }
  const bytes = one.value_base64 !== undefined ? bytesOf(one.value_base64) : new TextEncoder().encode(one.value ?? "");
  const forms = [["hex", () => el("pre", {}, hex(bytes))]];
  if (one.value != null) {
    forms.unshift(["text", () => el("pre", {}, one.value.slice(0, 65536))]);
    try {
      const parsed = JSON.parse(one.value);
      forms.unshift(["JSON", () => el("ul", { class: "tree" }, tree(parsed))]);
    } catch { /* it is text */ }
  }
  const choose = (name) => {
    $("#payload").replaceChildren(forms.find(([form]) => form === name)[1]());
    $("#forms").replaceChildren(...forms.map(([form]) => el("button", { type: "button", "aria-pressed": String(form === name), onclick: () => choose(form) }, form)));
  };
  choose(forms[0][0]);
  $("#size").textContent = `${count(bytes.length)} bytes`;
  $("#download").href = URL.createObjectURL(new Blob([bytes]));
  $("#download").download = "payload";
  $("#headers tbody").replaceChildren(...(one.headers || []).map((header) => {
    const [name, value] = Array.isArray(header) ? header : [header.name, `base64:${header.value_base64}`];
    return el("tr", {}, el("td", {}, name), el("td", {}, value === null ? "(null)" : value));
  }));
}

// --- life ---
async function showLife(one) {
  const [audit, delivered] = await Promise.all([ask("GET", "/v1/audit?limit=500"), ask("GET", "/v1/deliveries?" + query({ search: id, limit: 20 }))]);
  const events = [];
  if (one && one.origin) events.push([one.origin.timestamp_ms, `scheduled: ${one.origin.topic}, partition/position ${one.origin.place}`]);
  for (const entry of audit.items) if (entry.what.id === id) events.push([entry.at_ms, `${entry.action} by ${entry.who}`]);
  for (const each of delivered.items) if (each.id === id) {
    events.push([each.at_ms, `claimed and produced to ${each.topic}, late by ${span(each.late_ms)}`]);
    if (can.payload) {
      const found = await ask("GET", "/v1/records?" + query({ topic: each.topic, search: id, limit: 5 })).catch(() => ({ items: [] }));
      for (const record of found.items) events.push([record.at_ms, `on ${record.topic}, partition/position ${record.place}`]);
    }
  }
  events.sort((a, b) => a[0] - b[0]);
  $("#life").replaceChildren(...events.map(([at, text]) => el("li", {}, time(at), " ", text)));
  if (one) $("#life").append(el("li", {}, `${one.state}, due ${timeText(one.due_ms)}`));
  if (can.payload) {
    const versions = await ask("GET", "/v1/records?" + query({ topic: body.inbox, search: id, limit: 20 })).catch(() => ({ items: [] }));
    $("#versions").replaceChildren(...versions.items.filter((each) => each.key === id).map((each) =>
      el("li", {}, time(each.at_ms), ` ${each.place} `, each.value === null ? "(cancelled)" : (each.value ?? "(bytes)").slice(0, 200))));
  }
}

// --- deeds ---
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
  let one = null;
  try { one = await ask("GET", path); } catch (error) { fact("state", error.message); }
  if (one) {
    $("#one").textContent = one.id;
    fact("state", one.state); fact("due", time(one.due_ms)); fact("topic", one.topic);
    if (one.partition !== null) fact("partition", String(one.partition));
    if (one.key != null) fact("key", one.key);
    if (one.caller) fact("caller", one.caller);
    if (one.origin) fact("origin", `${one.origin.topic}-${one.origin.place.replace("/", "@")}`);
    fact("version", one.version);
    showPayload(one);
    if (can.write && one.state === "pending") {
      const to = el("input", { value: "+1h", size: 22, "aria-label": "new time: +1h or 2026-12-01T08:00:00Z" });
      $("#actions").append(
        deed("Cancel", "It is taken back; this can be undone from the audit trail.", () => ask("DELETE", path)),
        deed("Deliver now", "It is delivered at once.", () => ask("POST", path + ":deliver-now")),
        deed("Move to", "It gets another due time.", () => ask("PATCH", path, { due_at: to.value })), to);
    }
  }
  await showLife(one);
}
guard(show)();
