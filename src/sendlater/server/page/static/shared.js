// Shared by all pages: requests to /v1, times, theme, live numbers, confirmation of actions.
export const body = document.body.dataset;
export const can = { write: body.role !== "read", admin: body.role === "admin", payload: body.payload === "true" };
export const $ = (selector) => document.querySelector(selector);

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") made.addEventListener("click", value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

export async function ask(method, path, data) {
  const given = { method, headers: {} };
  if (data !== undefined) {
    given.body = JSON.stringify(data);
    given.headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, given);
  if (answer.status === 401) location.assign("/sign-in");
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.detail || told.title);
  return told;
}

export function say(text, bad = false) {
  const place = $("#message");
  place.textContent = text;
  place.className = bad ? "bad" : "good";
}

export const guard = (work) => async (...given) => {
  try { await work(...given); } catch (error) { say(error.message, true); }
};

export function query(values) {
  const made = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) if (value !== "" && value != null) made.set(key, value);
  return made.toString();
}

// The address holds what is shown: set given values, drop empty ones.
export function remember(changes) {
  const now = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(changes)) if (value) now.set(key, value); else now.delete(key);
  const told = now.toString();
  history.pushState(null, "", told ? `?${told}` : location.pathname);
}

// --- numbers and times ---
export const count = (n) => (n == null ? "-" : Math.round(n).toLocaleString("en"));
export function span(ms) {
  if (ms == null) return "-";
  const late = Math.abs(ms);
  if (late < 1000) return `${Math.round(ms * 10) / 10} ms`;
  for (const [unit, size] of [["d", 86400000], ["h", 3600000], ["min", 60000]])
    if (late >= size) return `${(ms / size).toFixed(1)} ${unit}`;
  return `${(ms / 1000).toFixed(1)} s`;
}
const LAST_MS = 253402300799999;
export const timesAre = () => localStorage.getItem("times") || "utc";
export function timeText(ms) {
  if (ms > LAST_MS) return `${ms} ms`;
  const mode = timesAre();
  if (mode === "relative") return ms >= Date.now() ? `in ${span(ms - Date.now())}` : `${span(Date.now() - ms)} ago`;
  if (mode === "local") return new Date(ms).toLocaleString("sv") + "." + String(ms % 1000).padStart(3, "0");
  return new Date(ms).toISOString().replace("T", " ");
}
export function time(ms) {
  const made = el("time", { "data-ms": ms }, timeText(ms));
  if (ms <= LAST_MS) made.dateTime = made.title = new Date(ms).toISOString();
  return made;
}
export const iso = (ms) => new Date(Math.min(ms, LAST_MS)).toISOString();

// --- theme, times, live ---
const theme = $("#theme");
theme.value = localStorage.getItem("theme") || "auto";
const listeners = { theme: [], times: [], stats: [] };
function applyTheme() {
  if (theme.value === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme.value);
  listeners.theme.forEach((told) => told());
}
theme.addEventListener("change", () => { localStorage.setItem("theme", theme.value); applyTheme(); });
applyTheme();
export const onTheme = (told) => listeners.theme.push(told);

const times = $("#times");
times.value = timesAre();
function retell() {
  document.querySelectorAll("time[data-ms]").forEach((one) => { one.textContent = timeText(Number(one.dataset.ms)); });
}
times.addEventListener("change", () => {
  localStorage.setItem("times", times.value);
  retell();
  listeners.times.forEach((told) => told());
});
export const onTimes = (told) => listeners.times.push(told);

let source = null;
const live = $("#live");
function follow() {
  if (source) source.close();
  source = null;
  if (live.getAttribute("aria-pressed") !== "true" || !listeners.stats.length) return;
  source = new EventSource("/v1/events");
  source.addEventListener("stats", (event) => {
    const told = JSON.parse(event.data);
    listeners.stats.forEach((one) => one(told));
    if (timesAre() === "relative") retell();
  });
}
live.addEventListener("click", () => {
  const on = live.getAttribute("aria-pressed") !== "true";
  live.setAttribute("aria-pressed", String(on));
  live.textContent = on ? "Live" : "Paused";
  follow();
});
export function onStats(told) { listeners.stats.push(told); follow(); }
export const isLive = () => live.getAttribute("aria-pressed") === "true";
addEventListener("pagehide", () => source && source.close());

// --- confirmation of actions ---
export function confirmed(title, text, { danger = true } = {}) {
  const dialog = $("#ask");
  $("#ask-title").textContent = title;
  $("#ask-body").replaceChildren(el("p", {}, text));
  $("#ask-yes").className = danger ? "danger" : "";
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true });
  });
}

// --- selecting rows ---
export function chosenPlaces(table) {
  const places = Array.from(document.querySelectorAll(`${table} tbody input:checked`), (box) => box.value);
  if (!places.length) throw new Error("select at least one");
  return places;
}
export function selectAll(table) {
  const box = el("input", { type: "checkbox" });
  box.addEventListener("change", () => document.querySelectorAll(`${table} tbody input[type=checkbox]`).forEach((one) => { one.checked = box.checked; }));
  return el("label", {}, box, " all shown");
}
