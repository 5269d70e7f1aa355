// What is selected, by hand or by a filter, and what can be done with all of it.
import { $, ask, can, confirmed, count, el, guard, onKey, put, say, undone } from "./shared.js";
import { filter, look, mark, selected, showPage, toRow } from "./table.js";
import { write } from "./search.js";
import { countSelected, drawTimeline } from "./timeline.js";

const IDS_MAX = 1000;
const SELECTS = ["id_prefix", "topic", "tag", "caller", "due_from", "due_to"];
const by = el("input", { id: "by", value: "1h", size: 5, "aria-label": "how long, for shift and spread" });

function wanted() {
  if (selected.size > IDS_MAX) throw new Error(`Select at most ${count(IDS_MAX)} by hand; a filter can select more.`);
  return selected.size ? { ids: [...selected.keys()] } : filtered();
}
const filtered = () => Object.fromEntries(Object.entries(filter()).filter(([name]) => SELECTS.includes(name)));
function words() {
  if (selected.size) return `${count(selected.size)} selected`;
  const { due_from, due_to, ...more } = filtered();
  const n = Object.keys(more).length ? null : countSelected();
  return n === null ? `All that match ${write(filtered())}` : `${count(n)} in the selected span`;
}

function deed(id, label, title, path, more, what, kind = "") {
  const work = guard(async () => {
    const stood = document.activeElement?.closest("#schedules tbody tr");
    const chosen = { ...wanted(), ...more() };
    const dry = await ask("POST", path, { ...chosen, dry_run: true });
    const n = `${count(dry.matched)} ${dry.matched === 1 ? "schedule" : "schedules"}`;
    if (!(await confirmed(`${title(n)}?`, [what(n), `Chosen: ${selected.size ? words() : write(filtered())}. It goes into the audit trail.`], { danger: kind === "danger" }))) return;
    const done = await ask("POST", path, chosen);
    const back = done.changed && id !== "now" ? async () => { await undone(done.audit_id); await again(); toRow(); } : null;
    say(`${label}: ${count(done.changed)} of ${count(done.matched)} changed.`, { undo: back });
    selected.clear();
    await again();
    if (stood) toRow();
  });
  return el("button", { type: "button", id: `all-${id}`, class: kind, onclick: work }, label);
}
const again = () => Promise.all([showPage(), drawTimeline()]);

// Shown while something is selected; never covers what has the focus, as the page ends below it.
export function tellSelection() {
  const on = can.admin && (selected.size > 0 || Object.keys(filtered()).length > 0) && filter().state !== "claimed" && !$("#schedules tr.none.bad");
  $("#bulk").hidden = !on;
  document.body.classList.toggle("selecting", on);
  if (!on) return;
  put($("#bulk-what"), words());
  const none = !selected.size && countSelected() === 0 && Object.keys(filtered()).every((name) => name.startsWith("due"));
  for (const button of document.querySelectorAll("#actions [id^=all-]")) button.disabled = none;
}
export function drop() {
  selected.clear();
  mark();
}

if (can.admin) {
  const how = () => by.value.trim();
  function shift() {
    if (/^[-+]?(0+[a-z]*)?$/i.test(how())) throw new Error(`Expected how long to shift, such as 1h or -30m, got ${how() || "nothing"}`);
    return { shift: how() };
  }
  const moved = (n) => how().startsWith("-")
    ? `${n} will be due ${how().slice(1)} earlier. What is due sooner than that is delivered at once, and cannot be undone; the rest can.`
    : `${n} will be due ${how()} later. This can be undone.`;
  $("#actions").append(
    deed("cancel", "Cancel all", (n) => `Cancel ${n}`, "/v1/schedules:cancel", () => ({}), (n) => `${n} will not be delivered. This can be undone.`, "danger"),
    deed("now", "Deliver all now", (n) => `Deliver ${n} now`, "/v1/schedules:deliver-now", () => ({}), (n) => `${n} will be delivered at once. This cannot be undone.`),
    deed("shift", "Shift all by", (n) => `Shift ${n} by ${how()}`, "/v1/schedules:reschedule", shift, moved),
    deed("spread", "Spread all over", (n) => `Spread ${n} over ${how()}`, "/v1/schedules:reschedule", () => ({ spread: how() }), (n) => `${n} will be due evenly over ${how()}, from the first one's due time on. This can be undone.`),
    by, el("button", { type: "button", class: "plain", id: "drop", onclick: guard(async () => { if (selected.size) drop(); else await look(Object.fromEntries(SELECTS.map((name) => [name, ""]))); }) }, "Drop selection"));
  onKey("c", () => { if (!$("#bulk").hidden) $("#all-cancel").click(); });
  onKey("Escape", drop);
}
