// One plotly figure that keeps the reader's zoom while its data grows, with headings, legend and a crosshair of our own:
// the crosshair reads every row at once, where plotly's hover boxes would cover what they describe.
import { node } from "./dom.js";
import { integer, number } from "./format.js";
import { logTicks, rangeOfRows, unpack, unpackArray, valueAt } from "./traces.js";

let plotly; // shared by all figures of the page

function library(address) {
  plotly ??= globalThis.Plotly ? Promise.resolve(globalThis.Plotly) : new Promise((resolve, reject) => {
    const script = node("script", { src: address, async: true });
    script.onload = () => resolve(globalThis.Plotly);
    script.onerror = () => { plotly = undefined; script.remove(); reject(new Error("plotly did not load")); };
    document.head.append(script);
  });
  return plotly;
}

const CONFIG = { displayModeBar: false, responsive: false, scrollZoom: false, doubleClick: false, showTips: false };
const COARSE = globalThis.matchMedia?.("(pointer: coarse)").matches;

export function update(root, view) {
  if (view.version === view.data.version) return;
  view.version = view.data.version;
  if (!view.gd) build(root, view);
  view.plot.setAttribute("aria-label", view.data.alt);
  view.legend.replaceChildren(...view.data.legend.map(legendEntry), view.data.note ? node("span", { class: "lp-note", title: view.data.note_help, text: view.data.note }) : "");
  const { data } = view;
  library(`${data.assets}/plotly.min.js`).then((Plotly) => {
    if (!view.closed && data.version === view.version) return draw(Plotly, root, view);
  }).catch((error) => { view.version = null; view.wait.textContent = `The charts could not be drawn: ${error.message}. Reload the page to try again.`; view.wait.hidden = false; });
}

export function close(root, view) {
  view.sizes?.disconnect();
  if (view.gd && globalThis.Plotly) globalThis.Plotly.purge(view.gd);
}

function build(root, view) {
  view.cursor = node("span", { class: "lp-cursor", "aria-live": "off" });
  view.reset = node("button", { class: "lp-reset", type: "button", hidden: true, text: "reset zoom", onclick: () => zoom(globalThis.Plotly, view, null) });
  view.legend = node("span", { class: "lp-legend" });
  view.gd = node("div", { class: "lp-plot" });
  view.headings = node("div", { class: "lp-headings" });
  view.line = node("div", { class: "lp-line", hidden: true });
  view.wait = node("p", { class: "lp-wait", text: "Loading charts …" });
  view.plot = node("div", { class: "lp-stage", role: "img" }, view.gd);
  view.stage = node("div", { class: "lp-frame" }, view.plot, view.headings, view.line, view.wait);
  view.absent = node("p", { class: "lp-absent", hidden: true });
  root.replaceChildren(node("section", { class: "lp lp-chart" },
    node("div", { class: "lp-tools" }, view.legend, view.cursor, view.reset), view.stage, view.absent));
  view.stage.addEventListener("pointermove", (event) => point(view, event));
  view.stage.addEventListener("pointerdown", (event) => point(view, event));
  view.stage.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") show(view, null); });
}

async function draw(Plotly, root, view) {
  const { figure } = view.data;
  const traces = figure.data.map(unpack);
  const layout = { ...figure.layout, font: { ...figure.layout.font, family: getComputedStyle(root).fontFamily } };
  if (COARSE) layout.dragmode = false; // a finger scrolls the page
  if (view.run !== view.data.run) view.zoom = null;
  view.run = view.data.run;
  if (view.zoom) fit(layout, traces, view.zoom);
  const first = !view.drawn;
  await Plotly.react(view.gd, traces, layout, CONFIG);
  view.traces = traces;
  view.steps = unpackArray(view.data.steps);
  view.drawn = true;
  view.wait.hidden = true;
  headings(view);
  if (first) {
    view.gd.on("plotly_relayout", (change) => relayout(Plotly, view, change));
    view.gd.on("plotly_doubleclick", () => zoom(Plotly, view, null));
    view.sizes = new ResizeObserver(() => resize(Plotly, view));
    view.sizes.observe(view.stage);
  }
  zoomed(view);
  show(view, view.at ?? null);
}

function resize(Plotly, view) {
  const width = Math.round(view.stage.clientWidth);
  if (width && width !== view.width) {
    view.width = width;
    Plotly.Plots.resize(view.gd);
  }
}

// A zoom is the reader's, and outlives new data. Rows follow it with y ranges of what is to be seen.
function relayout(Plotly, view, change) {
  const range = change["xaxis.range"] ?? ("xaxis.range[0]" in change ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : null);
  if (range && !view.fitting) zoom(Plotly, view, range.map(Number));
}

