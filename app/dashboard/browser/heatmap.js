// How tokens spread over the log-ratio, step by step: a picture of one pixel per column and bin, stretched to where these steps are on
// the page's x axis; lines, axes and gaps lie over it. A drag chooses steps for the whole page.
import { asked, listen, put } from "./address.js";
import { axisOf, placeOf, stepsBetween } from "./axis.js";
import { older, pairs } from "./choice.js";
import { node, svg, title } from "./dom.js";
import { compact, integer, number } from "./format.js";
import { label } from "./plot.js";
import { closePlots, plots } from "./plots.js";
import { lowerBound, unpackArray } from "./traces.js";
import { ticks } from "./ticks.js";

const HEIGHT = 334;
const BELOW = 36;
const SOFTER = 0.5; // power of a share that decides its shade: tails are what one looks for
const FINE = 4; // pixels of the picture per column where columns are not equally wide
const LETTER = 6.4; // pixels, about

export function update(root, view) {
  view.root = root;
  view.deaf ??= listen(() => { if (view.axis && axisOf([view.place], asked("x") ?? "step").shown !== view.axis.shown) draw(view); });
  if (view.version === view.data.version) return;
  view.version = view.data.version;
  const { data } = view;
  view.columns = Math.floor((data.last - data.first) / data.width) + 1;
  view.tokens = unpackArray(data.tokens);
  view.totals = Array.from({ length: view.columns }, (_, column) => view.tokens.subarray(column * data.rows, (column + 1) * data.rows).reduce((sum, each) => sum + each, 0));
  view.place = { ...data.places, steps: unpackArray(data.places.steps), tokens: unpackArray(data.places.tokens), time: unpackArray(data.places.time) };
  draw(view);
}

export function close(root, view) {
  view.deaf?.();
  closePlots(root, view);
}

function draw(view) {
  const { data } = view;
  view.axis = axisOf([view.place], asked("x") ?? "step");
  view.edges = edgesOf(view);
  view.image = painted(view);
  const kit = plots(view, groupOf(view));
  const [made] = kit.figures;
  view.root.replaceChildren(node("section", { class: "lp lp-heat" }, title("Log-ratio density", data.axis),
    node("div", { class: "lp-tools-line" }, pairs(view), legend(view), ...[older(data)].filter(Boolean), kit.tools), made.element,
    node("p", { class: "lp-absent", hidden: !data.note, text: data.note })));
}

// Where columns begin on the axis, and where the last one ends. A column is drawn from half a step before its first one.
export function edgesOf({ data, axis, columns }) {
  const [trend] = axis.trends;
  const first = (column) => data.first + column * data.width;
  if (trend.offset !== null) return Array.from({ length: columns + 1 }, (_, column) => Math.min(first(column), data.last + 1) - 0.5 - trend.offset);
  return Array.from({ length: columns + 1 }, (_, column) => (placeOf(trend, Math.min(first(column), data.last + 1) - 1) + placeOf(trend, Math.min(first(column), data.last + 1))) / 2);
}

function groupOf(view) {
  const { data, axis, edges } = view;
  const whole = [edges[0], edges.at(-1) > edges[0] ? edges.at(-1) : edges[0] + 1];
  const middles = Array.from({ length: view.columns }, (_, column) => (edges[column] + edges[column + 1]) / 2);
  const columnOf = (at) => Math.min(Math.max(lowerBound(edges, at) - 1, 0), view.columns - 1);
  const row = (kit) => Math.floor(kit.up * data.rows);
  return {
    name: `${data.places.name}-density-${data.pair}`, title: `${data.places.name}, density of ${data.axis}`, whole, zoomed: !data.whole, view: data.whole ? "" : `steps ${integer(data.first)} – ${integer(data.last)}`,
    axis: { column: "step", position: (at) => position(axis, at), ticks: ([low, high], count) => ticks(low, high, count, axis.trends[0].offset === null ? 0 : 1).map((value) => [value, position(axis, value)]) },
    steps: { of: (at) => middle(stepsOf(view, columnOf(at))), at: (step) => { const column = Math.floor((step - data.first) / data.width); return middles[column] ?? null; } },
    zoom: { asked: () => null, put: (range) => put({ steps: range && stepsIn(view, range)?.join(":") }) }, fixed: false,
    words: (at, kit) => `${named(stepsOf(view, columnOf(at)))} · ${described(view, { column: columnOf(at), row: row(kit) })}`,
    csv: () => csv(view), png: { columns: 1, width: 900 },
    charts: [{
      title: "", head: node("figcaption"), alt: `${data.alt} Arrow keys read it.`, height: HEIGHT, below: BELOW, picture: "lp-heat-plot", rows: data.rows, stops: middles,
      panes: [{ bare: true, under: (x, _y, pane) => overlay(view, x, pane), over: (_x, _y, pane) => sides(view, pane) }],
    }],
  };
}

