// A chart of bars over time, as SVG: what is where; zoom by wheel, pan on the axis, select by dragging, hover.
import { count, el, LAST_MS, short, span, svg, timeText } from "./shared.js";
import { timeTicks, valueTicks } from "./axis.js";

const [LEFT, RIGHT, TOP, BOTTOM] = [48, 16, 32, 32];
const [TICK_PX, DRAG_PX, SETTLED_MS] = [110, 4, 300];
const ZOOM = 1.0015;
const VIEW_MS_MIN = 10_000;
const ASK_AFTER_MS = 150;

export function makeChart(place, { onView, onSelect }) {
  const tip = el("div", { class: "tip", "aria-hidden": "true", hidden: true });
  const root = svg("svg", { "aria-hidden": "true" });
  place.append(root, tip);
  let got = null, view = [0, 1], options = {}, hover = null, brush = null, top = 0, before = 0, width = 0, height = 0;

  const x = (ms) => LEFT + ((ms - view[0]) / (view[1] - view[0])) * (width - LEFT - RIGHT);
  const back = (px) => view[0] + ((px - LEFT) / (width - LEFT - RIGHT)) * (view[1] - view[0]);
  const floor = () => height - BOTTOM;
  const share = (n) => (options.log ? Math.log10(n + 1) / Math.log10(top + 1) : n / top);
  const y = (n) => floor() - share(Math.min(n, top)) * (floor() - TOP);

  function draw(data = got, now = view, how = options) {
    [got, view, options] = [data, now, how];
    width = place.clientWidth;
    height = place.clientHeight;
    if (!got || !width) return;
    if (hover >= got.counts.length) hover = null; // of bars that are no more
    root.setAttribute("width", width);
    root.setAttribute("height", height);
    const seen = got.counts.map((n, i) => n + got.held[i]).filter((_, i) => got.edges_ms[i + 1] > view[0] && got.edges_ms[i] < view[1]);
    before = overdueBefore(got, view[0]);
    const scale = valueTicks(Math.max(1, ...seen, before), options.log);
    top = scale.top;
    root.replaceChildren(clip(), stripes(), ...lines(scale.ticks), ...bars(), ...told(), ...overdue(), ...drain(), ...axis(), ...nowLine(), ...late(), ...selection(), ...pointed());
  }
  const clip = () => svg("clipPath", { id: "inside" }, svg("rect", { x: LEFT, y: 0, width: Math.max(0, width - LEFT - RIGHT), height }));
  const stripes = () => svg("pattern", { id: "stripes", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("rect", { class: "stripe", width: 2, height: 6 }));
  const lines = (ticks) => ticks.flatMap((n) => [
    svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(n), y2: y(n) }),
    svg("text", { x: LEFT - 8, y: y(n) + 4, "text-anchor": "end" }, short(n))]);
  const axis = () => timeTicks(view, Math.max(2, Math.floor((width - LEFT - RIGHT) / TICK_PX))).flatMap(([at, text]) => [
    svg("line", { class: "tick", x1: x(at), x2: x(at), y1: floor(), y2: floor() + 4 }),
    svg("text", { x: Math.min(Math.max(x(at), LEFT + 8), width - RIGHT - 8), y: floor() + 20, "text-anchor": "middle" }, text)]);

  // One path for each topic: the bars of one colour.
  function bars() {
    const below = got.counts.map(() => 0);
    return options.topics.map(([topic, counts, colour]) => {
      let path = "";
      counts.forEach((some, i) => {
        if (!some) return;
        path += bar(i, below[i], below[i] + some);
        below[i] += some;
      });
      return svg("path", { class: `bar c${colour}`, "data-topic": topic, "clip-path": "url(#inside)", d: path });
    });
  }
  function bar(i, low, high) {
    const [left, right] = [x(got.edges_ms[i]), x(got.edges_ms[i + 1])];
    const gap = right - left > 4 ? 1 : 0;
    const [above, under] = [Math.min(y(high), y(low) - 1), y(low)];
    return `M${left.toFixed(1)} ${under.toFixed(1)}V${above.toFixed(1)}H${(right - gap).toFixed(1)}V${under.toFixed(1)}Z`;
  }
  // What recurs is striped, at the top of its bar; what limits hold stands on the bars, hollow, where they let it go.
  function told() {
    let recurring = "", waits = "";
    got.counts.forEach((n, i) => {
      if (got.recurring[i]) recurring += bar(i, n - Math.min(n, got.recurring[i]), n);
      if (got.held[i]) waits += bar(i, n, n + got.held[i]);
    });
    return [["recurring", recurring], ["held", waits]].filter(([, path]) => path).map(([name, path]) => svg("path", { class: `bar ${name}`, "clip-path": "url(#inside)", d: path, fill: name === "recurring" ? "url(#stripes)" : null }));
  }
  // Red: what is due before now and still here. What is due before the chart begins stands at its left edge.
  function overdue() {
    const path = overdueCounts(got).reduce((all, some, i) => (some ? all + bar(i, 0, some) : all), "");
    const made = path ? [svg("path", { class: "bar overdue", "clip-path": "url(#inside)", d: path })] : [];
    if (before) made.push(svg("rect", { class: "bar overdue", x: LEFT, y: y(before), width: 8, height: floor() - y(before) }), svg("text", { class: "overdue", x: LEFT + 12, y: Math.max(TOP - 4, y(before) + 12) }, `${short(before)} overdue`));
    return made;
  }
  function drain() {
    const per = (got.drain_per_s * (got.edges_ms[1] - got.edges_ms[0])) / 1000;
    if (per > top) return [];
    return [svg("line", { class: "drain", x1: LEFT, x2: width - RIGHT, y1: y(per), y2: y(per) }), svg("text", { class: "drain", x: width - RIGHT, y: y(per) - 6, "text-anchor": "end" }, `drains at ${short(got.drain_per_s)}/s`)];
  }
  function nowLine() {
    const at = x(Date.now());
    if (at < LEFT || at > width - RIGHT) return [];
    return [svg("line", { class: "now", x1: at, x2: at, y1: TOP - 8, y2: floor() }), svg("text", { class: "now", x: at, y: TOP - 14, "text-anchor": at < LEFT + 16 ? "start" : "middle" }, "now")];
  }
  // How late a spike will be: over it, and as far to the right as it reaches.
  const late = () => options.spikes.flatMap((i) => {
    const [left, right] = [x(got.edges_ms[i]), x(got.edges_ms[i + 1])];
    const until = Math.max(right, x(got.edges_ms[i] + got.late_ms[i]));
    const above = Math.max(TOP - 4, y(got.counts[i]) - 6), text = `late ${span(got.late_ms[i])}`;
    if (right < LEFT || left > width - RIGHT) return [];
    const flip = right + 80 > width - RIGHT;
    return [svg("rect", { class: "late", x: left, y: above, width: Math.max(2, until - left), height: 3, "clip-path": "url(#inside)" }),
      svg("text", { class: "late", x: flip ? right : left, y: above - 4, "text-anchor": flip ? "end" : "start" }, text)];
  });
  function selection() {
    const both = brush ?? options.selected;
    if (!both) return [];
    const [left, right] = [Math.max(LEFT, x(Math.min(...both))), Math.min(width - RIGHT, x(Math.max(...both)))];
    if (right < LEFT || left > width - RIGHT) return [];
    return [svg("rect", { class: "brush", x: left, y: TOP - 8, width: Math.max(1, right - left), height: floor() - TOP + 8 })];
  }
  function pointed() {
    if (hover === null || brush) return [];
    return [svg("rect", { class: "pointed", x: x(got.edges_ms[hover]), y: TOP, width: Math.max(1, x(got.edges_ms[hover + 1]) - x(got.edges_ms[hover])), height: floor() - TOP })];
  }

  // --- hover ---
  function point(px) {
    const at = back(px), i = got ? got.edges_ms.findIndex((edge, n) => at >= edge && at < got.edges_ms[n + 1]) : -1;
    hover = i < 0 || px < LEFT ? null : i;
    tip.hidden = hover === null || !(got.counts[hover] || got.held[hover] || brush);
    if (tip.hidden) return;
    const red = overdueCounts(got)[hover];
    tip.replaceChildren(el("b", {}, `${count(got.counts[hover])} due`), el("span", {}, fromTo(got.edges_ms[hover], got.edges_ms[hover + 1])),
      ...options.topics.map(([topic, counts, colour]) => counts[hover] ? el("span", {}, el("i", { class: `c${colour}` }), `${topic} ${got.estimated[hover] ? "≈ " : ""}${count(counts[hover])}`) : null).filter(Boolean),
      ...(got.recurring[hover] ? [el("span", {}, el("i", { class: "recurring" }), `${count(got.recurring[hover])} recurring`)] : []),
      ...(got.held[hover] ? [el("span", {}, el("i", { class: "held" }), `${count(got.held[hover])} held by limits until then`)] : []),
      ...(red ? [el("span", { class: "bad" }, `${count(red)} overdue`)] : []),
      ...(got.late_ms[hover] ? [el("span", {}, `late by up to ${span(got.late_ms[hover])}`)] : []));
    const left = Math.min(x(got.edges_ms[hover + 1]) + 8, width - tip.offsetWidth - 4);
    tip.style.transform = `translate(${Math.max(0, left < px ? x(got.edges_ms[hover]) - tip.offsetWidth - 8 : left)}px, ${TOP}px)`;
  }

  // --- wheel, drag, keys ---
  let changed = 0, scrolled = 0, held = null;
  function move(now) {
    const length = Math.min(Math.max(VIEW_MS_MIN, now[1] - now[0]), LAST_MS), from = Math.min(Math.max(0, now[0]), LAST_MS - length);
    draw(got, [from, from + length]);
    clearTimeout(changed);
    changed = setTimeout(() => { changed = 0; onView(view); }, ASK_AFTER_MS);
  }
  const zoom = (by, at = (view[0] + view[1]) / 2) => move([at - (at - view[0]) * by, at + (view[1] - at) * by]);
  const pan = (by) => move([view[0] + by, view[1] + by]);
  // A wheel that scrolls the page goes on scrolling it over the chart; one that starts here zooms.
  addEventListener("wheel", (event) => { if (!place.contains(event.target)) scrolled = performance.now(); }, { passive: true });
  place.addEventListener("wheel", (event) => {
    if (performance.now() - scrolled < SETTLED_MS && !event.ctrlKey) { scrolled = performance.now(); return; }
    event.preventDefault();
    const perPx = (view[1] - view[0]) / (width - LEFT - RIGHT);
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : 0;
    if (sideways) pan(sideways * perPx);
    else zoom(ZOOM ** event.deltaY, back(px(event)));
  }, { passive: false });
  const px = (event) => event.clientX - place.getBoundingClientRect().left;
  place.addEventListener("pointerdown", (event) => {
    if (event.button || !got) return;
    const below = event.clientY - place.getBoundingClientRect().top > floor();
    held = { px: px(event), view, panning: below || event.shiftKey, moved: false };
    place.setPointerCapture(event.pointerId);
  });
  place.addEventListener("pointermove", (event) => {
    if (held && Math.abs(px(event) - held.px) > DRAG_PX) held.moved = true;
    if (held?.moved && held.panning) {
      const by = ((held.px - px(event)) * (held.view[1] - held.view[0])) / (width - LEFT - RIGHT);
      move([held.view[0] + by, held.view[1] + by]);
      return;
    }
    if (held?.moved) brush = [held.px, px(event)].map((at) => back(Math.min(Math.max(at, LEFT), width - RIGHT)));
    point(px(event));
    draw();
  });
  // Whole bars, as that is what one sees.
  const whole = (from, to) => [got.edges_ms.findLast((edge) => edge <= from) ?? from, got.edges_ms.find((edge) => edge >= to) ?? to];
  function release() {
    const [was, drawn] = [held, brush];
    held = brush = null;
    if (was?.moved && drawn) onSelect(...whole(Math.min(...drawn), Math.max(...drawn)));
    else if (was && !was.moved && !was.panning && hover !== null && got.counts[hover]) onSelect(got.edges_ms[hover], got.edges_ms[hover + 1]);
  }
  place.addEventListener("pointerup", release);
  place.addEventListener("pointercancel", () => { held = brush = null; draw(); });
  place.addEventListener("pointerleave", () => { if (!held) { hover = null; tip.hidden = true; draw(); } });
  const KEYS = { ArrowLeft: () => pan((view[0] - view[1]) / 8), ArrowRight: () => pan((view[1] - view[0]) / 8), "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), 0: () => onView(null) };
  place.addEventListener("keydown", (event) => {
    if (!KEYS[event.key] || event.ctrlKey || event.metaKey || !got) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  new ResizeObserver(() => draw()).observe(place);
  return { draw, busy: () => held !== null || changed !== 0 };
}

function fromTo(from, to) {
  const [begins, ends] = [timeText(from), timeText(to)];
  return `${begins} – ${begins.slice(0, 10) === ends.slice(0, 10) ? ends.slice(11) : ends}`;
}

// Of each bar, what is overdue: all of those that end before now, and of the one that now is in, the rest of the sum.
export function overdueCounts(got) {
  let left = Math.max(0, got.overdue - got.before);
  return got.counts.map((n, i) => {
    if (got.edges_ms[i] > got.now_ms) return 0;
    const red = Math.min(n, left);
    left -= red;
    return red;
  });
}
// How many are overdue before the view begins: also in bars that time has moved out of it, and if it begins after now.
export function overdueBefore(got, from) {
  if (got.edges_ms.at(-1) < got.now_ms) return got.before;
  const seen = overdueCounts(got).reduce((all, some, i) => (got.edges_ms[i + 1] > from ? all + some : all), 0);
  return Math.max(got.before, got.overdue - seen);
}
