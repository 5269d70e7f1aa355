// The audit trail, latest first, and undo.
import { $, ask, can, confirmed, count, el, given, guard, hiddenTold, onBack, remember, rowsOrNone, time, undone } from "./shared.js";

const SHOWN = 200;
const skip = () => Number(given("skip")) || 0;
async function show() {
  const got = await ask("GET", `/v1/audit?limit=${SHOWN}&skip=${skip()}`);
  rowsOrNone("#audit", got.items.map((one) => el("tr", {},
    el("td", { class: "time" }, time(one.at_ms)), el("td", {}, one.who), el("td", {}, one.action),
    el("td", { class: "cut" }, el("code", {}, hiddenTold(JSON.stringify(one.what)))), el("td", {}, count(one.count)),
    el("td", { class: "time" }, one.can_undo ? time(one.undo_until_ms) : ""),
    el("td", {}, one.can_undo && can.admin ? el("button", { type: "button", "aria-label": `Undo ${one.action} of ${one.count}`, onclick: guard(async () => {
      if (!(await confirmed("Undo?", `Cancelled schedules are restored, moved ones are moved back: ${one.count} schedules.`, { danger: false }))) return;
      await undone(one.id);
      await show();
    }) }, "Undo") : ""))), "Nothing has been changed here yet.");
  $("#newer").disabled = !skip();
  $("#older").disabled = got.items.length < SHOWN;
}
const turn = (by) => guard(async () => { remember({ skip: Math.max(0, skip() + by) || "" }); await show(); });
$("#newer").addEventListener("click", turn(-SHOWN));
$("#older").addEventListener("click", turn(SHOWN));
addEventListener("popstate", guard(show));
onBack(guard(show));
guard(show)();
