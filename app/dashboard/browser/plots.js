// Small charts that share an x axis: one cursor, one zoom, the same keys, CSV and PNG, whatever they draw. A panel declares its charts
// as data (`group`) and places `tools` and the figures; everything the reader does with them is here.
//
//   group:  name, title (of files), axis, charts, legend, steps, zoom, zoomed, stops, least, words, csv, png
//   chart:  title, unit, help, alt, missing, height, panes, lines, spans of its own (family, whole, ticks, stops), say, head, className
//   pane:   top, bottom, log, zero, floor, count, also, under(x, y, frame), over(x, y, frame)
//   line:   name, x, y, pane, className, color, dash
import { asked, listen, put } from "./address.js";
import { hear, leave, point as pointAll } from "./cursor.js";
import { csvCell, download, node, svg } from "./dom.js";
import { integer, number } from "./format.js";
import { offer, plotKeys, withdraw } from "./keys.js";
import { savePicture } from "./picture.js";
import { clipped, grid, label, linePath, nearestIndex, scaleOf, upright } from "./plot.js";
import { extent, ticks } from "./ticks.js";

const HEIGHT = 190;
const LEFT = 54;
const RIGHT = 8;
const BELOW = 22; // for the words of the x axis
const TOP = 8;
const TICKS = 4;
const LETTER = 3; // half the width of one, about
const DRAG_PIXELS = 5;
const JUMPS = 200; // an arrow key goes to the next point, or so far
const COARSE = globalThis.matchMedia?.("(pointer: coarse)").matches; // a finger scrolls the page

// A zoom in the address: that of `steps` is shared by all charts of a page.
export const zoomIn = (name) => ({
  asked: () => {
    const found = /^(-?\d+):(-?\d+)$/.exec(asked(name) ?? "");
    return found && Number(found[2]) > Number(found[1]) ? [Number(found[1]), Number(found[2])] : null;
  },
  put: (range) => put({ [name]: range?.map((value) => Math.round(value)).join(":") ?? null }),
});

const STEPS = { words: "step", column: "step", position: integer };
export const stepAxis = { axis: STEPS, steps: { of: (at) => Math.round(at), at: (step) => step }, zoom: zoomIn("steps") };

// The charts of `group`, once more whenever its data changed; the reader's cursor and zoom stay. → { tools, figures: [{ element, chart }], said }
export function plots(view, group) {
  const kit = view.kit ?? opened(view);
  const focused = kit.figures.findIndex(({ picture }) => picture && picture === document.activeElement);
  kit.group = group;
  kit.figures = group.charts.map((chart) => figure(kit, chart));
  kit.cursor = node("span", { class: "lp-cursor" });
  kit.spoken = node("span", { class: "lp-spoken", role: "status", "aria-live": "polite" });
  kit.said = node("p", { class: "lp-plot-said", "aria-live": "polite" });
  kit.reset = node("button", { class: "lp-reset", type: "button", hidden: true, text: "reset zoom", onclick: () => zoomTo(kit, null) });
  kit.tools = node("span", { class: "lp-plot-tools" }, kit.cursor, kit.reset, ...saving(kit), kit.spoken);
  rezoom(kit);
  kit.sizes.disconnect();
  for (const each of kit.figures) if (each.picture) kit.sizes.observe(each.room);
  if (focused >= 0) queueMicrotask(() => kit.figures[focused]?.picture?.focus());
  return kit;
}

export function closePlots(_root, view) {
  const { kit } = view;
  if (!kit) return;
  kit.sizes.disconnect();
  kit.deaf();
  document.removeEventListener("pointerup", kit.release);
  document.removeEventListener("pointercancel", kit.release);
  leave(kit);
  withdraw(kit);
}

