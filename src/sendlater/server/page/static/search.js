// One field for all filters, `topic:emails due:<2h id:inv*`: read, written, and completed while typing.
import { $, el, hiddenTold } from "./shared.js";

export const FIELDS = ["id_prefix", "topic", "tag", "caller", "due_from", "due_to", "state"];
const WORD = /(?:([a-z]+):)?(?:"((?:\\.|[^"\\])*)"?|(\S+))/g;
const KEYS = { id: "begins with", topic: "target topic", tag: "one of its tags", caller: "who sent it", due: "when", state: "pending or claimed" };
const DUE = ["<1h", "<1d", ">1d", "1h..2h"];
const SHOWN_MAX = 8;

// The filter that a text means; a word alone is the beginning of an id. Throws for what is no filter.
export function read(text) {
  const found = {};
  for (const [whole, key, quoted, plain] of text.matchAll(WORD)) {
    const value = quoted === undefined ? plain : unquoted(quoted);
    if (!key && /^[a-z]+:$/.test(plain ?? "")) throw new Error(`Expected something after ${plain}`);
    if (key && !Object.hasOwn(KEYS, key)) throw new Error(`Expected id:, topic:, tag:, caller:, due: or state:, got ${whole}`);
    if (key === "due") readDue(value, found);
    else if (key === "state" && !["pending", "claimed"].includes(value)) throw new Error(`Expected state:pending or state:claimed, got ${whole}`);
    else if (key && key !== "id") once(found, key, value, key);
    else if (found.id_prefix) throw new Error(`Expected one id, got ${found.id_prefix} and ${value}`);
    else found.id_prefix = quoted === undefined ? value.replace(/\*$/, "") : value;
  }
  return found;
}
// In quotes a text is as it is shown elsewhere: hidden characters as numbers, spaces at its ends as signs.
const unquoted = (text) => text.replace(/^␣+|␣+$/g, (some) => " ".repeat(some.length)).replace(/\\(?:u([0-9a-f]{4})|(["\\]))/gi, (_, code, one) => (code ? String.fromCharCode(parseInt(code, 16)) : one));
const quote = (text) => `"${hiddenTold(text.replace(/["\\]/g, "\\$&").replaceAll("␣", "\\u2423")).replace(/^ +| +$/g, (some) => "␣".repeat(some.length))}"`;
const isPlain = (text) => !/[\s"␣]/.test(text) && text === hiddenTold(text);
function once(found, name, value, key) {
  if (found[name]) throw new Error(`Expected ${key}: once, got ${found[name]} and ${value}`);
  found[name] = value;
}
const relative = (text) => (/^\d[\dhmsdw]*$/i.test(text) && !/^\d{5,}$/.test(text) ? `+${text}` : text);
const UNITS = { s: 1e3, m: 60e3, h: 3600e3, d: 86400e3, w: 7 * 86400e3 };
// As an instant, if it is one for sure: the server reads more forms.
function instant(text) {
  const parts = [...text.matchAll(/(\d+)([smhdw])/gi)];
  if (text.startsWith("+") && parts.map(([all]) => all).join("") === text.slice(1)) return Date.now() + parts.reduce((sum, [, n, unit]) => sum + n * UNITS[unit.toLowerCase()], 0);
  return Date.parse(text);
}
const isTime = (text) => (text.startsWith("+") ? /^\+(p|[\d.]+[smhdw]?)+/i.test(text) : /^\d+$/.test(text) || !Number.isNaN(Date.parse(text)));
function readDue(value, found) {
  const [from, to] = value.startsWith("<") ? ["", value.slice(1)] : value.startsWith(">") ? [value.slice(1), ""] : value.split("..");
  if (to === undefined) throw new Error(`Expected due:<2h, due:>1h or due:1h..2h, got due:${value}`);
  if (!from && !to) throw new Error(`Expected a time after due:, such as due:<2h, got due:${value}`);
  for (const one of [from, to]) if (one && !isTime(relative(one))) throw new Error(`Expected a time after due:, such as 2h or 2026-12-01T08:00:00Z, got ${one}`);
  if (from) once(found, "due_from", relative(from), "due");
  if (to) once(found, "due_to", relative(to), "due");
  if (found.due_from && found.due_to && instant(found.due_from) > instant(found.due_to)) throw new Error(`Expected due: from sooner to later, got ${from || found.due_from} and ${to || found.due_to}`);
}
// The text of a filter, so that an address fills the field.
export function write(filter) {
  const value = (text) => (isPlain(text) ? text : quote(text));
  const words = ["topic", "tag", "caller", "state"].filter((key) => filter[key]).map((key) => `${key}:${value(filter[key])}`);
  if (filter.id_prefix) words.unshift(`id:${isPlain(filter.id_prefix) && !filter.id_prefix.includes("*") ? `${filter.id_prefix}*` : quote(filter.id_prefix)}`);
  const [from, to] = [filter.due_from, filter.due_to].map((text) => (text ?? "").replace(/^\+/, ""));
  if (from || to) words.push(`due:${from && to ? `${from}..${to}` : from ? `>${from}` : `<${to}`}`);
  return words.join(" ");
}

// --- suggestions ---
const field = $("#search"), list = $("#suggestions");
let sources = { due: () => DUE, state: () => ["pending", "claimed"] }, at = -1;
// What may follow `id:`, `topic:`, `tag:` and `caller:`: functions that answer lists.
export const suggestFrom = (given) => { sources = { ...sources, ...given }; };
function word() {
  const before = field.value.slice(0, field.selectionStart);
  return before.slice(before.lastIndexOf(" ") + 1);
}
function offers() {
  const typed = word();
  const [key, value] = typed.includes(":") ? typed.split(/:(.*)/s) : [null, typed];
  if (key === null) return Object.entries(KEYS).filter(([name]) => name.startsWith(value)).map(([name, told]) => [`${name}:`, told]);
  return (Object.hasOwn(sources, key) ? sources[key]() : []).filter((one) => one.startsWith(value) && one !== value).map((one) => [`${key}:${isPlain(one) ? one : quote(one)}`, ""]);
}
function shut() {
  list.hidden = true;
  at = -1;
  field.setAttribute("aria-expanded", "false");
  field.removeAttribute("aria-activedescendant");
}
function offer() {
  const found = offers().slice(0, SHOWN_MAX);
  if (!found.length) return shut();
  at = -1;
  list.replaceChildren(...found.map(([text, told], n) => {
    const one = el("div", { role: "option", id: `suggestion-${n}`, "aria-selected": "false", "data-text": text }, el("b", {}, text), told && el("span", {}, told));
    one.addEventListener("pointerdown", (event) => { event.preventDefault(); take(text); });
    return one;
  }));
  list.hidden = false;
  list.scrollIntoView({ block: "nearest" });
  field.setAttribute("aria-expanded", "true");
}
function take(text) {
  const [end, length] = [field.selectionStart, word().length];
  const full = text.endsWith(":") ? text : `${text} `;
  field.value = field.value.slice(0, end - length) + full + field.value.slice(end);
  field.selectionStart = field.selectionEnd = end - length + full.length;
  offer();
}
function step(by) {
  at = (at + by + list.children.length) % list.children.length;
  for (const [n, one] of [...list.children].entries()) one.setAttribute("aria-selected", String(n === at));
  field.setAttribute("aria-activedescendant", list.children[at].id);
}
field.addEventListener("input", offer);
field.addEventListener("focus", offer);
field.addEventListener("blur", shut);
field.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !list.hidden) { event.preventDefault(); shut(); }
  else if (!list.hidden && ["ArrowDown", "ArrowUp"].includes(event.key)) { event.preventDefault(); step(event.key === "ArrowDown" ? 1 : -1); }
  else if (!list.hidden && at >= 0 && event.key === "Enter") { event.preventDefault(); take(list.children[at].dataset.text); }
  else if (event.key === "Enter") shut();
});
