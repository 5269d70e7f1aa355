// A small line of the last hour. What is unknown is left out; zero stands on the ground.
import { svg } from "./shared.js";

const [WIDTH, HEIGHT, TOP] = [120, 32, 3];
export function drawSpark(place, values, { bad = false } = {}) {
  const kind = bad && values.some(Boolean) ? "bad" : "";
  place.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  place.setAttribute("preserveAspectRatio", "none");
  const top = Math.max(1e-9, ...values.map((n) => n ?? 0));
  const dots = values.map((n, i) => (n == null ? null : [(i / Math.max(1, values.length - 1)) * WIDTH, HEIGHT - 1 - (n / top) * (HEIGHT - TOP - 1)])).filter(Boolean);
  if (dots.length < 2) return place.replaceChildren();
  const line = dots.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  return place.replaceChildren(
    svg("path", { class: `area ${kind}`, d: `${line}L${dots.at(-1)[0].toFixed(1)} ${HEIGHT}L${dots[0][0].toFixed(1)} ${HEIGHT}Z` }),
    svg("path", { class: `line ${kind}`, d: line, "vector-effect": "non-scaling-stroke" }));
}
