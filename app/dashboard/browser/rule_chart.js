// A finding or a correction over steps, what that is compared with, and when a correction was on.
import { node, svg } from "./dom.js";
import { integer, number } from "./format.js";
import { label } from "./plot.js";

// A chart of plots.js. `data`: { title, unit, note, lines: [{ slice, points }], limits, spans, marks, log, floor, alt }
export function ruleChart(data) {
  const lines = data.lines.map(({ slice, points }, at) => ({
    name: slice, x: points.map(([step]) => step), y: points.map(([, value]) => value), className: `lp-rule-line lp-rule-line-${at}`,
  }));
  return {
    title: data.title, unit: data.unit, note: data.note, alt: data.alt, lines, picture: "lp-rule-chart",
    panes: [{
      log: data.log, floor: data.floor, also: () => data.limits.map(({ value }) => value),
      under: (x, _y, pane) => data.spans.map((span) => band(span, x, pane)),
      over: (x, y, pane) => [...data.limits.map((limit) => limitLine(limit, y(limit.value), pane)), ...(data.marks ?? []).filter(({ step }) => step >= x.low && step <= x.high).map((mark) => markLine(mark, x(mark.step), pane))],
    }],
  };
}

function limitLine({ word, value, quiet }, place, { left, right }) {
  return svg("g", { class: `lp-rule-limit${quiet ? " lp-rule-quiet" : ""}` }, svg("line", { x1: left, x2: right, y1: place, y2: place }),
    label(`${word} ${number(value)}`, quiet ? left + 4 : right - 2, place - 4, quiet ? "start" : "end"));
}

function markLine({ words, tone }, place, { top, bottom }) {
  const line = svg("line", { class: `lp-rule-mark lp-tone-${tone}`, x1: place, x2: place, y1: top, y2: bottom });
  line.append(svg("title", {}, document.createTextNode(words)));
  return line;
}

function band({ phase, first, last }, x, { top, bottom }) {
  const shape = svg("rect", { class: `lp-rule-${phase}`, x: x(first), y: top, width: Math.max(2, x(last) - x(first)), height: bottom - top });
  shape.append(svg("title", {}, document.createTextNode(`${phase}, steps ${integer(first)} to ${integer(last)}`)));
  return shape;
}

// What the colour of a span stands for, in a legend.
export const swatch = (phase) => node("i", { class: `lp-rule-swatch lp-rule-${phase}`, "aria-hidden": "true" });