const middle = ([from, to]) => Math.floor((from + to) / 2);

const position = (axis, at) => (axis.shown === "tokens" ? compact(at) : axis.shown === "time" ? number(at) : integer(at));

// --- Drawing ---

// Columns of equal width are a pixel each; on other axes each pixel is the column that is there.
function painted(view) {
  const { rows, ramp } = view.data;
  const { edges, columns } = view;
  const even = view.axis.trends[0].offset !== null;
  const wide = even ? columns : FINE * columns;
  const shades = ramp.map((color) => [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16)));
  const center = (rows - 1) / 2; // holds all smaller |d|, often most of the tokens: it alone may be darker than the scale
  view.top = view.tokens.reduce((top, tokens, at) => (at % rows === center ? top : Math.max(top, tokens / (view.totals[Math.floor(at / rows)] || 1))), 0) || 1;
  const canvas = /** @type {HTMLCanvasElement} */ (node("canvas", { width: wide, height: rows }));
  const context = canvas.getContext("2d");
  const image = context.createImageData(wide, rows);
  for (let pixel = 0; pixel < wide; pixel += 1) {
    const at = edges[0] + ((pixel + 0.5) / wide) * (edges[columns] - edges[0]);
    const column = even ? pixel : Math.min(Math.max(lowerBound(edges, at) - 1, 0), columns - 1);
    for (let row = 0; row < rows; row += 1) {
      const tokens = view.tokens[column * rows + row];
      if (!tokens) continue;
      const depth = Math.min(1, tokens / view.totals[column] / view.top) ** SOFTER;
      image.data.set([...shades[Math.max(1, Math.round(depth * (shades.length - 1)))], 255], 4 * ((rows - 1 - row) * wide + pixel));
    }
  }
  context.putImageData(image, 0, 0);
  return canvas.toDataURL("image/png");
}

function overlay(view, x, { left, right, top, bottom }) {
  const { lines, rows, gaps } = view.data;
  const { edges } = view;
  const y = (bin) => bottom - (bin / rows) * (bottom - top);
  return [
    svg("image", { href: view.image, x: left, y: top, width: right - left, height: bottom - top, preserveAspectRatio: "none", class: "lp-heat-cells" }),
    ...gaps.map(({ from, to, why }) => gap(x(edges[from]), x(edges[to]), top, bottom, why)),
    ...lines.flatMap(({ name, at }) => ["lp-halo", `lp-line-${name}`].map((kind) => svg("path", { class: `lp-heat-line ${kind}`, d: path(at, edges, x, y) }))),
    ...lines.flatMap(({ name, at }) => {
      const last = at.findLast((value) => value !== null);
      return last === undefined ? [] : [label(name, right - 4, y(last) + (last > 0.9 * rows ? 12 : -3), "end", "lp-heat-label")];
    }),
  ];
}

const STRIPE = 6;

