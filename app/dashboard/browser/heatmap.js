// How tokens spread over the log-ratio, step by step: one pixel of a canvas per column and bin, stretched to the frame; lines, axes
// and gaps lie over it. A drag chooses steps for the whole page.
import { put } from "./address.js";
import { older, pairs } from "./choice.js";
import { node, svg } from "./dom.js";
import { integer, number } from "./format.js";
import { unpackArray } from "./traces.js";

const DRAG_PIXELS = 5;
const SOFTER = 0.5; // power of a share that decides its shade: tails are what one looks for
const TICKS = [1, 2, 5];

export function update(root, view) {
  if (view.version === view.data.version) return;
  view.version = view.data.version;
  if (!view.frame) build(root, view);
  const { data } = view;
  view.columns = Math.floor((data.last - data.first) / data.width) + 1;
  view.tokens = unpackArray(data.tokens);
  view.totals = Array.from({ length: view.columns }, (_, column) => view.tokens.subarray(column * data.rows, (column + 1) * data.rows).reduce((sum, each) => sum + each, 0));
  view.hint.textContent = data.axis;
  paint(view);
  overlay(view);
  axes(view);
  view.tools.replaceChildren(pairs(view), legend(view), ...[older(data)].filter(Boolean), view.cursor,
    node("button", { class: "lp-reset", type: "button", hidden: data.whole, text: "reset zoom", onclick: () => put({ steps: null }) }));
  view.note.textContent = data.note;
  view.note.hidden = !data.note;
  view.frame.setAttribute("aria-label", `${data.alt} Arrow keys read it.`);
  show(view, null);
}

function build(root, view) {
  view.hint = node("span", { class: "lp-hint" });
  view.tools = node("div", { class: "lp-tools-line" });
  view.cursor = node("span", { class: "lp-cursor", "aria-live": "polite" });
  view.canvas = node("canvas", { class: "lp-heat-cells", "aria-hidden": "true" });
  view.over = node("div", { class: "lp-heat-over", "aria-hidden": "true" });
  view.cross = node("i", { class: "lp-heat-cross", hidden: true });
  view.brush = node("i", { class: "lp-heat-brush", hidden: true });
  view.frame = node("div", { class: "lp-heat-plot", tabindex: 0, role: "group", "aria-roledescription": "heatmap" }, view.canvas, view.over, view.cross, view.brush);
  view.down = node("div", { class: "lp-heat-y", "aria-hidden": "true" });
  view.along = node("div", { class: "lp-heat-x", "aria-hidden": "true" });
  view.note = node("p", { class: "lp-absent" });
  root.replaceChildren(node("section", { class: "lp lp-heat" }, node("h2", { class: "lp-title" }, "Log-ratio density", view.hint), view.tools,
    node("div", { class: "lp-heat-frame" }, view.down, view.frame, view.along), view.note));
  const { frame } = view;
  frame.addEventListener("pointermove", (event) => move(view, event));
  frame.addEventListener("pointerdown", (event) => press(view, event));
  frame.addEventListener("pointerup", (event) => release(view, event));
  frame.addEventListener("pointercancel", () => { view.start = null; view.brush.hidden = true; });
  frame.addEventListener("pointerleave", () => show(view, null));
  frame.addEventListener("dblclick", () => put({ steps: null }));
  frame.addEventListener("keydown", (event) => keys(view, event));
}

// --- Drawing ---

function paint(view) {
  const { rows, ramp } = view.data;
  const shades = ramp.map((color) => [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16)));
  const middle = (rows - 1) / 2; // holds all smaller |d|, often most of the tokens: it alone may be darker than the scale
  view.top = view.tokens.reduce((top, tokens, at) => (at % rows === middle ? top : Math.max(top, tokens / (view.totals[Math.floor(at / rows)] || 1))), 0) || 1;
  view.canvas.width = view.columns;
  view.canvas.height = rows;
  const context = view.canvas.getContext("2d");
  const image = context.createImageData(view.columns, rows);
  view.tokens.forEach((tokens, at) => {
    if (!tokens) return;
    const column = Math.floor(at / rows);
    const depth = Math.min(1, tokens / view.totals[column] / view.top) ** SOFTER;
    const place = 4 * ((rows - 1 - (at % rows)) * view.columns + column);
    image.data.set([...shades[Math.max(1, Math.round(depth * (shades.length - 1)))], 255], place);
  });
  context.putImageData(image, 0, 0);
}

function overlay(view) {
  const { lines, rows, gaps } = view.data;
  const share = (at, whole) => `${(100 * at) / whole}%`;
  const paths = lines.flatMap(({ name, at }) => [["lp-halo", at], [`lp-line-${name}`, at]].map(([kind, values]) => svg("path", { class: kind, d: path(values, rows) })));
  const picture = svg("svg", { viewBox: `0 0 ${view.columns} ${rows}`, preserveAspectRatio: "none" }, ...paths);
  const labels = lines.map(({ name, at }) => {
    const last = at.findLast((value) => value !== null);
    return last === undefined ? null : node("span", { class: `lp-heat-label${last > 0.9 * rows ? " lp-heat-under" : ""}`, style: `bottom:${share(last, rows)}`, text: name });
  });
  const holes = gaps.map((gap) => node("span", { class: "lp-heat-gap", style: `left:${share(gap.from, view.columns)};width:${share(gap.to - gap.from, view.columns)}` },
    gap.to - gap.from > view.columns / 4 ? node("em", { text: gap.why }) : null));
  view.over.replaceChildren(picture, ...holes, ...labels.filter(Boolean));
}

