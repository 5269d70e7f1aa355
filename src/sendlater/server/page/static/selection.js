// What is selected, by hand or by a filter, and what can be done with all of it.
import { $, ask, can, confirmed, count, el, guard, onKey, put, say, stillIt, undone } from "./shared.js";
import { filter, isTyped, look, mark, selected, showPage, toRow } from "./table.js";
import { write } from "./search.js";
import { countSpan, drawTimeline, readAddress } from "./timeline.js";

const IDS_MAX = 1000;
const SELECTS = ["id_prefix", "topic", "tag", "caller", "due_from", "due_to"];
const how = () => by.value.trim();
const by = el("input", { id: "by", value: "1h", size: 5, "aria-label": "how long, for shift and spread" });

function wanted() {
  if (selected.size > IDS_MAX) throw new Error(`Select at most ${count(IDS_MAX)} by hand; a filter can select more.`);
  if (selected.size) return { ids: [...selected.keys()] };
  if (isTyped()) throw new Error("What is typed in the filter is not what is shown: press enter there, or escape, first.");
  return filtered();
}
const filtered = () => Object.fromEntries(Object.entries(filter()).filter(([name]) => SELECTS.includes(name)));
// Of a span alone it is known how many are due in it; of other filters, when one asks for a change.
let inSpan = { of: "", n: null };
const spanOf = ({ due_from, due_to, ...more }) => (!selected.size && due_from && due_to && !Object.keys(more).length ? `${due_from} ${due_to}` : "");
function words() {
  if (selected.size) return `${count(selected.size)} selected`;
  return inSpan.n === null || inSpan.of !== spanOf(filtered()) ? `All that match ${write(filtered())}` : `${count(inSpan.n)} in the selected span`;
}
async function countAnew() {
  const { due_from, due_to } = filtered(), of = spanOf(filtered());
  if (!of) return;
  const n = await countSpan(due_from, due_to).catch(() => null);
  inSpan = { of, n };
  tellNumber();
}
function tellNumber() {
  put($("#bulk-what"), words());
  const none = inSpan.n === 0 && inSpan.of === spanOf(filtered());
  for (const button of document.querySelectorAll("#actions [id^=all-]")) button.disabled = none;
}

// Asks until as many match as were told: others may come meanwhile, and `due:<4h` moves with the time.
async function agreed(path, chosen, question, kind) {
  const matched = async () => {
    const { matched, answers } = await ask("POST", path, { ...chosen, dry_run: true });
    return [matched - (answers.paused ?? 0), answers.paused ?? 0];
  };
  for (let now = await matched(), told = ""; `${now}` !== told; now = await matched()) {
    told = `${now}`;
    const [n, paused] = now;
    const [title, lines] = question(`${count(n)} ${n === 1 ? "schedule" : "schedules"}`);
    if (paused) lines.push(`${count(paused)} more ${paused === 1 ? "is paused and stays as it is" : "are paused and stay as they are"}.`);
    if (!(await confirmed(title, lines, { danger: kind === "danger" }))) return false;
  }
  return true;
}
function deed(id, label, title, path, more, what, kind = "") {
  const work = guard(async () => {
    const stood = document.activeElement?.closest("#schedules tbody tr");
    // What is told is what is sent, whatever is selected or entered meanwhile.
    const chosen = { ...wanted(), ...more() }, rows = [...selected.values()], length = how(), named = selected.size ? words() : write(filtered());
    if (!(await agreed(path, chosen, (n) => [`${title(n, length)}?`, [what(n, length), `Chosen: ${named}. It goes into the audit trail.`]], kind))) return;
    // Not what has replaced one since it was selected.
    if (chosen.ids) chosen.versions = await Promise.all(rows.map(async (one) => (await stillIt(one) ?? one).version));
    const done = await ask("POST", path, chosen);
    const back = done.changed && id !== "now" ? async () => { await undone(done.audit_id); await again(); toRow(); } : null;
    const others = Object.entries(UNCHANGED).filter(([name]) => done.answers[name]).map(([name, why]) => ` ${count(done.answers[name])} ${why}.`).join("");
    say(`${label}: ${count(done.changed)} of ${count(done.matched)} changed.${others}`, { undo: back, bad: !done.changed && others !== "" });
    for (const id of chosen.ids ?? []) selected.delete(id);
    await again();
    if (stood) toRow();
  });
  return el("button", { type: "button", id: `all-${id}`, class: kind, onclick: work }, label);
}
const UNCHANGED = { changed: "had been changed since they were selected", paused: "paused", delivering: "being delivered already", unknown: "not there any more" };
const again = () => Promise.all([showPage(), drawTimeline()]);

// Shown while something is selected; never covers what has the focus, as the page ends below it.
export function tellSelection() {
  const on = can.admin && (selected.size > 0 || Object.keys(filtered()).length > 0) && filter().state !== "claimed" && !$("#schedules tr.none.bad");
  $("#bulk").hidden = !on;
  document.body.classList.toggle("selecting", on);
  if (!on) return;
  tellNumber();
  countAnew();
}
// First the rows that were selected by hand, then what is selected by the filter: by escape only the span, as that
// key is also the way out of the field.
const drop = (names) => guard(async () => {
  if (selected.size) { selected.clear(); mark(); return; }
  if (!names.some((name) => name in filtered())) return;
  const looking = look(Object.fromEntries(names.map((name) => [name, ""])));
  readAddress();
  await Promise.all([looking, drawTimeline()]);
});
onKey("Escape", drop(["due_from", "due_to"]));

if (can.admin) {
  function span(verb, examples) {
    if (/^[-+]?(0+[a-z]*)?$/i.test(how())) throw new Error(`Expected how long to ${verb}, such as ${examples}, got ${how() || "nothing"}`);
    return { [verb]: how() };
  }
  const moved = (n, length) => length.startsWith("-")
    ? `${n} will be due ${length.slice(1)} earlier. What is due sooner than that is delivered at once, and cannot be undone; the rest can.`
    : `${n} will be due ${length} later. This can be undone.`;
  $("#actions").append(
    deed("cancel", "Cancel all", (n) => `Cancel ${n}`, "/v1/schedules:cancel", () => ({}), (n) => `${n} will not be delivered; what recurs never comes again. This can be undone.`, "danger"),
    deed("now", "Deliver all now", (n) => `Deliver ${n} now`, "/v1/schedules:deliver-now", () => ({}), (n) => `${n} will be delivered at once. This cannot be undone.`),
    deed("shift", "Shift all by", (n, length) => `Shift ${n} by ${length}`, "/v1/schedules:reschedule", () => span("shift", "1h or -30m"), moved),
    deed("spread", "Spread all over", (n, length) => `Spread ${n} over ${length}`, "/v1/schedules:reschedule", () => span("spread", "1h"), (n, length) => `${n} will be due evenly over ${length}, from the first one's due time on. This can be undone.`),
    by, el("button", { type: "button", class: "plain", id: "drop", onclick: drop(SELECTS) }, "Drop selection"));
  onKey("c", () => { if (!$("#bulk").hidden) $("#all-cancel").click(); });
}
