// What every small chart is drawn with: scales, grid, lines, bands. Pixels of an SVG of its own size.
import { svg } from "./dom.js";
import { tick } from "./format.js";
import { extent, logTicks, ticks } from "./ticks.js";

const OUTSIDE = 0.02; // of the height: how far a value beyond the axis is drawn outside of it
const ROOM = 0.08; // of the range, above and below

// From values to pixels; on a logarithmic axis `low` and `high` are decades.
export function scaleOf([low, high], [from, to], log = false) {
  const share = (value) => ((log ? Math.log10(value) : value) - low) / (high - low || 1);
  const at = (value) => from + share(value) * (to - from);
  return Object.assign(at, { low, high, from, to, log });
}

// The y axis around `values`. `zero`: it reaches down to 0; `floor`: what is below it is drawn at the edge; `exact`: no room around them.
export function upright(values, { top, bottom, log = false, zero = false, floor = null, exact = false }) {
  const known = values.filter((value) => value !== null && (!log || value > 0) && (floor === null || value >= floor));
  const [low, high] = extent(log ? known.map(Math.log10) : known);
  const least = zero && !log ? Math.min(0, low) : low;
  const room = exact ? 0 : (high - least || Math.abs(high) || 1) * ROOM;
  const scale = scaleOf([zero && !log ? least : low - room, high + room], [bottom, top], log);
  const reach = OUTSIDE * (bottom - top);
  const within = (value) => Math.min(Math.max(scale(value), top - reach), bottom + reach);
  return Object.assign((value) => Number(within(value).toFixed(1)), { ...scale });
}

export const tickValues = ({ low, high, log }, count) => (log ? logTicks : ticks)(low, high, count);

export function label(text, x, y, anchor = "start", name = undefined) {
  const element = svg("text", { x, y, "text-anchor": anchor, ...(name ? { class: name } : {}) });
  element.textContent = text;
  return element;
}

export const grid = (y, left, right, count) => tickValues(y, count).flatMap((value) => [
  svg("path", { class: "lp-plot-grid", d: `M${left} ${y(value)}H${right}` }), label(tick(value), left - 6, y(value) + 3.5, "end")]);

// The path of a line: broken where a value is missing; a point between two gaps is a dot. Points next to those in view count, so that
// a line leaves the picture where it really does.
export function linePath({ x: places, y: values }, x, y) {
  let drawn = "";
  let pen = false;
  const inside = (at) => places[at] >= x.low && places[at] <= x.high;
  const known = (at) => values[at] !== null && Number.isFinite(values[at]) && (!y.log || values[at] > 0);
  for (let at = 0; at < places.length; at += 1) {
    const seen = known(at) && (inside(at) || inside(at - 1) || inside(at + 1));
    if (seen) drawn += `${pen ? "L" : "M"}${x(places[at]).toFixed(1)} ${y(values[at])}${!pen && !known(at + 1) ? "h0" : ""}`;
    pen = seen;
  }
  return drawn;
}

// The band between two lines, from `blocks` as [x, low, high].
export function bandPath(blocks, x, y) {
  const shown = blocks.filter(([at]) => at >= x.low && at <= x.high);
  if (shown.length < 2) return "";
  const corner = (at, value) => `${x(at).toFixed(1)} ${y(value)}`;
  return `M${[...shown.map(([at, low]) => corner(at, low)), ...shown.toReversed().map(([at, , high]) => corner(at, high))].join("L")}Z`;
}

// A part of the picture in which nothing is drawn beyond its edges.
export const clipped = ({ left, right, top, bottom }, ...children) =>
  svg("svg", { x: left, y: top, width: Math.max(0, right - left), height: bottom - top, viewBox: `${left} ${top} ${Math.max(1, right - left)} ${bottom - top}`, preserveAspectRatio: "none" }, ...children);

// Index of the place nearest to `at` among `places`, of which some may be unknown; −1: there is none.
export function nearestIndex(places, at) {
  let best = -1;
  for (let index = 0; index < places.length; index += 1) {
    if (!Number.isNaN(places[index]) && (best < 0 || Math.abs(places[index] - at) < Math.abs(places[best] - at))) best = index;
  }
  return best;
}
