import { $, ask, body, can, confirmed, el, guard, query, say, time } from "./shared.js";
const form = $("#filter");
const given = new URLSearchParams(location.search);
form.elements.topic.value = given.get("topic") || body.rejected;
form.elements.search.value = given.get("search") || "";
const topic = () => form.elements.topic.value.trim();
async function show() {
  const got = await ask("GET", "/v1/records?" + query({ topic: topic(), search: form.elements.search.value, limit: 200 }));
  $("#records tbody").replaceChildren(...got.items.map((one) => el("tr", {},
    el("td", {}, el("input", { type: "checkbox", value: one.place, "aria-label": `select ${one.place}` })),
    el("td", {}, one.place), el("td", { class: "time" }, time(one.at_ms)), el("td", {}, one.reason || ""),
    el("td", {}, one.detail || ""), el("td", {}, one.target || ""),
    el("td", { class: "cut" }, (one.value ?? (can.payload ? "(bytes)" : "(hidden)")).slice(0, 120)))));
}
form.addEventListener("submit", guard(async (event) => {
  event.preventDefault();
  history.pushState(null, "", "?" + query({ topic: topic(), search: form.elements.search.value }));
  await show();
}));
if (can.admin) {
  const target = el("input", { "aria-label": "target topic, where the record does not say it", placeholder: "as it was meant" });
  $("#actions").append(el("button", { type: "button", onclick: guard(async () => {
    const places = Array.from(document.querySelectorAll("#records input:checked"), (box) => box.value);
    if (!places.length) throw new Error("select at least one record");
    if (!(await confirmed(`Redrive ${places.length}`, "They are delivered again, at once, under new ids.", { danger: false }))) return;
    const done = await ask("POST", "/v1/records:redrive", { topic: topic(), places, target: target.value.trim() || null });
    say(`${done.redriven} redriven` + (done.skipped.length ? `, ${done.skipped.length} not: ${done.skipped[0].detail}` : "."), done.skipped.length > 0);
  }) }, "Redrive selected"), el("label", {}, "to ", target));
}
guard(show)();
