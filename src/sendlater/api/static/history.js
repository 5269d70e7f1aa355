import { $, ask, el, guard, isLive, onStats, query, span, time } from "./shared.js";
const form = $("#filter");
form.elements.search.value = new URLSearchParams(location.search).get("search") || "";
async function show() {
  const got = await ask("GET", "/v1/deliveries?" + query({ search: form.elements.search.value, limit: 200 }));
  $("#deliveries tbody").replaceChildren(...got.items.map((one) => el("tr", {},
    el("td", { class: "cut" }, el("a", { href: "/schedule?" + query({ id: one.id }) }, one.id)), el("td", {}, one.topic),
    el("td", { class: "time" }, time(one.due_ms)), el("td", { class: "time" }, time(one.at_ms)), el("td", {}, span(one.late_ms)))));
}
form.addEventListener("submit", guard(async (event) => {
  event.preventDefault();
  history.pushState(null, "", "?" + query({ search: form.elements.search.value }));
  await show();
}));
guard(show)();
onStats(guard(async () => { if (isLive()) await show(); }));
