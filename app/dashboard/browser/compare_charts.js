// Small charts of runs side by side: values above, their ratio to the baseline below.
import { node, svg, title } from "./dom.js";
import { TIMES, duration, integer } from "./format.js";
import { bandPath, label, linePath } from "./plot.js";
import { plots, sample, zoomIn } from "./plots.js";
import { ticks } from "./ticks.js";
import { unpackArray } from "./traces.js";

const HEIGHT = 230;
const UPPER = { top: 8, bottom: 132, count: 5 };
const LOWER = { top: 160, bottom: 206, count: 3 };
const DENSE = 700; // points of a line that was thinned

export function drawCharts(place, { charts, looks, axis }, view) {
  const kit = plots(view, {
    name: `comparison-with-${looks[0].name}`, title: `${looks.slice(1).map(({ name }) => name).join(", ")} against ${looks[0].name}`,
    axis: axisOf(axis), zoom: zoomIn(axis.key === "step" ? "steps" : "compare_range"), legend: looks, saved: () => view.send("do", { id: "csv", at: Date.now() }),
    reach: axis.cell * (charts.some(({ lines }) => lines.some(({ x }) => unpackArray(x).length > DENSE)) ? 4 : 2), charts: charts.map((each) => chart(each, looks)),
  });
  place.replaceChildren(
    title("Curves", `over ${axis.words}; below each, the ratio to the baseline block by block; shaded is what noise and margin explain`),
    node("div", { class: "lp-tools" }, node("span", { class: "lp-legend" }, ...looks.map((look, at) => node("span", { class: "lp-key" }, sample(look), at ? look.name : `${look.name} (baseline)`))), kit.tools),
    node("div", { class: "lp-small-charts" }, ...kit.figures.map(({ element }) => element)));
}

function chart(data, looks) {
  const looked = ({ run }) => ({ name: looks[run].name, color: looks[run].color, dash: looks[run].dash });
  const ratios = data.ratio.lines.filter(({ blocks }) => blocks.length);
  return {
    title: data.title, help: data.help, unit: [data.unit, data.log ? "logarithmic" : ""].filter(Boolean).join(", "), alt: data.alt, height: HEIGHT,
    missing: data.lines.length ? "" : data.missing,
    lines: data.lines.map((line) => ({ ...looked(line), x: unpackArray(line.x), y: unpackArray(line.y) })),
    panes: [{ ...UPPER, log: data.log }, ratios.length ? below(data.ratio, ratios, looked) : { ...LOWER, bare: true, over: (_x, _y, { left }) => [label(data.ratio.missing, left, LOWER.top + 22)] }],
  };
}

// The ratio is drawn and not read out: what it says of a run is in the verdicts.
function below(ratio, lines, looked) {
  const words = ratio.of === "distances" ? "÷ baseline, distances from the ideal value" : "÷ baseline";
  const seen = ([low, high]) => { const blocks = lines.flatMap((line) => line.blocks); const inside = blocks.filter(([x]) => x >= low && x <= high); return inside.length ? inside : blocks; };
  return {
    ...LOWER, log: ratio.log, also: (range) => [1, ...seen(range).flatMap(([, ...values]) => values)],
    under: (x, y, { left, right }) => [
      ...lines.map(({ blocks }) => svg("path", { class: "lp-chart-band", d: bandPath(blocks.map(([at, , low, high]) => [at, low, high]), x, y) })),
      svg("path", { class: "lp-chart-one", d: `M${left} ${y(1)}H${right}` }),
      ...lines.map((line) => ratioLine(line.blocks, x, y, looked(line))),
    ],
    over: (_x, _y, { left }) => [label(words, left, LOWER.top - 8)],
  };
}

const ratioLine = (blocks, x, y, { color, dash }) =>
  svg("path", { class: "lp-plot-line", d: linePath({ x: blocks.map(([at]) => at), y: blocks.map(([, value]) => value) }, x, y), stroke: color, "stroke-dasharray": dash });

function axisOf(axis) {
  return {
    words: axis.words, column: axis.key, position: (at) => position(axis, at),
    ticks: ([low, high], count) => {
      const [size, unit] = axis.key === "time" ? timeUnit(high - low) : [1, ""];
      return ticks(low / size, high / size, count, axis.key === "time" ? 0 : 1).map((value) => [value * size, unit ? `${value} ${unit}` : position(axis, value)]);
    },
  };
}

/** @type {(span: number) => [number, string]} */
const timeUnit = (span) => TIMES.find(([size]) => span >= 2 * size) ?? [1, "s"];

const position = (axis, value) => (axis.key === "time" ? duration(value) : axis.key === "tokens" ? short(value) : integer(value));

/** @type {[number, string][]} */
const SIZES = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

function short(value) {
  for (const [size, name] of SIZES) if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))} ${name}`;
  return integer(value);
}
