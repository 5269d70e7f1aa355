// An empty installation: how to send the first message, and a button that sends one and watches it arrive.
import { $, ask, body, can, el, guard, put, query, say, span } from "./shared.js";

const DELAY_S = 10;
const [LOOKS_EVERY_MS, LOOKS_FOR_MS] = [1000, 60_000];
const url = `${location.origin}/v1/schedules`;
const token = body.tokens === "true";
const message = `{"topic": "hello", "value": "hi", "delay": "${DELAY_S}s"}`;
const SAMPLES = {
  Shell: `curl ${url} \\
  -H 'content-type: application/json' \\${token ? "\n  -H \"authorization: Bearer $TOKEN\" \\" : ""}
  -d '${message}'`,
  Python: `import json
from urllib.request import Request, urlopen

body = {"topic": "hello", "value": "hi", "delay": "${DELAY_S}s"}
headers = {"content-type": "application/json"${token ? ", \"authorization\": \"Bearer \" + token" : ""}}
print(urlopen(Request("${url}", json.dumps(body).encode(), headers)).read())`,
  JavaScript: `const answer = await fetch("${url}", {
  method: "POST",
  headers: { "content-type": "application/json"${token ? ", authorization: `Bearer ${token}`" : ""} },
  body: JSON.stringify({ topic: "hello", value: "hi", delay: "${DELAY_S}s" }),
});
console.log(await answer.json());`,
  Java: `var request = HttpRequest.newBuilder(URI.create("${url}"))
    .header("content-type", "application/json")${token ? "\n    .header(\"authorization\", \"Bearer \" + token)" : ""}
    .POST(BodyPublishers.ofString("""
        ${message}"""))
    .build();
System.out.println(HttpClient.newHttpClient().send(request, BodyHandlers.ofString()).body());`,
  Go: `body := strings.NewReader(\`${message}\`)
request, _ := http.NewRequest("POST", "${url}", body)
request.Header.Set("content-type", "application/json")${token ? "\nrequest.Header.Set(\"authorization\", \"Bearer \"+token)" : ""}
answer, err := http.DefaultClient.Do(request)
fmt.Println(answer, err)`,
};

let sent = null, over = false, starting = false;
function build() {
  const topic = el("input", { id: "first-topic", value: "hello", size: 12, "aria-label": "to topic" });
  let chosen = "Shell";
  const choose = (name) => {
    chosen = name;
    put($("#sample"), SAMPLES[name].replace('"hello"', JSON.stringify(topic.value)));
    for (const button of $("#languages").children) button.setAttribute("aria-pressed", String(button.textContent === name));
  };
  $("#first-start").append(
    el("h2", { id: "first-title" }, "Send your first message"),
    el("p", { class: "soft" }, el("span", { id: "first-nothing" }, "Nothing has been scheduled here yet. "), "A schedule is a message, a topic and a time; from Kafka it is a record on an inbox topic, from anywhere else one request."),
    ...(can.write ? [el("div", { class: "row try" }, el("button", { type: "button", class: "main", id: "first-send", onclick: guard(() => send(topic.value.trim())) }, `Send one due in ${DELAY_S} s`), el("label", {}, "to topic ", topic), el("p", { id: "first-told", role: "status" }))] : []),
    el("div", { class: "row" }, el("div", { role: "group", class: "segments", id: "languages", "aria-label": "Language" }, ...Object.keys(SAMPLES).map((name) => el("button", { type: "button", onclick: () => choose(name) }, name)))),
    el("pre", { id: "sample", tabindex: "0", "aria-label": "Example" }));
  choose(chosen);
  topic.addEventListener("input", () => choose(chosen));
}

async function send(topic) {
  const made = await ask("POST", "/v1/schedules", { topic, value: "Hello from the page", delay: `${DELAY_S}s` });
  sent = { id: made.id, due_ms: made.due_ms, topic };
  $("#first-send").disabled = true;
  watch();
}
// Deliveries are asked for once a second, and only from the due time on and while somebody looks.
async function watch() {
  const left = sent.due_ms - Date.now();
  if (left > 0) put($("#first-told"), `On its way: due in ${Math.ceil(left / 1000)} s.`);
  else if (!document.hidden) {
    put($("#first-told"), starting ? "Due now. The service is still starting: it delivers what is due once it is ready." : "Due now. Looking for it…");
    try {
      const got = await ask("GET", "/v1/deliveries?" + query({ search: sent.id, limit: 5 }));
      if (got.items.length) return ended(got.items[0]);
    } catch (error) { say(error.message, { bad: true }); }
  }
  if (left > -LOOKS_FOR_MS || starting) setTimeout(watch, LOOKS_EVERY_MS);
  else ended(null);
}
function ended(found) {
  over = true;
  $("#first-send").disabled = false;
  const told = $("#first-told");
  if (!found) put(told, "It has not arrived within a minute; the first line of this page may say why.");
  else if (found.topic !== sent.topic) told.replaceChildren(el("b", { class: "bad" }, "Rejected"), ". ", el("a", { href: "/rejected" }, "See why"));
  else told.replaceChildren(el("b", { class: "good" }, "Arrived"), ` on ${found.topic}, ${span(found.late_ms)} after its due time. `, el("a", { href: "/schedule?" + query({ id: sent.id }) }, "See its life"));
}

// Stays until one leaves the page: what was watched shall not vanish when it arrives.
export function show(stats, empty) {
  const place = $("#first-start");
  starting = stats.starting;
  if (!place.childElementCount && empty) build();
  if (place.childElementCount) $("#first-nothing").hidden = !empty;
  place.hidden = !place.childElementCount || (!empty && !sent && !over);
}
