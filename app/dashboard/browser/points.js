// Points with their errors, and what they are to be compared with.
import { node, svg, title } from "./dom.js";
import { label } from "./plot.js";
import { plots } from "./plots.js";
import { ticks } from "./ticks.js";

export { closePlots as close } from "./plots.js";

const HEIGHT = 220;
const BELOW = 34;

export function update(root, view) {
  if (view.version === view.data.version) return;
  view.version = view.data.version;
  const { data } = view;
  const kit = plots(view, groupOf(data));
  root.replaceChildren(node("section", { class: "lp", "aria-label": data.title },
    title(data.title, data.hint, data.points.length ? kit.tools : null),
    ...(data.points.length ? [kit.figures[0].element, kit.said] : [node("p", { class: "lp-text lp-hint", text: data.empty })])));
}

const REACH = 2; // standard errors

function groupOf(data) {
  const { points, reference, log, split } = data;
  const places = points.map(({ x }) => x);
  const whole = [Math.min(...places, split ?? Infinity) - 0.5, Math.max(...places, split ?? -Infinity) + 0.5];
  const reach = (error) => (log ? 0 : REACH * (error ?? 0));
  const ends = ({ y, error }) => [y - reach(error), y + reach(error)];
  const shown = ({ low, high }) => points.filter(({ x }) => x >= low && x <= high);
  return {
    name: `${data.run}-${data.title}`, title: `${data.title}, ${data.hint}`, whole, words: () => "", silent: reference?.words,
    axis: { column: data.x, position: (at) => String(Math.round(at)), ticks: ([low, high], count) => ticks(low, high, count, 1).map((value) => [value, String(value)]) },
    csv: ([low, high]) => [[data.x, "value", "standard error", "what"], ...shown({ low, high }).map(({ x, y, error, words }) => [x, y, error, words]), ...(reference ? [[null, reference.y, reference.error, reference.words]] : [])],
    png: { columns: 1, width: 760 },
    charts: points.length ? [{
      title: "", head: node("figcaption"), alt: alt(data), height: HEIGHT, below: BELOW, picture: "lp-points-plot", stops: [...places].sort((a, b) => a - b),
      say: (at) => points.find(({ x }) => x === at)?.words ?? "",
      panes: [{
        log, zero: !log, also: ([low, high]) => [...shown({ low, high }), ...(reference ? [reference] : [])].flatMap(ends),
        under: (x, y, pane) => [...compared(data, x, y, pane), ...points.map((each) => mark(each, x, y))],
        over: (_x, _y, { left, right, bottom }) => [label(data.x, (left + right) / 2, bottom + BELOW - 4, "middle")],
      }],
    }] : [],
  };
}

const alt = ({ title, points, reference }) => `${title}: ${points.length} points; ${reference ? `${reference.words}; ` : ""}arrow keys go from point to point`;

function compared({ reference, split }, x, y, { left, right, top, bottom }) {
  const dashed = split === null ? [] : [svg("path", { class: "lp-points-split", d: `M${x(split)} ${top}V${bottom}` })];
  if (!reference) return dashed;
  const reach = REACH * (reference.error ?? 0);
  const [upper, lower] = [y(reference.y + reach), y(reference.y - reach)];
  return [...dashed, svg("rect", { class: "lp-points-band", x: left, y: upper, width: right - left, height: Math.max(1, lower - upper) }),
    svg("path", { class: "lp-points-reference", d: `M${left} ${y(reference.y)}H${right}` })];
}

function mark({ x: place, y: value, error }, x, y) {
  const [cx, cy] = [x(place), y(value)];
  const bar = error ? [svg("path", { class: "lp-points-error", d: `M${cx} ${y(value - REACH * error)}V${y(value + REACH * error)}` })] : [];
  return svg("g", {}, ...bar, svg("circle", { class: "lp-points-mark", cx, cy, r: 2.8 }));
}
