// Which topics of the timeline have a colour of their own, and which one. Numbers from a sample differ a little
// each time: a topic keeps its place until another has clearly more, and its colour, also when the page is loaded anew.
const OWN = 7;
const [CLEARLY, FRESH_SHARE, NONE] = [2, 0.2, 0.5];
const OTHERS = OWN;

const stored = () => { try { return new Map(JSON.parse(localStorage.getItem("colours")) ?? []); } catch { return new Map(); } };
const colours = stored();
let shown = new Set(colours.keys()), weights = new Map(), seen = null;
const sum = (counts) => counts.reduce((a, b) => a + b, 0);

// Of each topic its name, counts and colour, by name; the others are one, and told so. `view`: with another one, numbers
// of the one before mean nothing. `held`: somebody is at the legend, where nothing may change under the pointer.
export function topTopics({ topics, counts, sampled }, view, held) {
  const fixed = held && seen !== null ? [...shown] : [];
  weigh(topics, sampled && view === seen);
  seen = view;
  const bonus = (topic) => weights.get(topic) * (shown.has(topic) ? CLEARLY : 1);
  const there = [...weights.keys()].filter((topic) => topic in topics || weights.get(topic) >= NONE);
  const ranked = [...new Set([...fixed, ...there.sort((a, b) => bonus(b) - bonus(a) || (a < b ? -1 : 1))])];
  const own = ranked.slice(0, OWN).sort(), rest = ranked.slice(OWN), none = counts.map(() => 0);
  shown = new Set(own);
  const made = own.map((topic) => [topic, topics[topic] ?? none, colourOf(topic)]);
  localStorage.setItem("colours", JSON.stringify([...colours]));
  if (!rest.length) return made;
  const others = rest.length > 1;
  return [...made, [others ? `${rest.length} others` : rest[0], counts.map((_, i) => sum(rest.map((topic) => topics[topic]?.[i] ?? 0))), OTHERS, others]];
}
// From samples, the mean of the last answers; what is counted is what it is.
function weigh(topics, several) {
  const now = new Map(Object.entries(topics).map(([topic, each]) => [topic, sum(each)]));
  if (several) for (const [topic, before] of weights) now.set(topic, before + ((now.get(topic) ?? 0) - before) * FRESH_SHARE);
  weights = now;
}
// The name decides it, where that colour is free; if none is, one that is not shown loses its own.
function colourOf(topic) {
  if (colours.has(topic)) return colours.get(topic);
  const taken = new Set(colours.values()), first = [...topic].reduce((hash, one) => (hash * 41 + one.codePointAt(0)) % 65521, 6) % OWN;
  const free = Array.from({ length: OWN }, (_, n) => (first + n) % OWN).find((n) => !taken.has(n));
  const old = free === undefined && [...colours.keys()].find((name) => !shown.has(name));
  const colour = free ?? colours.get(old);
  colours.delete(old);
  colours.set(topic, colour);
  return colour;
}
