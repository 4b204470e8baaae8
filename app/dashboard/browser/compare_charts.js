// Small charts of runs side by side: values above, their ratio to the baseline below. One cursor and one zoom for all of them.
import { asked, put } from "./address.js";
import { node, svg } from "./dom.js";
import { duration, integer, number, tick } from "./format.js";
import { extent, ticks } from "./ticks.js";
import { unpackArray } from "./traces.js";

const WIDTH = 400;
const LEFT = 50;
const RIGHT = 8;
const UPPER = { top: 8, bottom: 132 };
const LOWER = { top: 160, bottom: 212 };
const HEIGHT = 230;
const COARSE = globalThis.matchMedia?.("(pointer: coarse)").matches; // a finger scrolls the page

// Name of the zoom in the address: that of steps is every page's.
const zoomName = (axis) => (axis.key === "step" ? "steps" : "compare_range");

export function drawCharts(place, { charts, looks, axis }, view) {
  view.charts = { place, looks, axis, items: charts.map(read) };
  view.zoom = zoomAsked(axis);
  view.reset = node("button", { class: "lp-reset", type: "button", text: "reset zoom", onclick: () => zoom(view, null) });
  view.cursorWords = node("span", { class: "lp-cursor" });
  view.grid = node("div", { class: "lp-small-charts" });
  place.replaceChildren(
    node("h2", { class: "lp-title" }, "Curves", node("span", { class: "lp-hint", text: `over ${axis.words}; below each, the ratio to the baseline block by block; shaded is what noise and margin explain` })),
    node("div", { class: "lp-tools" }, node("span", { class: "lp-legend" }, ...looks.map((look, at) => node("span", { class: "lp-key" }, sample(look), at ? look.name : `${look.name} (baseline)`))), view.cursorWords, view.reset),
    view.grid);
  redraw(view);
}

// Pointer and keys, once for all charts; returns what ends it.
export function watchCharts(view) {
  const up = () => release(view);
  document.addEventListener("pointerup", up);
  return () => document.removeEventListener("pointerup", up);
}

// What the values are in, in words; "" where there is nothing to say.
export const unitOf = ({ unit, log }) => [unit, log ? "logarithmic" : ""].filter(Boolean).join(", ");

// A line as the charts draw it.
export const sample = ({ color, dash }) =>
  svg("svg", { viewBox: "0 0 24 6", class: "lp-cmp-sample", "aria-hidden": "true" }, svg("path", { d: "M0 3H24", stroke: color, "stroke-dasharray": dash }));

function read(chart) {
  const lines = chart.lines.map((line) => ({ run: line.run, x: unpackArray(line.x), y: unpackArray(line.y) }));
  return { ...chart, lines };
}

function zoomAsked(axis) {
  const [from, to] = (asked(zoomName(axis)) ?? "").split(":").map(Number);
  return Number.isFinite(from) && Number.isFinite(to) && to > from ? [from, to] : null;
}

function zoom(view, range) {
  view.zoom = range;
  put({ [zoomName(view.charts.axis)]: range?.map((value) => Math.round(value)).join(":") ?? null });
  redraw(view);
}

function redraw(view) {
  const { items } = view.charts;
  view.x = view.zoom ?? extent(items.flatMap((chart) => chart.lines.flatMap((line) => Array.from(line.x))));
  view.reset.hidden = !view.zoom;
  view.drawn = items.map((chart) => figure(chart, view));
  view.grid.replaceChildren(...view.drawn.map((each) => each.element));
  point(view, null);
}

function figure(chart, view) {
  const values = chart.lines.map(() => node("b"));
  const { looks } = view.charts;
  const head = node("figcaption", {}, node("h3", {}, chart.title, node("span", { class: "lp-unit", text: unitOf(chart) })),
    node("span", { class: "lp-values" }, ...chart.lines.map((line, at) => node("span", { class: "lp-readout", title: looks[line.run].name }, sample(looks[line.run]), values[at]))));
  if (!chart.lines.length) return { element: node("figure", {}, head, node("p", { class: "lp-hint", text: chart.missing })), chart, values };
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": chart.alt, tabindex: "0" });
  const cursor = svg("path", { class: "lp-chart-cursor" });
  const chosen = svg("path", { class: "lp-chart-chosen" });
  picture.append(...upper(chart, view), ...lower(chart, view), ...across(view), cursor, chosen);
  picture.addEventListener("pointermove", (event) => move(view, picture, event));
  picture.addEventListener("pointerleave", () => { if (!view.from) point(view, null); });
  picture.addEventListener("pointerdown", (event) => press(view, picture, event));
  picture.addEventListener("dblclick", () => zoom(view, null));
  picture.addEventListener("keydown", (event) => key(view, event));
  return { element: node("figure", {}, head, picture), chart, values, cursor, chosen };
}

