// Shared by all pages: requests to /v1, times, theme, live numbers, questions before a change, what was done.
export const body = document.body.dataset;
export const can = { write: body.role !== "read", admin: body.role === "admin", payload: body.payload === "true" };
export const $ = (selector) => document.querySelector(selector);

function build(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") made.addEventListener("click", value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}
export const el = (name, attributes = {}, ...children) => build(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) => build(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
// Only what differs is written: nothing jumps, and a screen reader is not told the same again.
export function put(place, text) { if (place.textContent !== text) place.textContent = text; }

// What the server answers with the page, each once: by the address that the page would ask.
const answers = JSON.parse($("#first-answers")?.textContent ?? "{}");
function answered(path) {
  const told = answers[path];
  delete answers[path];
  return told;
}
// What nobody sees at once is not waited for.
export const afterPaint = (work) => requestAnimationFrame(() => setTimeout(work));

// A hidden tab asks for nothing: it may have been opened in the background.
const seen = () => new Promise((then) => { document.addEventListener("visibilitychange", then, { once: true }); });
export async function ask(method, path, data, headers = {}) {
  const known = method === "GET" && answered(path);
  if (known) return known;
  if (method === "GET" && document.hidden) await seen();
  const given = { method, headers: { ...headers } };
  if (data !== undefined) {
    given.body = JSON.stringify(data);
    given.headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, given);
  if (answer.status === 401) location.assign("/sign-in?" + query({ ended: "yes", to: location.pathname + location.search }));
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.detail || told.title);
  return told;
}

// What somebody does next takes away the error before it.
export const guard = (work) => async (...given) => {
  if (given[0] instanceof Event) hush();
  try { await work(...given); } catch (error) { say(error instanceof TypeError ? "The server does not answer." : error.message, { bad: true }); }
};

export function query(values) {
  const made = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) if (value !== "" && value != null) made.set(key, value);
  return made.toString();
}

// The address holds what is shown: set given values, drop empty ones.
export const given = (name) => new URLSearchParams(location.search).get(name) || "";
export function remember(changes, { replace = false } = {}) {
  const now = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(changes)) if (value) now.set(key, value); else now.delete(key);
  const told = now.toString();
  history[replace ? "replaceState" : "pushState"](null, "", told ? `?${told}` : location.pathname);
}