function opened(view) {
  const kit = { figures: [], at: null, family: undefined, up: 0.5, zoom: null, from: null, to: null };
  view.kit = kit;
  kit.sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) { const found = kit.figures.find(({ room }) => room === target); if (found) drawn(kit, found); }
    point(kit, kit.at);
  });
  kit.deaf = listen(() => { const before = String(kit.zoom); rezoom(kit); if (String(kit.zoom) !== before) redraw(kit); });
  kit.release = () => release(kit);
  document.addEventListener("pointerup", kit.release);
  document.addEventListener("pointercancel", kit.release);
  hear(kit, (step) => { const { steps } = kit.group; if (steps) point(kit, step === null ? null : steps.at(step)); });
  kit.keys = plotKeys({
    zoom: (factor) => zoomBy(kit, factor), all: () => zoomTo(kit, null), csv: () => saveCsv(kit), png: () => savePng(kit),
  });
  offer(kit, "Charts", kit.keys, true); // until one of them is touched
  return kit;
}

function saving(kit) {
  const save = (text, help, run) => node("button", { class: "lp-tool", type: "button", text, title: help, onclick: run });
  if (kit.group.saved) return [];
  return [save("CSV", "the values that are shown, with all digits (e)", () => saveCsv(kit)), save("PNG", "the charts as one picture (p)", () => savePng(kit))];
}

// --- Drawing ---

function figure(kit, chart) {
  const lines = (chart.lines ?? []).filter(({ quiet }) => !quiet);
  const values = lines.map(() => node("b"));
  const head = chart.head ?? node("figcaption", {}, node("h3", { title: chart.help }, chart.title, chart.unit ? node("span", { class: "lp-unit", text: chart.unit }) : null, chart.note ? node("span", { class: "lp-unit", text: ` · ${chart.note}` }) : null),
    node("span", { class: "lp-values" }, ...lines.map((line, at) => node("span", { class: "lp-readout", title: line.name }, line.color ? sample(line) : lines.length > 1 ? node("span", { class: "lp-role", text: line.name }) : null, values[at]))));
  const shape = { class: `lp-small ${chart.className ?? ""}` };
  if (chart.missing) return { element: node("figure", shape, head, node("p", { class: "lp-hint", text: chart.missing })), chart, values, lines };
  const picture = svg("svg", { class: `lp-small-plot ${chart.picture ?? ""}`, role: "img", "aria-label": chart.alt, tabindex: "0", height: chart.height ?? HEIGHT });
  const room = node("div", { class: "lp-small-room" }, picture);
  const made = { element: node("figure", shape, head, room), chart, values, lines, picture, room };
  attend(kit, made);
  return made;
}

// A line as the charts draw it, for legends.
export const sample = ({ color, dash }) =>
  svg("svg", { viewBox: "0 0 24 6", class: "lp-sample", "aria-hidden": "true" }, svg("path", { d: "M0 3H24", stroke: color, "stroke-dasharray": dash ?? "" }));

export function redraw(kit) {
  for (const each of kit.figures) if (each.picture) drawn(kit, each);
  point(kit, kit.at);
}

function drawn(kit, made) {
  const width = Math.floor(made.room.clientWidth);
  if (!width) return;
  made.picture.setAttribute("width", String(width));
  made.x = fill(kit, made.chart, made.picture, width);
  made.line = svg("path", { class: "lp-plot-cursor" });
  made.brush = svg("path", { class: "lp-plot-brush" });
  made.picture.append(made.line, made.brush);
  kit.reset.hidden = !(kit.group.zoomed ?? kit.zoom);
}