function upper(chart, view) {
  const visible = chart.lines.flatMap((line) => within(line, view.x));
  const scale = scaleOf(ends(visible, chart.log), chart.log, UPPER);
  return [...ticksUp(scale, 5), ...chart.lines.map((line) => path(line.x, line.y, scale, view, view.charts.looks[line.run]))];
}

function lower(chart, view) {
  const lines = chart.ratio.lines.filter((line) => line.blocks.length);
  if (!lines.length) return [svg("text", { x: LEFT, y: LOWER.top + 22 }, chart.ratio.missing)];
  const seen = lines.flatMap((line) => line.blocks.filter(([x]) => x >= view.x[0] && x <= view.x[1]));
  const scale = scaleOf(ends([1, ...(seen.length ? seen : lines.flatMap((line) => line.blocks)).flatMap(([, ...values]) => values)], chart.ratio.log), chart.ratio.log, LOWER);
  const words = chart.ratio.of === "distances" ? "÷ baseline, distances from the ideal value" : "÷ baseline";
  return [
    ...ticksUp(scale, 3),
    ...lines.map((line) => svg("path", { class: "lp-chart-band", d: band(line.blocks, scale, view) })),
    svg("path", { class: "lp-chart-one", d: `M${LEFT} ${scale.up(1)}H${WIDTH - RIGHT}` }),
    ...lines.map((line) => path(line.blocks.map(([x]) => x), line.blocks.map(([, value]) => value), scale, view, view.charts.looks[line.run])),
    svg("text", { x: LEFT, y: LOWER.top - 8 }, words),
  ];
}

const ends = (values, log) => extent(log ? values.map(Math.log10) : values);

const acrossOf = (view, value) => LEFT + ((value - view.x[0]) / (view.x[1] - view.x[0] || 1)) * (WIDTH - LEFT - RIGHT);

function across(view) {
  const { axis } = view.charts;
  const [size, unit] = axis.key === "time" ? timeUnit(view.x[1] - view.x[0]) : [1, ""];
  return ticks(view.x[0] / size, view.x[1] / size, 5).map((value) =>
    svg("text", { x: acrossOf(view, value * size).toFixed(1), y: HEIGHT - 6, "text-anchor": "middle" }, unit ? `${value} ${unit}` : position(axis, value)));
}

/** @type {[number, string][]} */
const TIMES = [[86400, "d"], [3600, "h"], [60, "min"]];

/** @type {(span: number) => [number, string]} */
const timeUnit = (span) => TIMES.find(([size]) => span >= 2 * size) ?? [1, "s"];

const position = (axis, value) => (axis.key === "time" ? duration(value) : axis.key === "tokens" ? short(value) : integer(value));

/** @type {[number, string][]} */
const SIZES = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

