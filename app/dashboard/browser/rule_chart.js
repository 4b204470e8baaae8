// What a rule looks at over steps, what that is compared with, and when the rule would have been pending or firing.
import { node, svg } from "./dom.js";
import { integer, number, tick } from "./format.js";
import { extent, ticks } from "./ticks.js";

const HEIGHT = 190;
const LEFT = 56;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 22;
const TICKS = 4;

export function ruleChart(data, width) {
  const x = scale(data.steps ?? extent(data.lines.flatMap(({ points }) => points.map(([step]) => step))), [LEFT, width - RIGHT]);
  const values = data.lines.flatMap(({ points }) => points.map(([, value]) => value)).filter((value) => value !== null);
  const on = data.log ? Math.log10 : (value) => value;
  const y = scale(padded(extent([...values, ...data.limits.map(({ value }) => value)].filter((value) => data.floor === null || value >= data.floor).map(on))), [HEIGHT - BOTTOM, TOP]);
  const parts = [
    ...data.spans.map((span) => band(span, x)),
    ...ticks(...y.domain, TICKS).map((at) => gridline(at, y(at), width, data.log)),
    ...data.lines.map(({ points }, index) => svg("path", { class: `lp-rule-line lp-rule-line-${index}`, d: path(points, x, (value) => y(on(data.floor === null ? value : Math.max(value, data.floor)))) })),
    ...data.limits.map((limit) => limitLine(limit, y(on(limit.value)), width)),
    ...(data.marks ?? []).map((mark) => markLine(mark, x(mark.step))),
    ...x.domain.map((step, index) => svg("text", { x: x(step), y: HEIGHT - 6, "text-anchor": index ? "end" : "start" }, document.createTextNode(`step ${integer(step)}`))),
  ];
  return svg("svg", { class: "lp-rule-chart", viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": data.alt }, ...parts);
}

/** @returns {[number, number]} */
function padded([low, high]) {
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low - room, high + room];
}

function scale(domain, [from, to]) {
  const [low, high] = domain;
  const at = (value) => from + ((value - low) / (high - low || 1)) * (to - from);
  at.domain = domain;
  return at;
}

function gridline(at, place, width, log) {
  return svg("g", {}, svg("line", { class: "lp-rule-grid", x1: LEFT, x2: width - RIGHT, y1: place, y2: place }),
    svg("text", { x: LEFT - 6, y: place + 3.5, "text-anchor": "end" }, document.createTextNode(tick(log ? 10 ** at : at))));
}

// What only tells when it is over, or what was usual, stands quietly on the left, clear of the limit's own words.
function limitLine({ word, value }, place, width) {
  const quiet = word === "baseline" || word === "clear";
  const x = quiet ? LEFT + 4 : width - RIGHT - 2;
  return svg("g", { class: `lp-rule-limit${quiet ? " lp-rule-quiet" : ""}` }, svg("line", { x1: LEFT, x2: width - RIGHT, y1: place, y2: place }),
    svg("text", { x, y: place - 4, "text-anchor": quiet ? "start" : "end" }, document.createTextNode(`${word} ${number(value)}`)));
}

function markLine({ words, tone }, place) {
  const line = svg("line", { class: `lp-rule-mark lp-tone-${tone}`, x1: place, x2: place, y1: TOP, y2: HEIGHT - BOTTOM });
  line.append(svg("title", {}, document.createTextNode(words)));
  return line;
}

function band({ phase, first, last }, x) {
  const width = Math.max(2, x(last) - x(first));
  const shape = svg("rect", { class: `lp-rule-${phase}`, x: x(first), y: TOP, width, height: HEIGHT - TOP - BOTTOM });
  shape.append(svg("title", {}, document.createTextNode(`${phase}, steps ${integer(first)} to ${integer(last)}`)));
  return shape;
}

function path(points, x, y) {
  let drawn = "";
  let begun = false;
  for (const [step, value] of points) {
    if (value !== null) drawn += `${begun ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    begun = value !== null;
  }
  return drawn;
}

// What the colour of a span stands for, in a legend.
export const swatch = (phase) => node("i", { class: `lp-rule-swatch lp-rule-${phase}`, "aria-hidden": "true" });
