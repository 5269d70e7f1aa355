// Round numbers for the axes: steps of time that people think in, and where the labels go.
import { zoneMs } from "./shared.js";

const [S, MIN, H, D] = [1000, 60e3, 3600e3, 86400e3];
const STEPS = [100, 200, 500, S, 2 * S, 5 * S, 10 * S, 15 * S, 30 * S, MIN, 2 * MIN, 5 * MIN, 10 * MIN, 15 * MIN, 30 * MIN, H, 2 * H, 3 * H, 6 * H, 12 * H, D, 2 * D, 7 * D, 14 * D, 28 * D, 91 * D, 364 * D, 3640 * D];
const MONTHS = [1, 3, 6, 12, 24, 60, 120, 600, 1200, 6000, 12000];

// The smallest step of which at most `most` fit.
const stepFor = (length, most) => STEPS.find((step) => length / step <= most) ?? Math.ceil(length / most / D) * D;

// Weeks begin on Mondays; 1970 began on a Thursday.
const monday = (step) => (step % (7 * D) ? 0 : 4 * D);

const two = (n) => String(n).padStart(2, "0");
const NAMES = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
function label(shown, step) {
  const at = new Date(shown);
  const clock = `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}`;
  if (shown % D && step < D) return step >= MIN ? clock : `${clock}:${two(at.getUTCSeconds())}${step < S ? "." + Math.floor((shown % S) / 100) : ""}`;
  return `${DAYS[at.getUTCDay()]} ${at.getUTCDate()} ${NAMES[at.getUTCMonth()]}`;
}
export function timeTicks([from, to], most) {
  const step = stepFor(to - from, most);
  if (step > 7 * D) return monthTicks([from, to], most);
  const zone = zoneMs(from), week = monday(step), ticks = [];
  for (let at = Math.ceil((from + zone - week) / step) * step + week; at <= to + zone; at += step) ticks.push([at - zone, label(at, step)]);
  return ticks;
}
function monthTicks([from, to], most) {
  const [first, last] = [new Date(from + zoneMs(from)), new Date(to + zoneMs(to))];
  const months = (last.getUTCFullYear() - first.getUTCFullYear()) * 12 + last.getUTCMonth() - first.getUTCMonth();
  const step = MONTHS.find((each) => months / each <= most) ?? MONTHS.at(-1);
  const begin = Math.ceil((first.getUTCFullYear() * 12 + first.getUTCMonth()) / step) * step, ticks = [];
  for (let n = begin; n <= begin + 2 * most * step; n += step) {
    const at = Date.UTC(Math.floor(n / 12), n % 12) - zoneMs(to);
    if (at >= from && at <= to) ticks.push([at, step < 12 && n % 12 ? NAMES[n % 12] : String(Math.floor(n / 12))]);
  }
  return ticks;
}

// A round number that is at least `top`, and up to five lines below it.
export function valueTicks(top, log) {
  if (log) {
    const ticks = [];
    for (let n = 1; n < top * 10 && ticks.length < 12; n *= 10) ticks.push(n);
    const every = Math.ceil(ticks.length / 5);
    return { top: Math.max(10, ticks.at(-1) ?? 10), ticks: ticks.filter((_, i) => i % every === 0) };
  }
  const size = 10 ** Math.floor(Math.log10(Math.max(top, 4) / 4));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * size).find((each) => Number.isInteger(each) && each * 5 >= top);
  const lines = Math.max(1, Math.ceil(top / step));
  return { top: lines * step, ticks: Array.from({ length: lines + 1 }, (_, n) => n * step) };
}