function short(value) {
  for (const [size, name] of SIZES) if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))} ${name}`;
  return integer(value);
}

function scaleOf([low, high], log, { top, bottom }) {
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  const [from, to] = [low - room, high + room];
  const up = (value) => {
    const at = log ? Math.log10(value) : value;
    return Number((bottom - Math.min(Math.max((at - from) / (to - from), -0.02), 1.02) * (bottom - top)).toFixed(1));
  };
  return { from, to, log, up };
}

function ticksUp(scale, count) {
  const least = scale.log && scale.to - scale.from > 1.5 ? 1 : 0; // decades
  const values = ticks(scale.from, scale.to, count, least).map((value) => (scale.log ? 10 ** value : value));
  return values.flatMap((value) => [
    svg("path", { class: "lp-chart-grid", d: `M${LEFT} ${scale.up(value)}H${WIDTH - RIGHT}` }),
    svg("text", { x: LEFT - 5, y: scale.up(value) + 3.5, "text-anchor": "end" }, tick(value)),
  ]);
}

function path(x, y, scale, view, look) {
  const words = [];
  let pen = "M";
  for (let at = 0; at < x.length; at += 1) {
    const outside = x[at] < view.x[0] || x[at] > view.x[1];
    if (!Number.isFinite(y[at]) || outside || (scale.log && y[at] <= 0)) { pen = "M"; continue; }
    words.push(`${pen}${acrossOf(view, x[at]).toFixed(1)} ${scale.up(y[at])}`);
    pen = "L";
  }
  return svg("path", { class: "lp-chart-line", d: words.join(""), stroke: look.color, "stroke-dasharray": look.dash });
}

function band(blocks, scale, view) {
  const shown = blocks.filter(([x]) => x >= view.x[0] && x <= view.x[1]);
  if (shown.length < 2) return "";
  const corner = (x, value) => `${acrossOf(view, x).toFixed(1)} ${scale.up(value)}`;
  return `M${[...shown.map(([x, , low]) => corner(x, low)), ...shown.toReversed().map(([x, , , high]) => corner(x, high))].join("L")}Z`;
}

function within({ x, y }, [from, to]) {
  const values = [];
  for (let at = 0; at < x.length; at += 1) if (x[at] >= from && x[at] <= to) values.push(y[at]);
  return values;
}

// The place on the axis under the pointer; null beside the plot.
function placeOf(view, picture, event) {
  const box = picture.getBoundingClientRect();
  const share = (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
  return share < -0.02 || share > 1.02 ? null : view.x[0] + Math.min(Math.max(share, 0), 1) * (view.x[1] - view.x[0]);
}

function move(view, picture, event) {
  const at = placeOf(view, picture, event);
  point(view, at);
  if (view.from === undefined || view.from === null || at === null) return;
  view.to = at;
  const [left, right] = [view.from, at].sort((a, b) => a - b).map((value) => acrossOf(view, value));
  for (const { chosen } of view.drawn) chosen?.setAttribute("d", `M${left} ${UPPER.top}H${right}V${LOWER.bottom}H${left}Z`);
}

function press(view, picture, event) {
  if (COARSE || event.button) return;
  view.from = placeOf(view, picture, event);
  view.to = null;
}

function release(view) {
  const { from, to } = view;
  [view.from, view.to] = [null, null];
  for (const { chosen } of view.drawn ?? []) chosen?.setAttribute("d", "");
  if (from === null || from === undefined || to === null || to === undefined) return;
  if (Math.abs(to - from) > 0.01 * (view.x[1] - view.x[0])) zoom(view, [from, to].sort((a, b) => a - b));
}

function key(view, event) {
  const step = Math.max(view.charts.axis.cell, (view.x[1] - view.x[0]) / 200);
  const moves = { ArrowRight: (view.at ?? view.x[0]) + step, ArrowLeft: (view.at ?? view.x[1]) - step, Home: view.x[0], End: view.x[1] };
  if (event.key === "Escape") point(view, null);
  else if (event.key in moves) point(view, Math.min(Math.max(moves[event.key], view.x[0]), view.x[1]));
  else return;
  event.preventDefault();
}

// The values under the cursor in every chart; each line's last ones while there is none.
function point(view, at) {
  view.at = at;
  const { axis } = view.charts;
  for (const { chart, values, cursor } of view.drawn) {
    chart.lines.forEach((line, place) => { values[place].textContent = number(at === null ? lastOf(line) : nearest(line, at, axis.cell)); });
    cursor?.setAttribute("d", at === null ? "" : `M${acrossOf(view, at).toFixed(1)} ${UPPER.top}V${LOWER.bottom}`);
  }
  const range = view.zoom ? view.zoom.map((value) => position(axis, value)).join(" – ") : "";
  view.cursorWords.textContent = at === null ? range : `${axis.words} ${position(axis, at)}`;
}

function lastOf({ y }) {
  for (let at = y.length - 1; at >= 0; at -= 1) if (Number.isFinite(y[at])) return y[at];
  return null;
}

function nearest({ x, y }, at, cell) {
  let best = -1;
  for (let place = 0; place < x.length; place += 1) {
    if (Number.isFinite(y[place]) && (best < 0 || Math.abs(x[place] - at) < Math.abs(x[best] - at))) best = place;
  }
  return best < 0 || Math.abs(x[best] - at) > 2 * cell + (x.length > 700 ? 2 * cell : 0) ? null : y[best];
}
