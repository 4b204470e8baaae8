// Points with their errors, and what they are to be compared with: one small chart without a library.
import { node, svg } from "./dom.js";
import { tick } from "./format.js";
import { ticks } from "./ticks.js";

const HEIGHT = 220;
const ROOM = { left: 56, right: 12, top: 10, bottom: 34 };
const TICKS = 4;

export function update(root, view) {
  if (view.version === view.data.version) return;
  view.version = view.data.version;
  const { data } = view;
  view.said = node("p", { class: "lp-lane-said", "aria-live": "polite" });
  view.plot = node("div", {
    class: "lp-points-plot", tabindex: "0", role: "group", "aria-label": alt(data),
    onpointermove: (event) => point(event, view), onpointerdown: (event) => point(event, view), onkeydown: (event) => step(event, view),
  });
  view.at = null;
  root.replaceChildren(node("section", { class: "lp", "aria-label": data.title },
    node("h2", { class: "lp-title" }, data.title, node("span", { class: "lp-hint", text: data.hint })),
    ...(data.points.length ? [view.plot, view.said] : [node("p", { class: "lp-text lp-hint", text: data.empty })])));
  view.sizes?.disconnect();
  if (!data.points.length) return;
  view.said.textContent = data.reference ? data.reference.words : "";
  view.sizes = new ResizeObserver(() => draw(view));
  view.sizes.observe(view.plot);
  draw(view);
}

export function close(_root, view) {
  view.sizes?.disconnect();
}

const alt = ({ title, points, reference }) => `${title}: ${points.length} points; ${reference ? `${reference.words}; ` : ""}arrow keys go from point to point`;

function draw(view) {
  const { data } = view;
  const width = view.plot.clientWidth;
  if (!width) return;
  const scales = scalesOf(data, width);
  Object.assign(view, scales);
  view.plot.replaceChildren(svg("svg", { width, height: HEIGHT, "aria-hidden": "true" },
    ...axes(data, scales, width), ...reference(data, scales, width), ...data.points.map((each) => mark(each, scales)),
    svg("circle", { class: "lp-points-chosen", r: 5.5, cx: -20, cy: -20 })));
}

function scalesOf({ points, reference, log, split }, width) {
  const places = points.map(({ x }) => x);
  const left = Math.min(...places, split ?? Infinity) - 0.5;
  const right = Math.max(...places, split ?? -Infinity) + 0.5;
  const compared = [...points, ...(reference ? [reference] : [])];
  const ends = compared.flatMap(({ y, error }) => (log ? [y] : [y - 2 * (error ?? 0), y + 2 * (error ?? 0)]));
  const scale = log ? Math.log10 : (value) => value;
  const low = log ? scale(Math.min(...ends)) : Math.min(0, ...ends);
  const high = scale(Math.max(...ends));
  const span = high - low || Math.abs(high) || 1;
  const bottom = log ? low - 0.08 * span : low;
  const top = high + 0.08 * span;
  const inner = HEIGHT - ROOM.top - ROOM.bottom;
  return {
    x: (value) => ROOM.left + ((value - left) / (right - left)) * (width - ROOM.left - ROOM.right),
    y: (value) => ROOM.top + ((top - Math.max(scale(value), bottom)) / (top - bottom)) * inner,
    ticks: log ? logTicks(bottom, top) : ticks(bottom, top, TICKS),
    columns: columnsOf(places, width),
  };
}

// On a logarithmic axis, of 1, 2 and 5 as many as fit.
function logTicks(low, high) {
  const digits = high - low < 1 ? [1, 2, 5] : [1];
  const powers = Array.from({ length: Math.ceil(high) - Math.floor(low) + 1 }, (_, at) => Math.floor(low) + at);
  const all = powers.flatMap((power) => digits.map((digit) => digit * 10 ** power)).filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
  const every = Math.ceil(all.length / (TICKS + 2));
  const found = all.filter((_, at) => at % every === 0);
  return found.length ? found : [10 ** ((low + high) / 2)];
}

function columnsOf(places, width) {
  const least = Math.min(...places);
  const span = Math.max(...places) - least;
  const rough = Math.max(1, span / Math.max(2, Math.floor(width / 90)));
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = Math.max(1, [1, 2, 4, 5, 8, 10].map((each) => each * power).find((each) => each >= rough));
  const first = Math.ceil(least / size);
  return Array.from({ length: Math.floor((least + span) / size) - first + 1 }, (_, at) => (first + at) * size);
}

function axes(data, { x, y, ticks, columns }, width) {
  const bottom = HEIGHT - ROOM.bottom;
  return [
    ...ticks.map((value) => svg("path", { class: "lp-lane-line", d: `M${ROOM.left} ${y(value)}H${width - ROOM.right}` })),
    ...ticks.map((value) => label(tick(value), ROOM.left - 8, y(value) + 4, "end")),
    ...columns.map((value) => label(String(value), x(value), bottom + 15, "middle")),
    label(data.x, (ROOM.left + width - ROOM.right) / 2, HEIGHT - 4, "middle"),
    ...(data.split === null ? [] : [svg("path", { class: "lp-points-split", d: `M${x(data.split)} ${ROOM.top}V${bottom}` })]),
  ];
}

function label(words, x, y, anchor) {
  const element = svg("text", { class: "lp-points-label", x, y, "text-anchor": anchor });
  element.textContent = words;
  return element;
}

function reference({ reference: each }, { y }, width) {
  if (!each) return [];
  const reach = 2 * (each.error ?? 0);
  const [top, bottom] = [y(each.y + reach), y(each.y - reach)];
  return [
    svg("rect", { class: "lp-points-band", x: ROOM.left, y: top, width: width - ROOM.left - ROOM.right, height: Math.max(1, bottom - top) }),
    svg("path", { class: "lp-points-reference", d: `M${ROOM.left} ${y(each.y)}H${width - ROOM.right}` }),
  ];
}

function mark({ x: place, y: value, error }, { x, y }) {
  const [cx, cy] = [x(place), y(value)];
  const bar = error ? [svg("path", { class: "lp-points-error", d: `M${cx} ${y(value - 2 * error)}V${y(value + 2 * error)}` })] : [];
  return svg("g", {}, ...bar, svg("circle", { class: "lp-points-mark", cx, cy, r: 2.8 }));
}

function point(event, view) {
  if (!view.x) return;
  const place = event.clientX - view.plot.getBoundingClientRect().left;
  const distances = view.data.points.map((each) => Math.abs(view.x(each.x) - place));
  choose(distances.indexOf(Math.min(...distances)), view);
}

function step(event, view) {
  const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
  if (!(event.key in moves) || !view.x) return;
  event.preventDefault();
  const last = view.data.points.length - 1;
  choose(Math.max(0, Math.min(last, (view.at ?? (moves[event.key] < 0 ? last + 1 : -1)) + moves[event.key])), view);
}

function choose(at, view) {
  view.at = at;
  const { x, y, words } = view.data.points[at];
  const ring = view.plot.querySelector(".lp-points-chosen");
  ring.setAttribute("cx", view.x(x));
  ring.setAttribute("cy", view.y(y));
  view.said.textContent = words;
}
