// The last records of the rejected, dead-letter or any other topic, and sending them again.
import { $, ask, body, can, chosenPlaces, confirmed, el, guard, query, remember, say, selectAll, time } from "./shared.js";

const form = $("#filter");
function fillForm() {
  const given = new URLSearchParams(location.search);
  form.elements.topic.value = given.get("topic") || body.topic;
  form.elements.search.value = given.get("search") || "";
  form.elements.search.disabled = !can.payload;
}
const topic = () => form.elements.topic.value.trim();
async function show() {
  const got = await ask("GET", "/v1/records?" + query({ topic: topic(), search: form.elements.search.value, limit: 200 }));
  $("#records tbody").replaceChildren(...got.items.map((one) => el("tr", {},
    el("td", {}, can.admin ? el("input", { type: "checkbox", value: one.place, "aria-label": `select ${one.place}` }) : ""),
    el("td", {}, one.place), el("td", { class: "time" }, time(one.at_ms)), el("td", {}, one.reason || (one.event_error ? "handler failed" : "")),
    el("td", {}, one.detail || one.event_error || ""), el("td", {}, one.target || one.event_type || ""),
    el("td", { class: "cut" }, (one.value ?? (can.payload ? "(bytes)" : "(hidden)")).slice(0, 120)))));
  $("#note").textContent = got.items.length ? `${got.items.length} shown.` : "No records.";
}
form.addEventListener("submit", guard(async (event) => {
  event.preventDefault();
  remember({ topic: topic() === body.topic ? "" : topic(), search: form.elements.search.value });
  await show();
}));
addEventListener("popstate", guard(async () => { fillForm(); await show(); }));
if (can.admin) {
  const target = el("input", { placeholder: "default: the intended one", size: 16 });
  $("#actions").append(selectAll("#records"), el("button", { type: "button", onclick: guard(async () => {
    const places = chosenPlaces("#records");
    if (!(await confirmed(`Redrive ${places.length}`, "They are delivered again, at once, under new ids.", { danger: false }))) return;
    const done = await ask("POST", "/v1/records:redrive", { topic: topic(), places, target: target.value.trim() || null });
    say(`${done.redriven} redriven` + (done.skipped.length ? `, ${done.skipped.length} not: ${done.skipped[0].detail}` : "."), done.skipped.length > 0);
  }) }, "Redrive selected"), el("label", {}, "to target topic ", target));
}
fillForm();
guard(show)();
