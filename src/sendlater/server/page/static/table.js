// The table of schedules: pages, columns, rows that are selected, and the keys.
import { $, ask, can, count, el, given, inWords, LATE_MS, onKey, pageOf, put, query, remember, state, visible, visibleLines, when } from "./shared.js";
import { FIELDS, read, write } from "./search.js";

const [ROWS, ASKS_MAX, PREVIEW_CHARS] = [50, 100, 120];
// More requests than this for one page are not made again by themselves.
const COSTLY_ASKS = 5;
const COLUMNS = {
  state: ["state", (one) => state(one.held_since_ms !== undefined ? "held" : one.state === "pending" && !one.plan?.paused && one.due_ms < Date.now() - LATE_MS ? "overdue" : one.state)],
  due: ["due", (one) => one.plan?.paused ? "paused" : when(one.due_ms)],
  again: ["comes again", (one) => (one.plan ? inWords(one.plan) : "")],
  topic: ["topic", (one) => one.topic],
  tags: ["tags", (one) => (one.tags ?? []).map(visible).join(", ")],
  caller: ["caller", (one) => visible(one.caller || "")],
  key: ["key", (one) => visible(one.key ?? "")],
  bytes: ["bytes", (one) => count(one.value_bytes)],
  origin: ["origin", (one) => (one.origin ? `${one.origin.topic}-${one.origin.place.replace("/", "@")}` : "")],
  payload: ["payload", (one) => el("code", {}, visibleLines((one.value ?? (one.value_base64 ? "(bytes)" : can.payload ? "" : "(hidden)")).slice(0, PREVIEW_CHARS)))],
};
const FIRST = innerWidth < 640 ? ["due", "topic"] : ["state", "due", "topic", "caller", "bytes", "payload"];
// By id, over all pages.
export const selected = new Map();
const field = $("#search");
let next = null, showing = 0, shown = [], asks = 0, still = "", changed = () => {};
export const isCostly = () => asks > COSTLY_ASKS;
export function tellStill(why) { still = why; tellPage(); }
export const onSelected = (work) => { changed = work; };
export const tagsSeen = () => [...new Set(shown.flatMap((one) => one.tags ?? []))];
export const idsSeen = () => shown.filter((one) => !one.id_base64).map((one) => one.id);
export const callersSeen = () => [...new Set(shown.map((one) => one.caller).filter(Boolean))];

export const filter = () => Object.fromEntries(FIELDS.map((name) => [name, given(name)]).filter(([, value]) => value));
export function fillField() {
  field.value = write(filter());
}
// Something else is typed than what is shown.
export const isTyped = () => field.value.trim() !== write(filter());
const columns = () => (given("columns") || localStorage.getItem("columns") || FIRST.join()).split(",").filter((name) => name in COLUMNS);

// --- asking ---
// Each answer searches a bounded number of schedules: with a filter, ask until the page is full.
async function* gather() {
  const items = [];
  next = given("cursor");
  for (asks = 0; asks < ASKS_MAX && items.length < ROWS && next !== null; asks += 1) {
    const got = await ask("GET", "/v1/schedules?" + query({ ...filter(), order: given("order"), cursor: next, limit: ROWS - items.length }));
    next = got.next_cursor;
    items.push(...got.items);
    yield items;
  }
}
// Whether somebody is at work in it: then its rows stay.
export const isUsed = () => $("#rows").matches(":hover, :focus-within") || $("dialog[open]") !== null;
export async function showPage({ byItself = false } = {}) {
  const mine = ++showing, before = rowNow();
  $("#schedules").setAttribute("aria-busy", "true");
  try {
    for await (const items of gather()) {
      if (mine !== showing || (byItself && isUsed())) return;
      shown = items;
      showRows({ before });
    }
    still = "";
    tellPage();
  } catch (error) {
    if (mine !== showing) return;
    [shown, next] = [[], null];
    showRows({ before, refused: error instanceof TypeError ? "The server does not answer." : error.message });
  } finally {
    if (mine === showing) $("#schedules").removeAttribute("aria-busy");
  }
}
export async function look(changes) {
  remember({ cursor: "", ...changes });
  fillField();
  stopNow()?.setAttribute("tabindex", "-1"); // what is asked for now begins with its first row
  await showPage();
}
export const search = () => look({ ...Object.fromEntries(FIELDS.map((name) => [name, ""])), ...read(field.value) });
export const nextPage = () => (next ? look({ cursor: next }) : null);