function zoom(Plotly, view, range) {
  view.zoom = range;
  view.fitting = true;
  const { layout } = view.data.figure;
  const change = { "xaxis.range": range ?? layout.xaxis.range };
  for (const [axis, visible] of rangeOfRows(layout, view.traces, range)) {
    const usual = visible ?? layout[axis].range;
    if (usual) change[`${axis}.range`] = usual;
    else change[`${axis}.autorange`] = true;
    if (layout[axis].type === "log") change[`${axis}.dtick`] = visible ? logTicks(visible[1] - visible[0]) : layout[axis].dtick;
  }
  Plotly.relayout(view.gd, change).finally(() => { view.fitting = false; });
  zoomed(view);
}

function fit(layout, traces, range) {
  for (const [axis, visible] of rangeOfRows(layout, traces, range)) {
    if (!visible) continue;
    layout[axis] = { ...layout[axis], range: visible, autorange: false };
    if (layout[axis].type === "log") layout[axis].dtick = logTicks(visible[1] - visible[0]);
  }
  layout.xaxis = { ...layout.xaxis, range, autorange: false };
}

function zoomed(view) {
  view.reset.hidden = !view.zoom;
  if (view.at != null) return;
  const [from, to] = view.zoom ?? [];
  view.cursor.textContent = !view.zoom ? "" : `steps ${integer(Math.ceil(from))} – ${integer(Math.floor(to))}`;
}

const legendEntry = ({ name, color, dash, help }) =>
  node("span", { class: "lp-key", title: help }, swatch(color, dash), name);

function swatch(color, dash) {
  return node("i", { class: `lp-swatch lp-${dash}`, style: `border-color:${color}`, "aria-hidden": "true" });
}

function headings(view) {
  const { layout } = view.data.figure;
  const inner = layout.height - layout.margin.t - layout.margin.b;
  view.readouts = [];
  view.headings.replaceChildren(...view.data.rows.map((row) => {
    const top = layout.margin.t + (1 - layout[`yaxis${row.axis.slice(1)}`].domain[1]) * inner;
    const values = row.lines.map((line) => readout(view, row, line));
    return node("div", { class: "lp-heading", style: `top:${top.toFixed(1)}px` },
      node("h3", { title: row.help }, row.title, row.unit ? node("span", { class: "lp-unit", text: row.unit }) : null),
      row.note ? node("span", { class: "lp-note", text: row.note }) : null,
      node("span", { class: "lp-values" }, ...values));
  }));
  if (view.data.events.length) view.headings.append(node("span", { class: "lp-strip", style: `top:${layout.margin.t}px`, title: view.data.strip_help, text: "events" }));
  view.absent.hidden = !view.data.absent;
  view.absent.textContent = view.data.absent ?? "";
}

function readout(view, row, line) {
  const value = node("b");
  view.readouts.push({ value, axis: row.axis, line: line.line, latest: line.latest });
  return node("span", { class: "lp-readout" }, swatch(line.color, line.dash), row.lines.length > 1 ? node("span", { class: `lp-role lp-role-${view.data.legend.some((entry) => entry.name === line.name) ? "known" : "own"}`, text: line.name }) : null, value);
}

function point(view, event) {
  const axis = view.gd._fullLayout?.xaxis;
  if (!axis || !view.steps?.length) return;
  const x = axis.p2d(event.clientX - view.gd.getBoundingClientRect().left - axis._offset);
  show(view, nearest(view.steps, x));
}

function nearest(steps, x) {
  let low = 0;
  let high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= x) low = middle;
    else high = middle;
  }
  return x - steps[low] <= steps[high] - x ? steps[low] : steps[high];
}

// Values at a step, or the newest ones when the cursor is elsewhere.
function show(view, step) {
  view.at = step;
  for (const { value, axis, line, latest } of view.readouts ?? []) {
    const trace = step === null ? null : view.traces.find((each) => each.meta?.row === axis && each.meta.line === line);
    value.textContent = number(step === null ? latest : valueAt(trace, step));
  }
  const axis = view.gd._fullLayout?.xaxis;
  const pixel = step === null || !axis ? null : axis._offset + axis.d2p(step);
  view.line.hidden = pixel === null || pixel < axis._offset - 1 || pixel > axis._offset + axis._length + 1;
  if (pixel !== null) view.line.style.transform = `translateX(${pixel}px)`;
  const happened = view.data.events.filter((event) => event.step === step).map((event) => event.words);
  view.cursor.textContent = step === null ? "" : [`step ${integer(step)}`, ...happened.slice(0, 3)].join(" · ");
  if (step === null) zoomed(view);
}