// Striped, with the reason where there is room for it.
function gap(from, to, top, bottom, why) {
  const stripes = Array.from({ length: Math.ceil((to - from + bottom - top) / STRIPE) }, (_, at) => `M${from + at * STRIPE} ${top}l${top - bottom} ${bottom - top}`).join("");
  const letters = Math.floor((to - from - 12) / LETTER);
  const lines = letters > 12 ? wrapped(why, letters) : [];
  const high = lines.length * 16;
  const wide = Math.max(0, ...lines.map((line) => line.length)) * LETTER + 12;
  const middleX = (from + to) / 2;
  const start = (top + bottom - high) / 2;
  return svg("svg", { class: "lp-heat-gap", x: from, y: top, width: Math.max(0, to - from), height: bottom - top, viewBox: `${from} ${top} ${Math.max(1, to - from)} ${bottom - top}` },
    svg("path", { class: "lp-heat-stripes", d: stripes }),
    ...(lines.length ? [svg("rect", { class: "lp-heat-why", x: middleX - wide / 2, y: start - 4, width: wide, height: high + 6, rx: 4 })] : []),
    ...lines.map((line, at) => label(`${line}${at < lines.length - 1 ? " " : ""}`, middleX, start + 12 + 16 * at, "middle")));
}

// Words in lines of at most so many letters.
export function wrapped(text, letters) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (longer.length <= letters || lines.at(-1) === "") lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

// Through the columns' middles; a gap is a break, and a column between two of them a dash.
function path(values, edges, x, y) {
  let text = "";
  values.forEach((value, column) => {
    if (value === null) return;
    const high = y(value).toFixed(1);
    const before = column > 0 && values[column - 1] !== null;
    const alone = !before && (column + 1 >= values.length || values[column + 1] === null);
    text += alone ? `M${x(edges[column]).toFixed(1)} ${high}H${x(edges[column + 1]).toFixed(1)}` : `${before ? "L" : "M"}${x((edges[column] + edges[column + 1]) / 2).toFixed(1)} ${high}`;
  });
  return text;
}

function sides({ data, axis }, { left, right, top, bottom }) {
  const y = (bin) => bottom - (bin / data.rows) * (bottom - top);
  return [svg("rect", { class: "lp-heat-edge", x: left, y: top, width: right - left, height: bottom - top }),
    ...data.ticks.map(({ at, text }) => label(text, left - 6, y(at) + 4, "end")), label(axis.title, (left + right) / 2, bottom + BELOW - 4, "middle")];
}

function legend(view) {
  const { ramp } = view.data;
  if (!view.totals.some(Boolean)) return "";
  return node("span", { class: "lp-ramp", title: "share of a column's tokens per bin; bins are equally wide in log |d|, and the middle one holds all smaller |d|" },
    "share of tokens 0", node("i", { style: `background:linear-gradient(90deg, ${ramp.join(",")})`, "aria-hidden": "true" }), `${number(100 * view.top)} % per bin`);
}

// --- Reading ---

/** @returns {[number, number]} */
function stepsOf({ data }, column) {
  return [data.first + column * data.width, Math.min(data.last, data.first + (column + 1) * data.width - 1)];
}

// The steps of the columns that a drag touched.
function stepsIn(view, [low, high]) {
  if (view.axis.trends[0].offset === null) return stepsBetween(view.axis, low, high);
  const column = (at) => Math.min(Math.max(lowerBound(view.edges, at) - 1, 0), view.columns - 1);
  return [stepsOf(view, column(low))[0], stepsOf(view, column(high))[1]];
}

const named = ([from, to]) => (from === to ? `step ${integer(from)}` : `steps ${integer(from)}–${integer(to)}`);

function described(view, { column, row }) {
  const { gaps, rows, edges } = view.data;
  const hole = gaps.find((each) => column >= each.from && column < each.to);
  const total = view.totals[column];
  if (hole || !total) return hole?.why ?? "no step here";
  const tokens = view.tokens[column * rows + row];
  return `d ${number(edges[row])} to ${number(edges[row + 1])} · ${number((100 * tokens) / total)} % · ${integer(tokens)} of ${integer(total)} tokens`;
}

// A row per bin in which a column has tokens.
function csv(view) {
  const { rows, edges } = view.data;
  const head = ["first step", "last step", "d from", "d to", "tokens", "tokens of these steps"];
  const cells = Array.from(view.tokens, (tokens, at) => ({ tokens, column: Math.floor(at / rows), row: at % rows })).filter(({ tokens }) => tokens);
  return [head, ...cells.map(({ tokens, column, row }) => [...stepsOf(view, column), edges[row], edges[row + 1], tokens, view.totals[column]])];
}