// --- rows ---
function showHead() {
  const order = given("order") === "last" ? "descending" : "ascending";
  const all = el("input", { type: "checkbox", "aria-label": "select all shown" });
  all.addEventListener("change", () => { for (const one of shown) if (!one.id_base64) choose(one, all.checked); mark(); });
  const sort = el("button", { type: "button", id: "sort", class: "plain", onclick: () => look({ order: given("order") ? "" : "last" }) }, `due ${order === "ascending" ? "↑" : "↓"}`);
  $("#schedules thead tr").replaceChildren(...(can.admin ? [el("th", { scope: "col", class: "box" }, all)] : []), el("th", { scope: "col" }, "id"),
    ...columns().map((name) => (name === "due" ? el("th", { scope: "col", "aria-sort": order }, sort) : el("th", { scope: "col", class: `col-${name}` }, COLUMNS[name][0]))));
}
function row(one) {
  const box = el("input", { type: "checkbox", tabindex: "-1", "aria-label": `select ${one.id}`, disabled: Boolean(one.id_base64), title: one.id_base64 && "An id that is not text can be changed on its own page." });
  const made = el("tr", { tabindex: "-1", "data-id": one.id }, can.admin ? el("td", { class: "box", "data-head": "select" }, box) : null,
    el("td", { class: "id", "data-head": "id" }, el("a", { href: pageOf(one), tabindex: "-1" }, visible(one.id))),
    ...columns().map((name) => el("td", { class: `col-${name}`, "data-head": COLUMNS[name][0] }, COLUMNS[name][1](one))));
  box.addEventListener("change", () => { choose(one, box.checked); mark(); });
  return made;
}
const stopNow = () => $("#schedules tbody tr[tabindex='0']");
const rowOf = (row) => row && { id: row.dataset.id, at: [...row.parentNode.children].indexOf(row) };
const rowNow = () => rowOf(document.activeElement?.closest?.("#schedules tbody tr"));
// Where the focus was, it stays: on the same schedule, or on what is now in its place.
function showRows({ refused = "", before = null } = {}) {
  showHead();
  const none = refused || (Object.keys(filter()).length ? "Nothing pending matches this filter." : "Nothing is pending.");
  const place = $("#schedules tbody"), free = document.activeElement === document.body || place.contains(document.activeElement);
  const kept = rowNow() ?? before, stop = rowOf(stopNow());
  place.replaceChildren(...(shown.length ? shown.map(row) : [el("tr", { class: refused ? "none bad" : "none" }, el("td", { colspan: columns().length + 2 }, none))]));
  const all = [...place.children], now = (one) => one && (all.find((each) => each.dataset.id === one.id) ?? all[Math.min(one.at, all.length - 1)]);
  const again = free && now(kept);
  (again || now(stop) || all[0]).tabIndex = 0;
  if (again) again.focus({ preventScroll: true });
  $("#next").disabled = !next;
  $("#first").disabled = !given("cursor");
  tellPage();
  mark();
  if (!performance.getEntriesByName("table-shown").length) performance.mark("table-shown");
}

function tellPage() {
  const told = shown.length ? [`${shown.length} shown${next ? "; there may be more" : ""}`, still] : [still];
  put($("#page-note"), told.filter(Boolean).join("; "));
}
export const toRow = () => stopNow()?.focus();

// --- selecting ---
function choose(one, on) { if (on) selected.set(one.id, one); else selected.delete(one.id); }
export function mark() {
  for (const each of document.querySelectorAll("#schedules tbody tr[data-id]")) {
    const on = selected.has(each.dataset.id);
    if (can.admin) each.setAttribute("aria-selected", String(on));
    const box = each.querySelector("input");
    if (box) box.checked = on;
  }
  const all = $("#schedules thead input");
  if (all) all.checked = shown.length > 0 && shown.every((one) => selected.has(one.id));
  changed();
}

// --- keys ---
const rows = () => [...document.querySelectorAll("#schedules tbody tr[data-id]")];
function go(by) {
  const all = rows(), now = all.indexOf(document.activeElement.closest("tr"));
  const to = all[Math.min(all.length - 1, Math.max(0, now + by))];
  if (!to) return;
  all.forEach((each) => { each.tabIndex = -1; });
  to.tabIndex = 0;
  to.focus();
}
for (const [key, by] of [["ArrowDown", 1], ["ArrowUp", -1], ["j", 1], ["k", -1]]) onKey(key, () => go(by));
onKey("/", () => { field.focus(); field.select(); });
field.addEventListener("keydown", (event) => { if (event.key === "Escape" && !event.defaultPrevented) { event.preventDefault(); fillField(); field.blur(); } });
const ROW_KEYS = {
  " ": (tr) => { const box = tr.querySelector("input"); if (box && !box.disabled) box.click(); },
  Enter: (tr) => location.assign(tr.querySelector("a").href),
  ArrowRight: () => nextPage(),
  ArrowLeft: () => look({}),
  Home: () => go(-ROWS),
  End: () => go(ROWS),
};
$("#schedules tbody").addEventListener("keydown", (event) => {
  const tr = event.target.closest("tr[data-id]");
  if (!tr || event.target !== tr || !ROW_KEYS[event.key]) return;
  event.preventDefault();
  ROW_KEYS[event.key](tr);
});

// --- columns ---
$("#columns .sheet").replaceChildren(...Object.keys(COLUMNS).map((name) => {
  const box = el("input", { type: "checkbox", value: name });
  box.checked = columns().includes(name);
  box.addEventListener("change", () => {
    const now = Object.keys(COLUMNS).filter((each) => $(`#columns input[value=${each}]`).checked).join();
    localStorage.setItem("columns", now);
    remember({ columns: now === FIRST.join() ? "" : now }, { replace: true });
    showRows();
  });
  return el("label", { class: "check" }, box, name);
}));
$("#next").addEventListener("click", () => nextPage());
$("#first").addEventListener("click", () => look({}));