// --- numbers and times ---
export const count = (n) => (n == null ? "–" : Math.round(n).toLocaleString("en"));
export function short(n) {
  for (const [unit, size] of [["bn", 1e9], ["M", 1e6], ["k", 1e3]]) if (n >= 10 * size || (n >= size && unit !== "k")) return `${+(n / size).toFixed(n >= 100 * size ? 0 : 1)} ${unit}`;
  return count(n);
}
export function span(ms) {
  if (ms == null) return "–";
  const late = Math.abs(ms);
  if (late < 1000) return `${late < 10 ? Math.round(ms * 10) / 10 : Math.round(ms)} ms`;
  for (const [unit, size] of [["d", 86400000], ["h", 3600000], ["min", 60000]])
    if (late >= size) return `${(ms / size).toFixed(1)} ${unit}`;
  return `${(ms / 1000).toFixed(1)} s`;
}
// The year 9999; what is due later is told in milliseconds.
export const LAST_MS = 253402300799999;
// What is later than this is told as late.
export const LATE_MS = 1000;
export const timesAre = () => localStorage.getItem("times") || "utc";
export const zoneMs = (ms) => (timesAre() === "local" ? -60000 * new Date(ms).getTimezoneOffset() : 0);
export function timeText(ms) {
  if (ms > LAST_MS) return `${ms} ms`;
  const told = new Date(ms + zoneMs(ms)).toISOString().replace("T", " ");
  return timesAre() === "local" ? told.slice(0, -1) : told;
}
export const away = (ms) => (ms >= Date.now() ? `in ${span(ms - Date.now())}` : `${span(Date.now() - ms)} ago`);
export function time(ms) {
  const made = el("time", { "data-ms": ms }, timeText(ms));
  if (ms <= LAST_MS) made.dateTime = made.title = new Date(ms).toISOString();
  return made;
}
// Both at once: how long from now, and when.
export const when = (ms) => el("span", { class: "when" }, el("span", { class: "away", "data-ms": ms }, away(ms)), time(ms));
export const iso = (ms) => new Date(Math.min(ms, LAST_MS)).toISOString();
// Characters that hide, or that turn others around, are told by their number, and so is in a name what looks as if told;
// spaces at its ends are seen.
const HIDDEN = /[\u0000-\u001f\u007f-\u00a0\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const numbered = (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`;
export const hiddenTold = (text) => text.replace(HIDDEN, numbered);
export const visible = (text) => hiddenTold(text.replace(/\\(?=u[0-9a-f]{4})|␣/gi, numbered)).replace(/^ +| +$/g, (some) => "␣".repeat(some.length));
// In a text of several lines, what makes the lines stays, as do its spaces.
export const visibleLines = (text) => text.replace(HIDDEN, (one, at) => (one === "\n" || one === "\t" || (one === "\r" && text[at + 1] === "\n") ? one : numbered(one)));
export const visibleHeader = (header) => { const [name, value] = Array.isArray(header) ? header : [header.name, `base64:${header.value_base64}`]; return [visible(name), value === null ? "(null)" : visible(value)]; };
export const badge = (text, kind = "") => el("span", { class: `badge ${kind}` }, text);
const KINDS = { pending: "calm", scheduled: "calm", claimed: "warn", delivering: "warn", delivered: "good", cancelled: "", rejected: "bad", expired: "bad", dead: "bad", overdue: "bad", held: "" };
export const state = (name) => badge(name, KINDS[name] ?? "");
// Of a plan nothing is rounded.
function exactly(ms) {
  const parts = [];
  for (const [unit, size] of [["d", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000], ["ms", 1]]) {
    const whole = Math.floor(ms / size);
    if (whole) parts.push(`${whole} ${unit}`);
    ms -= whole * size;
  }
  return parts.join(" ");
}
// The common forms of cron; of others the five fields are named.
const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const dayOf = (text) => DAYS[/^[0-7]$/.test(text) ? text % 7 : DAYS.findIndex((name) => name.slice(0, 3).toUpperCase() === text.toUpperCase())];
function daysOf(text) {
  const days = text.split(",").map((part) => part.split("-").map(dayOf));
  return days.every((both) => both.length <= 2 && both.every(Boolean)) ? days.map((both) => both.join(" to ")).join(", ") : null;
}
function cronInWords(cron) {
  const [minute, hour, day, month, week] = cron.split(/\s+/), whole = (text) => /^\d+$/.test(text), any = (...all) => all.every((text) => text === "*");
  const clock = whole(minute) && whole(hour) && month === "*" ? `at ${hour.padStart(2, "0")}:${minute.padStart(2, "0")}` : null;
  if (clock && any(day, week)) return `every day ${clock}`;
  if (clock && any(day) && daysOf(week)) return `every ${daysOf(week)} ${clock}`;
  if (clock && any(week) && whole(day)) return `on day ${day} of every month ${clock}`;
  if (any(hour, day, month, week)) {
    if (whole(minute)) return `every hour, ${minute} min past`;
    const every = minute.match(/^\*\/(\d+)$/)?.[1];
    if (every && 60 % every === 0) return `every ${every} min`;
    if (minute === "*") return "every minute";
  }
  return "minute, hour, day of month, month, day of week";
}
// When a recurring schedule comes.
export function inWords(plan) {
  const jitter = plan.jitter_ms ? `, up to ${exactly(plan.jitter_ms)} later` : "";
  if (!plan.cron) return `every ${exactly(plan.every_ms)}${jitter}`;
  return `${cronInWords(plan.cron)} (${plan.cron}), ${plan.zone ?? "UTC"}${jitter}`;
}
// What one has shown as it is now, or null if it has been replaced. What recurs is another version each time.
const whole = ({ topic, key, value, headers, tags, plan: { cron, zone, every_ms, jitter_ms, end_ms, missed } = {} }) => JSON.stringify([topic, key, value, headers, tags, cron, zone, every_ms, jitter_ms, end_ms, missed]);
export async function stillIt(one, path = `/v1/schedules/?id=${encodeURIComponent(one.id)}`) {
  if (!one.plan) return one;
  const now = await ask("GET", path).catch((error) => { if (error instanceof TypeError) throw error; });
  return now?.plan && whole(now) === whole(one) ? now : null;
}
export const pageOf = (one) => "/schedule?" + query({ id: one.id_base64 ? "" : one.id, b: one.id_base64 });

// --- theme, times ---
const listeners = { times: [], stats: [], back: [] };
const theme = $("#theme");
theme.value = localStorage.getItem("theme") || "auto";
function applyTheme() {
  if (theme.value === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme.value);
}
theme.addEventListener("change", () => { localStorage.setItem("theme", theme.value); applyTheme(); });
applyTheme();

const times = $("#times");
times.value = timesAre();
function retell() {
  document.querySelectorAll("time[data-ms]").forEach((one) => put(one, timeText(Number(one.dataset.ms))));
  document.querySelectorAll(".away[data-ms]").forEach((one) => put(one, away(Number(one.dataset.ms))));
}
times.addEventListener("change", () => {
  localStorage.setItem("times", times.value);
  retell();
  listeners.times.forEach((told) => told());
});
export const onTimes = (told) => listeners.times.push(told);

// --- live numbers ---
// The browser tries again by itself, except after an answer that is no stream: then we do. A server that
// hangs is no error for the browser: it only says nothing, and then we ask anew.
const [AGAIN_MS, SILENT_MS] = [2000, 10_000];
let source = null, again = 0, heard = 0, failing = false;
const live = $("#live");
export const isLive = () => live.getAttribute("aria-pressed") === "true";
const tellLive = () => { live.classList.toggle("lost", !$("#connection").hidden); put(live, !isLive() ? "Paused" : $("#connection").hidden ? "Live" : "Not connected"); };
setInterval(() => { if (source && Date.now() - heard > SILENT_MS) { lost(); follow(); } }, AGAIN_MS);
function lost() {
  const place = $("#connection");
  put(place, "The connection is lost; what you see is from before. Trying again…");
  place.hidden = false;
  tellLive();
  if (source?.readyState !== EventSource.CLOSED) return;
  clearTimeout(again);
  again = setTimeout(follow, AGAIN_MS);
  // The browser does not tell which answer it got: if the session has ended, this one leads to the sign-in.
  ask("GET", "/v1/stats").catch(() => {});
}
function follow() {
  clearTimeout(again);
  if (source) source.close();
  source = null;
  if (document.hidden || !isLive() || !(listeners.stats.length || listeners.back.length)) return;
  heard = Date.now();
  source = new EventSource("/v1/events");
  source.addEventListener("error", lost);
  source.addEventListener("stats", (event) => {
    const told = JSON.parse(event.data), was = !$("#connection").hidden || failing;
    $("#connection").hidden = true;
    heard = Date.now();
    failing = Boolean(told.error);
    tellLive();
    listeners.stats.forEach((one) => one(told));
    retell();
    if (!was || failing) return;
    hush();
    listeners.back.forEach((one) => one());
  });
}
function turn() {
  const on = !isLive();
  live.setAttribute("aria-pressed", String(on));
  if (!on) $("#connection").hidden = true;
  tellLive();
  follow();
}
live.addEventListener("click", turn);
function listen(to, told) { live.hidden = false; to.push(told); follow(); }
export const onStats = (told) => listen(listeners.stats, told);
export const onBack = (told) => listen(listeners.back, told);
document.addEventListener("visibilitychange", follow);
addEventListener("pagehide", () => source?.close());

// --- what was done, and taking it back ---
export function say(text, { bad = false, undo = null } = {}) {
  $("#toast").hidden = false;
  $("#toast").className = bad ? "bad" : "";
  put($("#message"), text);
  $("#toast-undo").hidden = !undo;
  $("#toast-undo").onclick = undo && guard(async () => { $("#toast-undo").hidden = true; await undo(); });
}
const hush = () => { if ($("#toast").className === "bad") $("#toast").hidden = true; };
$("#toast-close").addEventListener("click", () => { $("#toast").hidden = true; });
export async function undone(id) {
  const done = await ask("POST", `/v1/audit/${id}:undo`);
  say(`${count(done.changed)} of ${count(done.matched)} undone.`);
}

// --- questions before a change ---
export function confirmed(title, text, { danger = true, yes = "Do it" } = {}) {
  const dialog = $("#ask");
  put($("#ask-title"), title);
  $("#ask-body").replaceChildren(...[text].flat().map((line) => el("p", {}, line)));
  $("#ask-yes").className = danger ? "danger" : "main";
  put($("#ask-yes"), yes);
  dialog.returnValue = "no";
  hush();
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true });
  });
}

// --- keys ---
const keys = { "?": () => $("#help").showModal(), p: turn, u: () => { if (!$("#toast").hidden && !$("#toast-undo").hidden) $("#toast-undo").click(); } };
export const onKey = (key, work) => { keys[key] = work; };
const typing = (place) => place.matches("input:not([type=checkbox]), select, textarea, [contenteditable]");
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || typing(event.target) || $("dialog[open]")) return;
  // A menu that is open takes escape.
  if (!keys[event.key] || (event.key === "Escape" && $("details.menu[open]"))) return;
  event.preventDefault();
  keys[event.key]();
});
$("#keys").addEventListener("click", () => $("#help").showModal());
// A menu shuts when one goes on elsewhere.
addEventListener("click", (event) => document.querySelectorAll("details.menu[open]").forEach((menu) => { if (!menu.contains(event.target)) menu.open = false; }));
addEventListener("keydown", (event) => { if (event.key === "Escape") document.querySelectorAll("details.menu[open]").forEach((menu) => { menu.open = false; menu.querySelector("summary").focus(); }); });

// --- selecting rows ---
export function chosenPlaces(table) {
  const places = Array.from(document.querySelectorAll(`${table} tbody input:checked`), (box) => box.value);
  if (!places.length) throw new Error("select at least one");
  return places;
}
export function selectAll(table) {
  const box = el("input", { type: "checkbox" });
  box.addEventListener("change", () => document.querySelectorAll(`${table} tbody input[type=checkbox]`).forEach((one) => { one.checked = box.checked; }));
  return el("label", { class: "check" }, box, " all shown");
}
// Without chosen rows there is nothing to do.
export function needsChosen(table, button) {
  const tell = () => { button.disabled = !document.querySelector(`${table} tbody input:checked`); };
  $(table).closest(".panel").addEventListener("change", tell);
  tell();
  return button;
}
// A table without rows says so. On a narrow screen each cell is a line of its own, behind the head of its column.
export function rowsOrNone(table, rows, none) {
  const heads = Array.from(document.querySelectorAll(`${table} thead th`), (one) => one.textContent);
  for (const one of rows) [...one.children].forEach((cell, n) => { cell.dataset.head = heads[n]; });
  $(`${table} tbody`).replaceChildren(...(rows.length ? rows : [el("tr", { class: "none" }, el("td", { colspan: heads.length }, none))]));
  $(table).dispatchEvent(new Event("change", { bubbles: true }));
}
// Where one is must be seen, however narrow the screen.
$("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
