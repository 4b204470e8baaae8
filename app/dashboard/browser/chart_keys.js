// The chart by keyboard: zoom, crosshair, marks, scales, exports.
import { placeOf } from "./axis.js";
import { look, speak } from "./chart_parts.js";
import { AXES, SMOOTHINGS, drawOver, isLog, scaleAs, smoothOver, zoomTo } from "./chart_state.js";
import { saveCsv, savePng, visible } from "./exports.js";
import { toggle } from "./full.js";
import { offer, plotKeys } from "./keys.js";
import { toMark } from "./marks.js";

// Offers the chart's keys, the newest offer first: the chart that was touched last has them.
export function shortcuts(view) {
  const keys = [
    ...plotKeys({ zoom: (factor) => zoom(view, factor), all: () => zoomTo(null), csv: () => saveCsv(view), png: () => savePng(view) }),
    { keys: ["l"], words: "y axis of the row under the pointer: logarithmic or linear", run: () => otherScale(view) },
    { keys: ["x"], words: "next x axis: steps, tokens, time, since the onset", run: () => nextAxis(view) },
    { keys: ["s"], words: "more smoothing, then none", run: () => smoothOver(following(SMOOTHINGS, view.state.smooth)) },
    { keys: ["f"], words: "full screen, and back", run: () => toggle(view) },
    { keys: ["Escape"], words: "leave full screen", run: () => { if (view.state.full) toggle(view); } },
    { keys: ["[", "]"], words: "crosshair to the previous or next mark", run: (key) => toMark(view, key === "[" ? -1 : 1) },
  ].map(({ run, ...rest }) => ({ ...rest, run: run && ((key) => { if (view.drawn) run(key); }) }));
  const take = () => offer(view, "Charts", keys);
  take();
  view.frame.addEventListener("focusin", take);
  view.frame.addEventListener("pointerenter", take);
  view.frame.addEventListener("keydown", (event) => move(view, event));
  view.frame.addEventListener("blur", () => { look(view, null); if (view.tip) view.tip.hidden = true; });
}

const following = (list, value) => list[(list.indexOf(value) + 1) % list.length];

function zoom(view, factor) {
  const [low, high] = visible(view);
  const { steps } = view.axis.trends[0];
  const middle = view.at?.run === 0 ? view.at.step : (low + high) / 2;
  const half = Math.max(1, ((high - low) * factor) / 2);
  const [first, last] = [steps[0], steps[steps.length - 1]];
  const from = Math.max(first, Math.floor(middle - half));
  const to = Math.min(last, Math.ceil(middle + half));
  zoomTo(from <= first && to >= last ? null : [from, to]);
}

function move(view, event) {
  const way = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (!way || !view.drawn || event.target !== view.frame || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const trend = view.axis.trends[view.at?.run ?? 0];
  const [from, to] = visible(view);
  const inside = [...trend.steps.keys()].filter((at) => trend.steps[at] >= from && trend.steps[at] <= to);
  if (!inside.length) return;
  const now = view.at ? inside.findIndex((at) => trend.steps[at] >= view.at.step) : way > 0 ? -1 : inside.length;
  const next = inside[Math.max(0, Math.min(inside.length - 1, now + way * (event.shiftKey ? 10 : 1)))];
  view.tip.hidden = true;
  look(view, { run: view.at?.run ?? 0, step: trend.steps[next], place: placeOf(trend, trend.steps[next]) });
  speak(view);
}

function otherScale(view) {
  const { rows } = view.data;
  const inner = view.layout.height - view.layout.margin.t - view.layout.margin.b;
  const below = rows.findLast((row) => view.layout.margin.t + (1 - view.layout[`yaxis${row.axis.slice(1)}`].domain[1]) * inner - 28 <= (view.row ?? 0));
  const row = below ?? rows[0];
  if (row) scaleAs(row.key, !isLog(view.state, row), row.log);
}

function nextAxis(view) {
  const able = AXES.filter((x) => x === "step" || view.data.places.every((each) => each[x] !== null));
  drawOver(following(able, view.axis.shown));
}
