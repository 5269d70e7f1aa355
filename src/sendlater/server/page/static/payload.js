// A payload as a JSON tree, text or hex; and what differs between two of them.
import { $, can, count, el, visible, visibleHeader, visibleLines } from "./shared.js";

const [TEXT_MAX, HEX_MAX] = [65536, 16384];
const DIFF_LINES_MAX = 400;
export const bytesOf = (packed) => Uint8Array.from(atob(packed), (one) => one.charCodeAt(0));

// As it is written: objects of JavaScript keep only the last of equal names, and it changes 1.0, 1e400 and numbers above
// 2^53. A string, number or word is its text; an array or object has entries. Throws for what is no JSON.
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|[^\s,:[\]{}"]+|[[\]{}]/g;
function written(text) {
  JSON.parse(text);
  const tokens = text.match(TOKEN).values(), next = () => tokens.next().value;
  const take = (open) => {
    if (open !== "{" && open !== "[") return open;
    const [entries, shut] = [[], open === "{" ? "}" : "]"];
    for (let one = next(); one !== shut; one = next()) entries.push(open === "{" ? [JSON.parse(one), take(next())] : [String(entries.length), take(one)]);
    return { open, shut, entries };
  };
  return take(next());
}
const plain = (token) => (token.startsWith('"') ? JSON.stringify(JSON.parse(token)) : token);
function tree(value, name) {
  const label = name === undefined ? "" : `${visible(name)}: `;
  if (typeof value === "string") return el("li", {}, label + visible(plain(value)));
  const { open, shut, entries } = value;
  return el("li", {}, el("details", { open: true }, el("summary", {}, `${label}${open}${entries.length}${shut}`), el("ul", {}, ...entries.map(([key, one]) => tree(one, key)))));
}
function hex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_MAX); at += 16) {
    const some = Array.from(bytes.slice(at, at + 16));
    lines.push(at.toString(16).padStart(8, "0") + "  " + some.map((n) => n.toString(16).padStart(2, "0")).join(" ").padEnd(49) + some.map((n) => (n > 31 && n < 127 ? String.fromCharCode(n) : ".")).join(""));
  }
  return lines.join("\n");
}

export function showPayload(one) {
  $("#payload-part").hidden = false;
  if (!can.payload) { $("#payload-part").replaceChildren(el("p", {}, "Payloads are hidden for this role.")); return; }
  const bytes = one.value_base64 !== undefined ? bytesOf(one.value_base64) : new TextEncoder().encode(one.value ?? "");
  const forms = [["hex", () => el("pre", {}, hex(bytes))]];
  if (one.value != null) {
    forms.unshift(["text", () => el("pre", {}, visibleLines(one.value.slice(0, TEXT_MAX)))]);
    try {
      const parsed = written(one.value);
      forms.unshift(["JSON", () => el("ul", { class: "tree" }, tree(parsed))]);
    } catch { /* it is text */ }
  }
  const choose = (name) => {
    $("#payload").replaceChildren(forms.find(([form]) => form === name)[1]());
    $("#forms").replaceChildren(...forms.map(([form]) => el("button", { type: "button", "aria-pressed": String(form === name), onclick: () => choose(form) }, form)));
  };
  choose(forms[0][0]);
  $("#size").textContent = `${count(bytes.length)} byte${bytes.length === 1 ? "" : "s"}` + (bytes.length > HEX_MAX ? `; of it are shown ${count(TEXT_MAX)} as text, ${count(HEX_MAX)} as hex` : "");
  $("#download").href = URL.createObjectURL(new Blob([bytes]));
  $("#download").download = "payload";
  const headers = one.headers || [];
  $("#headers tbody").replaceChildren(...(headers.length ? headers.map((header) => {
    const [name, value] = visibleHeader(header);
    return el("tr", {}, el("td", {}, name), el("td", {}, value));
  }) : [el("tr", {}, el("td", { colspan: 2, class: "soft" }, "none"))]));
}

// --- what differs ---
function printed(value, pad = "", before = "") {
  if (typeof value === "string") return [pad + before + plain(value)];
  const named = ([name, one]) => printed(one, `${pad}  `, value.open === "{" ? `${JSON.stringify(name)}: ` : "");
  return [pad + before + value.open, ...value.entries.flatMap(named), pad + value.shut];
}
function linesOf(text) {
  try { return printed(written(text)); } catch { return text.split("\n"); }
}
// The lines of both texts: what only the first has is deleted, what only the second has is inserted.
export function difference(before, after) {
  const [a, b] = [linesOf(before), linesOf(after)].map((lines) => lines.map(visibleLines));
  if (Math.max(a.length, b.length) > DIFF_LINES_MAX) return el("pre", {}, visibleLines(after.slice(0, TEXT_MAX)));
  const same = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1)
    for (let j = b.length - 1; j >= 0; j -= 1) same[i][j] = a[i] === b[j] ? same[i + 1][j + 1] + 1 : Math.max(same[i + 1][j], same[i][j + 1]);
  const told = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { told.push(el("span", {}, "  " + a[i])); i += 1; j += 1; }
    else if (j < b.length && (i === a.length || same[i][j + 1] > same[i + 1][j])) { told.push(el("ins", {}, "+ " + b[j])); j += 1; }
    else { told.push(el("del", {}, "- " + a[i])); i += 1; }
  }
  return el("pre", { class: "diff", tabindex: "0" }, ...told);
}