// Draws a chart into an SVG element of a width; → its x axis.
function fill(kit, chart, picture, width) {
  const { group } = kit;
  const height = chart.height ?? HEIGHT;
  const left = chart.left ?? LEFT;
  const right = Math.min(width - (chart.right ?? RIGHT), left + (chart.widest ?? Infinity));
  const x = scaleOf(rangeOf(kit, chart), [left, right]);
  const panes = (chart.panes ?? [{}]).map((pane, at) => ({ top: TOP, bottom: height - (chart.below ?? BELOW), left, right, ...pane, at }));
  const across = (chart.ticks ?? group.axis.ticks ?? stepTicks)([x.low, x.high], Math.max(2, Math.floor((right - left) / 80)));
  picture.replaceChildren(...panes.flatMap((pane) => parts(chart, pane, x)),
    ...across.filter(([at]) => at >= x.low && at <= x.high).map(([at, text]) => label(text, x(at).toFixed(1), height - (chart.below ?? BELOW) + 15, anchorOf(x(at), text, width))));
  return x;
}

const stepTicks = ([low, high], count) => ticks(low, high, count, 1).map((value) => [value, integer(value)]);

// Words at the ends of the axis stay within the picture.
const anchorOf = (at, text, width) => (at + LETTER * text.length > width ? "end" : at - LETTER * text.length < 0 ? "start" : "middle");

function parts(chart, pane, x) {
  const lines = (chart.lines ?? []).filter((line) => (line.pane ?? 0) === pane.at && !line.quiet);
  const values = lines.flatMap((line) => within(line, x));
  const y = upright([...(pane.also?.([x.low, x.high]) ?? []), ...values], pane);
  const drawing = lines.map((line) => svg("path", { class: `lp-plot-line ${line.className ?? ""}`, d: linePath(line, x, y), ...(line.color ? { stroke: line.color, "stroke-dasharray": line.dash ?? "" } : {}) }));
  return [...(pane.bare ? [] : grid(y, pane.left, pane.right, pane.count ?? TICKS)),
    clipped(pane, ...(pane.under?.(x, y, pane) ?? []), ...drawing), ...(pane.over?.(x, y, pane) ?? [])];
}

function within({ x, y }, { low, high }) {
  const inside = [];
  for (let at = 0; at < x.length; at += 1) if (x[at] >= low && x[at] <= high) inside.push(y[at]);
  return inside.length ? inside : Array.from(y);
}

// --- What is in view ---

function rezoom(kit) {
  if (kit.group.zoom) kit.zoom = kit.group.zoom.asked();
}

