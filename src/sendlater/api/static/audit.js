import { $, ask, can, confirmed, count, el, guard, say, time } from "./shared.js";
async function show() {
  const got = await ask("GET", "/v1/audit?limit=200");
  $("#audit tbody").replaceChildren(...got.items.map((one) => el("tr", {},
    el("td", { class: "time" }, time(one.at_ms)), el("td", {}, one.who), el("td", {}, one.action),
    el("td", { class: "cut" }, JSON.stringify(one.what)), el("td", {}, count(one.count)),
    el("td", {}, one.can_undo && can.admin ? el("button", { type: "button", "aria-label": `Undo ${one.action} of ${one.count}`, onclick: guard(async () => {
      if (!(await confirmed("Undo", `What was cancelled comes back, what was moved goes back: ${one.count} schedules.`))) return;
      const done = await ask("POST", `/v1/audit/${one.id}:undo`);
      say(`${count(done.changed)} of ${count(done.matched)} undone.`);
      await show();
    }) }, "Undo") : ""))));
}
guard(show)();