// Through the columns' middles; a gap is a break, and a column between two of them a dash.
function path(values, rows) {
  let text = "";
  values.forEach((value, column) => {
    if (value === null) return;
    const y = (rows - value).toFixed(2);
    const before = column > 0 && values[column - 1] !== null;
    const alone = !before && (column + 1 >= values.length || values[column + 1] === null);
    text += alone ? `M${column} ${y}H${column + 1}` : `${before ? "L" : "M"}${column + 0.5} ${y}`;
  });
  return text;
}

function axes(view) {
  const { ticks, rows, first, width } = view.data;
  view.down.replaceChildren(...ticks.map(({ at, text }) => node("span", { style: `bottom:${(100 * at) / rows}%`, text })));
  const span = view.columns * width;
  view.along.replaceChildren(...steps(first, span).map((step) => node("span", { style: `left:${(100 * (step - first + 0.5)) / span}%`, text: integer(step) })), node("em", { text: "step" }));
}

function steps(first, span) {
  const rough = span / 9;
  const power = 10 ** Math.floor(Math.log10(rough));
  const every = Math.max(1, Math.round((TICKS.find((each) => each * power >= rough) ?? 10) * power));
  const start = Math.ceil(first / every) * every;
  return Array.from({ length: Math.max(0, Math.ceil((first + span - start) / every)) }, (_, at) => start + at * every);
}

function legend(view) {
  const { ramp } = view.data;
  if (!view.totals.some(Boolean)) return "";
  return node("span", { class: "lp-ramp", title: "share of a column's tokens per bin; bins are equally wide in log |d|, and the middle one holds all smaller |d|" },
    "share of tokens 0", node("i", { style: `background:linear-gradient(90deg, ${ramp.join(",")})`, "aria-hidden": "true" }), `${number(100 * view.top)} % per bin`);
}

// --- Reading ---

function place(view, event) {
  const box = view.frame.getBoundingClientRect();
  const within = (value) => Math.min(Math.max(value, 0), 0.9999);
  return {
    column: Math.floor(within((event.clientX - box.left) / box.width) * view.columns),
    row: Math.floor(within((box.bottom - event.clientY) / box.height) * view.data.rows),
  };
}

function move(view, event) {
  const at = place(view, event);
  show(view, at);
  if (!view.start) return;
  const [from, to] = ordered(view.start.column, at.column);
  view.brush.hidden = Math.abs(event.clientX - view.start.x) < DRAG_PIXELS;
  view.brush.style.left = `${(100 * from) / view.columns}%`;
  view.brush.style.width = `${(100 * (to - from + 1)) / view.columns}%`;
}

function press(view, event) {
  if (event.button || event.pointerType === "touch") return show(view, place(view, event)); // a finger scrolls the page
  view.start = { ...place(view, event), x: event.clientX };
  view.frame.setPointerCapture(event.pointerId);
}

function release(view, event) {
  const { start } = view;
  view.start = null;
  view.brush.hidden = true;
  if (!start || Math.abs(event.clientX - start.x) < DRAG_PIXELS) return;
  const [from, to] = ordered(start.column, place(view, event).column);
  put({ steps: `${stepsOf(view, from)[0]}:${stepsOf(view, to)[1]}` });
}

const ordered = (a, b) => (a < b ? [a, b] : [b, a]);

/** @returns {[number, number]} */
function stepsOf(view, column) {
  const { first, last, width } = view.data;
  return [first + column * width, Math.min(last, first + (column + 1) * width - 1)];
}

function keys(view, event) {
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  if (event.key === "0") return put({ steps: null });
  if (event.key === "Escape") return show(view, null);
  if (!(event.key in moves)) return;
  event.preventDefault();
  const at = view.at ?? { column: view.columns, row: Math.floor(view.data.rows / 2) };
  const [right, up] = moves[event.key];
  show(view, { column: Math.min(Math.max(at.column + right, 0), view.columns - 1), row: Math.min(Math.max(at.row + up, 0), view.data.rows - 1) });
}

function show(view, at) {
  view.at = at;
  view.cross.hidden = at === null;
  if (at === null) {
    view.cursor.textContent = view.data.whole ? "" : `steps ${integer(view.data.first)} – ${integer(view.data.last)}`;
    return;
  }
  const { rows, edges } = view.data;
  Object.assign(view.cross.style, { left: `${(100 * at.column) / view.columns}%`, width: `${100 / view.columns}%`, bottom: `${(100 * at.row) / rows}%`, height: `${100 / rows}%` });
  view.cursor.textContent = `${named(stepsOf(view, at.column))} · ${read(view, at, edges)}`;
}

const named = ([from, to]) => (from === to ? `step ${integer(from)}` : `steps ${integer(from)}–${integer(to)}`);

function read(view, { column, row }, edges) {
  const gap = view.data.gaps.find((each) => column >= each.from && column < each.to);
  const total = view.totals[column];
  if (gap || !total) return gap?.why ?? "no step here";
  const tokens = view.tokens[column * view.data.rows + row];
  return `d ${number(edges[row])} to ${number(edges[row + 1])} · ${number((100 * tokens) / total)} % · ${integer(tokens)} of ${integer(total)} tokens`;
}
