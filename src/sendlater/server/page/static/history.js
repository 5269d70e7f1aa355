// The last deliveries, and sending some of them again.
import { $, ask, badge, can, chosenPlaces, confirmed, el, given, guard, isLive, LATE_MS, needsChosen, onBack, onKey, onStats, pageOf, query, remember, rowsOrNone, say, selectAll, span, time, visible } from "./shared.js";

const [SHOWN, AGAIN_MAX] = [200, 50];
const form = $("#filter");
let shown = [];
let asked = 0;
const chosen = () => document.querySelector("#deliveries tbody input:checked");
const fillForm = () => { form.elements.search.value = given("search"); };
// An automatic refresh is dropped if the user searched since or is selecting: rows must not move then.
async function show({ quiet = false } = {}) {
  const mine = quiet ? asked : ++asked;
  const got = await ask("GET", "/v1/deliveries?" + query({ search: form.elements.search.value, limit: SHOWN }));
  if (mine !== asked || (quiet && chosen())) return;
  shown = got.items;
  rowsOrNone("#deliveries", shown.map((one, n) => el("tr", {},
    el("td", {}, can.admin ? el("input", { type: "checkbox", value: String(n), "aria-label": `select ${one.id}` }) : ""),
    el("td", { class: "id" }, el("a", { href: pageOf(one) }, visible(one.id))), el("td", {}, one.topic),
    el("td", { class: "time" }, time(one.due_ms)), el("td", { class: "time" }, time(one.at_ms)), el("td", {}, badge(span(one.late_ms), one.late_ms > LATE_MS ? "bad" : "good")))), given("search") ? "No delivery matches." : "Nothing has been delivered yet.");
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
  say(`${done} redriven` + (missing ? `, ${missing} not: no longer on their topic.` : "."), { bad: missing > 0 });
}
if (can.admin) $("#actions").append(selectAll("#deliveries"), needsChosen("#deliveries", el("button", { type: "button", onclick: guard(async () => {
  const ones = chosenPlaces("#deliveries").map((n) => shown[n]);
  if (ones.length > AGAIN_MAX) throw new Error(`select at most ${AGAIN_MAX}`);
  if (await confirmed(`Redrive ${ones.length}?`, "They are delivered again, at once, under new ids.", { danger: false })) await deliverAgain(ones);
}) }, "Redrive selected")));

onKey("/", () => form.elements.search.focus());
onBack(guard(() => show({ quiet: true })));
fillForm();
guard(show)({ quiet: true });
onStats(guard(async () => { if (isLive() && !chosen()) await show({ quiet: true }); }));
