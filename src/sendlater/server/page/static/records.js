// The last records of the rejected, dead-letter or any other topic, and sending them again.
import { $, ask, badge, body, can, chosenPlaces, confirmed, el, given, guard, needsChosen, onKey, query, remember, rowsOrNone, say, selectAll, time, visible, visibleHeader, visibleLines } from "./shared.js";

const [SHOWN, PREVIEW_CHARS] = [200, 120];

const form = $("#filter");
function fillForm() {
  form.elements.topic.value = given("topic") || body.topic;
  form.elements.search.value = given("search");
  form.elements.search.disabled = !can.payload;
}
const topic = () => form.elements.topic.value.trim();
function reason(one) {
  const told = one.reason || (one.event_error ? "handler failed" : "");
  return told && badge(told, "bad");
}
// The beginning of its value; opened, everything it has.
function whole(one) {
  const told = one.value ?? (one.value === null && !one.value_base64 ? "(none)" : can.payload ? "(bytes)" : "(hidden)");
  const facts = [["key", one.key == null ? "none" : visible(one.key)], ...(one.headers ?? []).map(visibleHeader)];
  return el("details", {}, el("summary", {}, el("code", {}, visibleLines(told.slice(0, PREVIEW_CHARS)))),
    el("dl", {}, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])), el("pre", { tabindex: "0" }, visibleLines(told)));
}
let showing = 0;
async function show() {
  const mine = ++showing;
  const got = await ask("GET", "/v1/records?" + query({ topic: topic(), search: form.elements.search.value, limit: SHOWN }));
  if (mine !== showing) return;
  rowsOrNone("#records", got.items.map((one) => el("tr", { "aria-current": one.place === given("place") && "true" },
    el("td", {}, can.admin ? el("input", { type: "checkbox", value: one.place, "aria-label": `select ${one.place}` }) : ""),
    el("td", {}, one.place), el("td", { class: "time" }, time(one.at_ms)), el("td", {}, reason(one)),
    el("td", {}, visible(one.detail || one.event_error || "")), el("td", {}, visible(one.target || one.event_type || "")),
    el("td", { class: "whole" }, whole(one)))), "No records.");
  const there = $("#records tr[aria-current]");
  if (there) there.scrollIntoView({ block: "center" });
  else if (given("place")) say(`Record ${given("place")} is not among the last of ${topic()}.`, { bad: true });
  $("#note").textContent = got.items.length ? `${got.items.length} shown.` : "";
}
form.addEventListener("submit", guard(async (event) => {
  event.preventDefault();
  remember({ topic: topic() === body.topic ? "" : topic(), search: form.elements.search.value });
  await show();
}));
addEventListener("popstate", guard(async () => { fillForm(); await show(); }));
if (can.admin) {
  const target = el("input", { placeholder: "default: the intended one", size: 26, "aria-label": "to target topic" });
  $("#actions").append(selectAll("#records"), needsChosen("#records", el("button", { type: "button", onclick: guard(async () => {
    const places = chosenPlaces("#records");
    if (!(await confirmed(`Redrive ${places.length}?`, "They are delivered again, at once, under new ids.", { danger: false }))) return;
    const done = await ask("POST", "/v1/records:redrive", { topic: topic(), places, target: target.value.trim() || null });
    say(`${done.redriven} redriven` + (done.skipped.length ? `, ${done.skipped.length} not: ${done.skipped[0].detail}` : "."), { bad: done.skipped.length > 0 });
  }) }, "Redrive selected")), el("label", {}, "to target topic ", target));
}
onKey("/", () => form.elements.search.focus());
fillForm();
guard(show)();
