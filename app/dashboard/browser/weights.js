// The timeline of weight updates: a lane per engine, the trainer on top; a tick where a version arrived, a bar for how long it took.
import { node, svg } from "./dom.js";
import { integer, number } from "./format.js";

const HEIGHT = 30;
const EDGE = 8; // room beside the first and the last tick
const MARKS = { kept: "prefix cache kept", odd: "versions skipped, or an older one", gone: "no update since", bar: "time it took" };

export function update(root, view) {
  if (view.version === view.data.version) return;
  view.version = view.data.version;
  if (!view.lanes) build(root, view);
  view.hint.textContent = view.data.hint;
  view.lanes.replaceChildren(...view.data.lanes.map((lane) => row(lane, view)));
  view.lanes.setAttribute("aria-label", view.data.alt);
  view.key.replaceChildren(...keys(view.data.lanes));
  draw(view);
}

export function close(_root, view) {
  view.sizes?.disconnect();
}

function build(root, view) {
  view.hint = node("span", { class: "lp-hint" });
  view.said = node("p", { class: "lp-lane-said", "aria-live": "polite" });
  view.lanes = node("div", { class: "lp-lanes", role: "group" });
  view.axis = node("div", { class: "lp-lane-axis", "aria-hidden": "true" });
  view.key = node("span", { class: "lp-lane-key" });
  root.replaceChildren(node("section", { class: "lp", "aria-label": "timeline" },
    node("h2", { class: "lp-title" }, "Updates", view.hint), view.key, view.lanes, view.axis, view.said));
  view.sizes = new ResizeObserver(() => draw(view));
  view.sizes.observe(view.lanes);
}

function row(lane, view) {
  const plot = node("div", {
    class: "lp-lane-plot", tabindex: "0", role: "group", "aria-label": `${lane.name}, arrow keys go from update to update`,
    onpointermove: (event) => point(lane, plot, event, view), onpointerdown: (event) => point(lane, plot, event, view),
    onkeydown: (event) => step(lane, plot, event, view),
  });
  return node("div", { class: `lp-lane${lane.tone ? ` lp-tone-${lane.tone}` : ""}` }, node("span", { class: "lp-lane-name" }, node("b", { text: lane.name }), lane.note ? node("span", { text: lane.note }) : null), plot);
}

function keys(lanes) {
  const all = lanes.flatMap((lane) => lane.arrivals);
  const there = { kept: all.some(({ kept }) => kept), odd: all.some(odd), gone: lanes.some(({ gone }) => gone), bar: all.some(({ delay }) => delay) };
  return Object.entries(MARKS).filter(([kind]) => there[kind]).map(([kind, words]) => node("span", { class: "lp-key" }, sample(kind), words));
}

function sample(kind) {
  return svg("svg", { width: 16, height: 12, "aria-hidden": "true", class: "lp-lane-sample" }, mark(kind, 8, 6));
}

const odd = ({ skipped, backwards }) => Boolean(skipped || backwards);

function mark(kind, x, y) {
  if (kind === "kept") return svg("circle", { class: "lp-lane-kept", cx: x, cy: y, r: 2.2 });
  if (kind === "odd") return svg("path", { class: "lp-lane-odd", d: `M${x - 4} ${y - 4}h8l-4 7z` });
  if (kind === "gone") return svg("path", { class: "lp-lane-gone", d: `M${x - 8} ${y}h16` });
  return svg("rect", { class: "lp-lane-bar", x: x - 6, y: y - 3, width: 12, height: 6 });
}

function draw(view) {
  const { lanes, from, to } = view.data;
  const plots = [...view.lanes.querySelectorAll(".lp-lane-plot")];
  const width = plots[0]?.clientWidth ?? 0;
  if (!width || from === null) return;
  view.x = (seconds) => EDGE + ((seconds - from) / (to - from || 1)) * (width - 2 * EDGE);
  lanes.forEach((lane, at) => {
    plots[at].replaceChildren(lines(lane, view, width));
  });
  view.axis.replaceChildren(...(to > from ? [from, (from + to) / 2, to] : [from]).map((seconds) => node("span", { text: clock(seconds, to - from) })));
}

function lines(lane, view, width) {
  const { x } = view;
  const ticks = lane.arrivals.map(({ at }) => `M${x(at).toFixed(1)} 7v16`).join("");
  const bars = lane.arrivals.filter(({ delay }) => delay).map(({ at, delay }) => `M${Math.max(0, x(at - delay)).toFixed(1)} 12H${x(at).toFixed(1)}v6H${Math.max(0, x(at - delay)).toFixed(1)}z`).join("");
  const last = lane.arrivals.at(-1);
  const drawing = svg("svg", { width, height: HEIGHT, "aria-hidden": "true" },
    svg("path", { class: "lp-lane-line", d: `M0 15H${width}` }), svg("path", { class: "lp-lane-bar", d: bars }),
    svg("path", { class: lane.engine ? "lp-lane-tick" : "lp-lane-tick lp-lane-trainer", d: ticks }));
  if (lane.gone) drawing.append(svg("path", { class: "lp-lane-gone", d: `M${last ? x(last.at).toFixed(1) : 0} 15H${width}` }));
  for (const arrival of lane.arrivals) {
    if (arrival.kept) drawing.append(mark("kept", x(arrival.at), 26.5));
    if (odd(arrival)) drawing.append(mark("odd", x(arrival.at), 5));
  }
  drawing.append(svg("path", { class: "lp-lane-chosen", d: "" }));
  return drawing;
}

function point(lane, plot, event, view) {
  if (!view.x || !lane.arrivals.length) return;
  const place = event.clientX - plot.getBoundingClientRect().left;
  const distances = lane.arrivals.map(({ at }) => Math.abs(view.x(at) - place));
  choose(lane, plot, distances.indexOf(Math.min(...distances)), view);
}

function step(lane, plot, event, view) {
  const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
  if (!(event.key in moves) || !lane.arrivals.length || !view.x) return;
  event.preventDefault();
  const before = view.lane === lane ? view.at : lane.arrivals.length;
  choose(lane, plot, Math.max(0, Math.min(lane.arrivals.length - 1, before + moves[event.key])), view);
}

function choose(lane, plot, at, view) {
  Object.assign(view, { lane, at });
  for (const each of view.lanes.querySelectorAll(".lp-lane-chosen")) each.setAttribute("d", "");
  plot.querySelector(".lp-lane-chosen")?.setAttribute("d", `M${view.x(lane.arrivals[at].at).toFixed(1)} 2v26`);
  view.said.textContent = said(lane, lane.arrivals[at]);
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

// The time of day in UTC, with the date where more than a day is shown and fractions where it is exact.
function clock(seconds, span) {
  const text = new Date(seconds * 1000).toISOString();
  if (span > 86_400) return text.slice(0, 16).replace("T", " ");
  return span === 0 ? text.slice(11, 23) : text.slice(11, 19);
}
