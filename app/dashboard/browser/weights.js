// The timeline of weight updates: a lane per engine, the trainer on top; a tick where a version arrived, a bar for how long it took.
import { node, svg, title } from "./dom.js";
import { integer, number } from "./format.js";
import { plots } from "./plots.js";

export { closePlots as close } from "./plots.js";

const HEIGHT = 30;
const EDGE = 8; // room beside the first and the last tick
const AXIS = 20; // below the last lane
const MARKS = { kept: "prefix cache kept", odd: "versions skipped, or an older one", gone: "no update since", bar: "time it took" };
const HEAD = ["lane", "version", "step", "arrived (seconds)", "took (s)", "paused (s)", "pause mode", "prefix cache kept", "loaded", "versions skipped", "older than before", "reloads"];

export function update(root, view) {
  if (view.version === view.data.version) return;
  view.version = view.data.version;
  const { data } = view;
  const kit = plots(view, groupOf(data));
  root.replaceChildren(node("section", { class: "lp", "aria-label": "timeline" },
    title("Updates", data.hint, kit.tools), node("span", { class: "lp-lane-key" }, ...keys(data.lanes)),
    node("div", { class: "lp-lanes", role: "group", "aria-label": data.alt }, ...kit.figures.map(({ element }) => element)), kit.said));
}

function groupOf({ run, lanes, from, to }) {
  const whole = from === null ? [0, 1] : from === to ? [from - 0.5, from + 0.5] : [from, to];
  const stepAt = new Map(lanes.flatMap(({ arrivals }) => arrivals.filter(({ step }) => step !== undefined).map(({ at, step }) => [at, step])));
  return {
    name: `${run}-weights`, title: `weight updates of ${run}`, whole, least: 1e-3, words: () => "",
    axis: { column: "seconds", position: (at) => clock(at, whole[1] - whole[0]), ticks: ([low, high], count) => times(low, high, count) },
    steps: { of: (at) => stepAt.get(at) ?? null, at: (step) => [...stepAt].find(([, each]) => each === step)?.[0] ?? null },
    csv: ([low, high]) => [HEAD, ...lanes.flatMap((lane) => lane.arrivals.filter(({ at }) => at >= low && at <= high).map((each) => cells(lane, each)))],
    png: { columns: 1, width: 900 },
    charts: lanes.map((lane, at) => chart(lane, at === lanes.length - 1)),
  };
}

const cells = ({ name }, { version, step, at, delay, pause, mode, kept, loaded, skipped, backwards, reloads }) =>
  [name, version, step, at, delay, pause, mode, kept, loaded, skipped, backwards, reloads].map((cell) => (typeof cell === "boolean" ? String(cell) : cell));

function chart(lane, last) {
  return {
    title: lane.name, className: `lp-lane${lane.tone ? ` lp-tone-${lane.tone}` : ""}`, picture: "lp-lane-plot", alt: `${lane.name}, arrow keys go from update to update`,
    head: node("span", { class: "lp-lane-name" }, node("b", { text: lane.name }), lane.note ? node("span", { text: lane.note }) : null),
    height: last ? HEIGHT + AXIS : HEIGHT, below: last ? AXIS : 0, left: EDGE, right: EDGE, ticks: last ? undefined : () => [],
    stops: lane.arrivals.map(({ at }) => at).sort((a, b) => a - b), say: (at) => said(lane, lane.arrivals.find((each) => each.at === at)),
    panes: [{ top: 0, bare: true, under: (x, _y, pane) => lines(lane, x, pane) }],
  };
}

function keys(lanes) {
  const all = lanes.flatMap((lane) => lane.arrivals);
  const there = { kept: all.some(({ kept }) => kept), odd: all.some(odd), gone: lanes.some(({ gone }) => gone), bar: all.some(({ delay }) => delay) };
  return Object.entries(MARKS).filter(([kind]) => there[kind]).map(([kind, words]) => node("span", { class: "lp-key" }, legend(kind), words));
}

function legend(kind) {
  return svg("svg", { width: 16, height: 12, "aria-hidden": "true", class: "lp-lane-sample" }, mark(kind, 8, 6));
}

const odd = ({ skipped, backwards }) => Boolean(skipped || backwards);

function mark(kind, x, y) {
  if (kind === "kept") return svg("circle", { class: "lp-lane-kept", cx: x, cy: y, r: 2.2 });
  if (kind === "odd") return svg("path", { class: "lp-lane-odd", d: `M${x - 4} ${y - 4}h8l-4 7z` });
  if (kind === "gone") return svg("path", { class: "lp-lane-gone", d: `M${x - 8} ${y}h16` });
  return svg("rect", { class: "lp-lane-bar", x: x - 6, y: y - 3, width: 12, height: 6 });
}

function lines(lane, x, { left, right }) {
  const ticks = lane.arrivals.map(({ at }) => `M${x(at).toFixed(1)} 7v16`).join("");
  const bars = lane.arrivals.filter(({ delay }) => delay).map(({ at, delay }) => `M${Math.max(left, x(at - delay)).toFixed(1)} 12H${x(at).toFixed(1)}v6H${Math.max(left, x(at - delay)).toFixed(1)}z`).join("");
  const last = lane.arrivals.at(-1);
  const marks = lane.arrivals.flatMap((each) => [...(each.kept ? [mark("kept", x(each.at), 26.5)] : []), ...(odd(each) ? [mark("odd", x(each.at), 5)] : [])]);
  return [
    svg("path", { class: "lp-lane-line", d: `M${left} 15H${right}` }), svg("path", { class: "lp-lane-bar", d: bars }),
    svg("path", { class: lane.engine ? "lp-lane-tick" : "lp-lane-tick lp-lane-trainer", d: ticks }),
    ...(lane.gone ? [svg("path", { class: "lp-lane-gone", d: `M${last ? x(last.at).toFixed(1) : left} 15H${right}` })] : []), ...marks,
  ];
}

function said(lane, { at, version, step: result, delay, pause, mode, kept, loaded, skipped, backwards, reloads }) {
  return [
    `${lane.name}: version ${version}`, result === undefined ? null : `of step ${integer(result)}`, `arrived ${clock(at, 0)} UTC`,
    delay === undefined ? null : `took ${number(delay)} s`,
    mode === undefined ? null : `pause mode ${mode}`, pause === undefined ? null : `paused ${number(pause)} s`,
    kept === undefined ? null : kept ? "prefix cache kept" : "prefix cache cleared",
    lane.engine && !loaded ? "announced but never loaded" : null,
    skipped === undefined ? null : `${integer(skipped)} ${skipped === 1 ? "version" : "versions"} skipped before it`,
    backwards ? "older than the one before it" : null,
    reloads === undefined ? null : `reloaded ${integer(reloads)}×`,
  ].filter(Boolean).join(" · ");
}

const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400]; // seconds

// Round times of the day.
export function times(low, high, count) {
  const least = (high - low) / Math.max(1, Math.floor(count / 2)); // these words are long
  const step = STEPS.find((each) => each >= least) ?? Math.ceil(least / 86_400) * 86_400;
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, at) => [(first + at) * step, clock((first + at) * step, high - low)]);
}

// The time of day in UTC, with the date where more than a day is shown and fractions where it is exact.
export function clock(seconds, span) {
  const text = new Date(seconds * 1000).toISOString();
  if (span > 86_400) return text.slice(0, 16).replace("T", " ");
  return span < 2 ? text.slice(11, 23) : text.slice(11, 19);
}
