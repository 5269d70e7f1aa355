// The last deliveries, and sending some of them again.
import { $, ask, can, chosenPlaces, confirmed, el, guard, isLive, onStats, query, remember, say, selectAll, span, time } from "./shared.js";

const AGAIN_MAX = 50;
const form = $("#filter");
let shown = [];
let asked = 0;
const chosen = () => document.querySelector("#deliveries tbody input:checked");
const fillForm = () => { form.elements.search.value = new URLSearchParams(location.search).get("search") || ""; };
// An automatic refresh is dropped if the user searched since or is selecting: rows must not move then.
async function show({ quiet = false } = {}) {
  const mine = quiet ? asked : ++asked;
  const got = await ask("GET", "/v1/deliveries?" + query({ search: form.elements.search.value, limit: 200 }));
  if (mine !== asked || (quiet && chosen())) return;
  shown = got.items;
  $("#deliveries tbody").replaceChildren(...shown.map((one, n) => el("tr", {},
    el("td", {}, can.admin ? el("input", { type: "checkbox", value: String(n), "aria-label": `select ${one.id}` }) : ""),
    el("td", { class: "cut" }, el("a", { href: "/schedule?" + query({ id: one.id_base64 ? "" : one.id, b: one.id_base64 }) }, one.id)), el("td", {}, one.topic),
    el("td", { class: "time" }, time(one.due_ms)), el("td", { class: "time" }, time(one.at_ms)), el("td", {}, span(one.late_ms)))));
}
form.addEventListener("submit", guard(async (event) => {
  event.preventDefault();
  remember({ search: form.elements.search.value });
  await show();
}));
addEventListener("popstate", guard(async () => { fillForm(); await show(); }));

// Each is looked up on its topic first: the list of deliveries has only its id.
async function deliverAgain(ones) {
  let [done, missing] = [0, 0];
  for (const one of ones) {
    const found = await ask("GET", "/v1/records?" + query({ topic: one.topic, id: one.id, since_ms: one.at_ms, limit: 1 }));
    if (!found.items.length) { missing += 1; continue; }
    done += (await ask("POST", "/v1/records:redrive", { topic: one.topic, places: [found.items[0].place], target: one.topic })).redriven;
  }
  say(`${done} redriven` + (missing ? `, ${missing} not: no longer on their topic.` : "."), missing > 0);
}
if (can.admin) $("#actions").append(selectAll("#deliveries"), el("button", { type: "button", onclick: guard(async () => {
  const ones = chosenPlaces("#deliveries").map((n) => shown[n]);
  if (ones.length > AGAIN_MAX) throw new Error(`select at most ${AGAIN_MAX}`);
  if (await confirmed(`Redrive ${ones.length}`, "They are delivered again, at once, under new ids.", { danger: false })) await deliverAgain(ones);
}) }, "Redrive selected"));

fillForm();
guard(show)({ quiet: true });
onStats(guard(async () => { if (isLive() && !chosen()) await show({ quiet: true }); }));