function wholeOf(kit, chart) {
  const own = chart?.whole ?? kit.group.whole;
  if (own) return own;
  const [low, high] = extent(kit.group.charts.flatMap(({ lines = [] }) => lines.flatMap(({ x }) => Array.from(x))));
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

/** @returns {[number, number]} */
function rangeOf(kit, chart) {
  const whole = wholeOf(kit, chart);
  if (!kit.zoom) return whole;
  const [from, to] = [Math.max(kit.zoom[0], whole[0]), Math.min(kit.zoom[1], whole[1])];
  return to > from ? [from, to] : whole;
}

function zoomTo(kit, range) {
  const whole = wholeOf(kit);
  const wanted = range && (range[0] > whole[0] || range[1] < whole[1]) ? range : null;
  kit.zoom = wanted;
  kit.group.zoom?.put(wanted);
  redraw(kit);
}

function zoomBy(kit, factor) {
  const [low, high] = rangeOf(kit);
  const whole = wholeOf(kit);
  const middle = kit.at ?? (low + high) / 2;
  const half = Math.max((kit.group.least ?? 2) / 2, ((high - low) * factor) / 2);
  zoomTo(kit, [Math.max(whole[0], middle - half), Math.min(whole[1], middle + half)]);
}

// --- Reading ---

function stopsOf(kit, chart) {
  const own = chart?.stops ?? kit.group.stops;
  if (own) return own;
  kit.group.known ??= [...new Set(kit.group.charts.flatMap(({ lines = [] }) => lines.flatMap(({ x }) => Array.from(x))))].sort((a, b) => a - b);
  return kit.group.known;
}

function attend(kit, made) {
  const { picture, chart } = made;
  const take = () => offer(kit, "Charts", kit.keys);
  picture.addEventListener("focus", take);
  picture.addEventListener("pointerenter", take);
  picture.addEventListener("pointermove", (event) => move(kit, made, event));
  picture.addEventListener("pointerleave", () => { if (kit.from === null) look(kit, chart, null); });
  picture.addEventListener("pointerdown", (event) => press(kit, made, event));
  picture.addEventListener("dblclick", () => zoomTo(kit, null));
  picture.addEventListener("keydown", (event) => key(kit, made, event));
}

// The place on the axis under the pointer, and the nearest of those that can be read there.
function placeOf(made, event) {
  const { x } = made;
  const pixel = event.clientX - made.picture.getBoundingClientRect().left;
  const share = Math.min(Math.max((pixel - x.from) / (x.to - x.from), 0), 1);
  return x.low + share * (x.high - x.low);
}

function move(kit, made, event) {
  if (!made.x) return;
  const box = made.picture.getBoundingClientRect();
  const below = made.chart.below ?? BELOW;
  kit.up = Math.min(Math.max((box.bottom - below - event.clientY) / (box.height - below - TOP), 0), 0.9999);
  const at = placeOf(made, event);
  const stops = stopsOf(kit, made.chart);
  look(kit, made.chart, stops[nearestIndex(stops, at)] ?? null);
  if (kit.from === null) return;
  kit.to = at;
  brush(kit);
}

function brush(kit) {
  const [from, to] = [kit.from, kit.to].sort((a, b) => a - b);
  for (const { brush: shape, x, chart } of kit.figures) {
    shape?.setAttribute("d", `M${x(from)} ${TOP}H${x(to)}V${(chart.height ?? HEIGHT) - (chart.below ?? BELOW)}H${x(from)}Z`);
  }
}

function press(kit, made, event) {
  if (event.pointerType === "touch" || COARSE || event.button || !made.x || kit.group.fixed) return move(kit, made, event);
  kit.from = placeOf(made, event);
  kit.to = null;
  kit.least = (DRAG_PIXELS / (made.x.to - made.x.from)) * (made.x.high - made.x.low);
}

function release(kit) {
  const { from, to } = kit;
  [kit.from, kit.to] = [null, null];
  for (const { brush: shape } of kit.figures) shape?.setAttribute("d", "");
  if (from === null || to === null || Math.abs(to - from) <= kit.least) return;
  kit.at = null; // what was under the pointer is elsewhere now
  zoomTo(kit, [from, to].sort((a, b) => a - b));
}

function key(kit, made, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const [low, high] = rangeOf(kit, made.chart);
  const stops = stopsOf(kit, made.chart).filter((each) => each >= low && each <= high);
  const way = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (event.key === "Escape") look(kit, made.chart, null);
  else if (made.chart.rows && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
    kit.up = Math.min(Math.max(kit.up + (event.key === "ArrowUp" ? 1 : -1) / made.chart.rows, 0), 0.9999);
    look(kit, made.chart, kit.at ?? stops.at(-1));
  } else if (way && stops.length) look(kit, made.chart, following(stops, kit.family === made.chart.family ? kit.at : null, way * (event.shiftKey ? 10 : 1), (high - low) / JUMPS));
  else return;
  event.preventDefault();
  kit.spoken.textContent = [kit.cursor.textContent, ...kit.figures.flatMap(({ chart, lines, values }) => lines.map(({ name }, at) => `${chart.title ?? ""} ${name ?? ""} ${values[at].textContent}`))].join(", ");
}

// The stop `way` places from `at`, at least `least` away; from nowhere, the last one, or going right the first.
export function following(stops, at, way, least) {
  const last = stops.length - 1;
  if (at === null) return stops[way > 0 && Number.isFinite(way) ? 0 : way > 0 ? last : Number.isFinite(way) ? last : 0];
  let index = Math.max(0, Math.min(last, nearestIndex(stops, at) + way));
  const step = Math.sign(way);
  while (index > 0 && index < last && Math.abs(stops[index] - at) < least * Math.min(Math.abs(way), 10)) index += step;
  return stops[index];
}

// The reader's own cursor: the page's other charts follow.
function look(kit, chart, at) {
  kit.family = chart.family;
  point(kit, at, chart);
  const { steps } = kit.group;
  if (steps) pointAll(kit, at === null ? null : steps.of(at));
}

// The values under the cursor in every chart; each line's last ones while there is none.
export function point(kit, at, chart = kit.figures.find((each) => each.chart.family === kit.family)?.chart) {
  kit.at = at;
  const { group } = kit;
  for (const made of kit.figures) {
    const here = at !== null && made.chart.family === kit.family;
    made.lines.forEach((line, place) => { made.values[place].textContent = number(here ? valueAt(line, at, group.reach) : lastOf(line)); });
    if (!made.x) continue;
    const pixel = here && at >= made.x.low && at <= made.x.high ? made.x(at).toFixed(1) : null;
    made.line?.setAttribute("d", pixel === null ? "" : `M${pixel} ${TOP}V${(made.chart.height ?? HEIGHT) - (made.chart.below ?? BELOW)}`);
  }
  const [low, high] = kit.zoom ? rangeOf(kit) : [null, null];
  const range = low === null ? (group.view ?? "") : `${group.axis.position(low)} – ${group.axis.position(high)}`;
  kit.cursor.textContent = at === null ? range : (group.words?.(at, kit) ?? `${group.axis.words} ${group.axis.position(at)}`);
  kit.said.textContent = at === null ? (group.silent ?? "") : (chart?.say?.(at) ?? "");
}

function lastOf({ y }) {
  for (let at = y.length - 1; at >= 0; at -= 1) if (y[at] !== null && Number.isFinite(y[at])) return y[at];
  return null;
}

// The value at a place, or nearest to it within `reach`.
export function valueAt({ x, y }, at, reach = 0.5) {
  let best = -1;
  for (let place = 0; place < x.length; place += 1) {
    if (y[place] !== null && Number.isFinite(y[place]) && (best < 0 || Math.abs(x[place] - at) < Math.abs(x[best] - at))) best = place;
  }
  return best < 0 || Math.abs(x[best] - at) > reach ? null : y[best];
}

// --- Files ---

function saveCsv(kit) {
  const { group } = kit;
  if (group.saved) return group.saved();
  const rows = group.csv?.(rangeOf(kit)) ?? rowsOf(group, rangeOf(kit));
  download(`${rows.map((cells) => cells.map(csvCell).join(",")).join("\r\n")}\r\n`, "text/csv;charset=utf-8", `${group.name}.csv`);
}

// A column per line, a row per place that any of them has.
export function rowsOf({ axis, charts }, [low, high]) {
  const columns = charts.flatMap(({ title, lines = [] }) => lines.map((line) => ({ name: [title, line.name].filter(Boolean).join(", "), values: new Map(Array.from(line.x, (at, place) => [at, line.y[place]])) })));
  const places = [...new Set(columns.flatMap(({ values }) => [...values.keys()]))].filter((at) => at >= low && at <= high).sort((a, b) => a - b);
  return [[axis.column, ...columns.map(({ name }) => name)], ...places.map((at) => [at, ...columns.map(({ values }) => values.get(at))])];
}

export function savePng(kit) {
  const { group } = kit;
  const drawable = kit.figures.filter(({ picture }) => picture);
  const cells = drawable.map(({ chart }) => ({
    title: [chart.title, chart.unit].filter(Boolean).join(", "), height: chart.height ?? HEIGHT,
    draw: (picture, width) => fill(kit, chart, picture, width), className: `lp-small-plot ${chart.picture ?? ""}`,
  }));
  if (cells.length) savePicture({ name: `${group.name}.png`, title: group.title, legend: group.legend ?? [], cells, look: drawable[0].room, ...group.png });
}
