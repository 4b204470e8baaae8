// One plotly figure that keeps the reader's view while its data grows, with headings, legend and a crosshair of our own: the
// crosshair reads every row at once, where plotly's hover boxes would cover what they describe. What the reader chose is in the
// address (chart_state.js); the server is asked only for what a long run's thinned lines do not have.
import { listen } from "./address.js";
import { axisOf, nearest, placeOf, stepsBetween } from "./axis.js";
import { read, within, zoomTo } from "./chart_state.js";
import { headings, look, show, tools, toolbar } from "./chart_parts.js";
import { shortcuts } from "./chart_keys.js";
import { hear, leave } from "./cursor.js";
import { node } from "./dom.js";
import { receive } from "./exports.js";
import { figureOf } from "./figure.js";
import { close as closeFull, fitted, left } from "./full.js";
import { withdraw } from "./keys.js";
import { place } from "./marks.js";
import { closePicker } from "./picker.js";
import { unpack, unpackArray } from "./traces.js";

let failures = 0;

// The browser has it once, for all figures of the page. It remembers a failure by the address: the next figure asks by another.
async function library(address) {
  const again = failures ? `?again=${failures}` : "";
  await import(new URL(address + again, document.baseURI).href).catch((error) => { failures += 1; throw error; });
  return globalThis.Plotly;
}

const CONFIG = { displayModeBar: false, responsive: false, scrollZoom: false, doubleClick: false, showTips: false };
const COARSE = globalThis.matchMedia?.("(pointer: coarse)").matches;
const ENDS = ["pointerup", "pointercancel"];
const PATIENCE_MS = 300; // between a zoom and the question for its details: more of them may follow

export function update(root, view) {
  if (!view.gd) build(root, view);
  receive(view);
  if (view.version === view.data.version) return redraw(view);
  view.version = view.data.version;
  view.places = view.data.places.map((each) => ({ ...each, steps: unpackArray(each.steps), tokens: unpackArray(each.tokens), time: unpackArray(each.time) }));
  view.base = view.data.figure.data.map((trace) => unpack(trace, view.places));
  library(`${view.data.assets}/plotly-basic.min.js`).then(async (Plotly) => {
    if (!view.closed) await draw(Plotly, view);
  }).catch((error) => { view.version = null; view.wait.textContent = `The charts could not be drawn: ${error.message}. Reload the page to try again.`; view.wait.hidden = false; });
}

export function close(_root, view) {
  view.sizes?.disconnect();
  view.deaf?.();
  for (const name of ENDS) removeEventListener(name, view.release);
  withdraw(view);
  leave(view);
  closePicker(view);
  closeFull();
  document.removeEventListener("fullscreenchange", left);
  removeEventListener("resize", view.refit);
  clearTimeout(view.question);
  if (view.gd && globalThis.Plotly) globalThis.Plotly.purge(view.gd);
}

function build(root, view) {
  view.root = root;
  view.gd = node("div", { class: "lp-plot" });
  view.headings = node("div", { class: "lp-headings" });
  view.marks = node("div", { class: "lp-marks" });
  view.line = node("div", { class: "lp-line", hidden: true });
  view.wait = node("p", { class: "lp-wait", text: "Loading charts …" });
  view.stage = node("div", { class: "lp-stage", role: "img" }, view.gd);
  view.frame = node("div", { class: "lp-frame", tabindex: 0, role: "group", "aria-roledescription": "chart" }, view.stage, view.headings, view.line, view.marks, view.wait);
  view.absent = node("p", { class: "lp-absent", hidden: true });
  root.replaceChildren(node("section", { class: "lp lp-chart" }, toolbar(view), view.frame, view.absent));
  view.frame.addEventListener("pointermove", (event) => point(view, event));
  view.frame.addEventListener("pointerdown", (event) => { view.pressed = event.pointerType !== "touch"; point(view, event); });
  view.release = () => { view.pressed = false; redraw(view); };
  for (const name of ENDS) addEventListener(name, view.release);
  view.frame.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") look(view, null); });
  hear(view, (step) => { if (view.drawn) show(view, step === null ? null : { run: 0, step, place: placeOf(view.axis.trends[0], step) }); });
  view.deaf = listen(() => redraw(view));
  document.addEventListener("fullscreenchange", left);
  view.refit = () => { if (view.state?.full) { view.shown = null; redraw(view); } };
  addEventListener("resize", view.refit);
  shortcuts(view);
}

// Draws what changed: never while somebody drags, and never twice the same.
function redraw(view) {
  if (!view.drawn || view.closed || view.pressed) return;
  const wanted = `${view.version} ${JSON.stringify(read())}`;
  if (wanted !== view.shown) draw(globalThis.Plotly, view);
}

async function draw(Plotly, view) {
  const asked = read();
  view.shown = `${view.version} ${JSON.stringify(asked)}`;
  const state = { ...asked, steps: within(asked.steps, view.places[0].steps) };
  view.state = state;
  view.axis = axisOf(view.places, state.x);
  const { traces, layout } = figureOf(view.data, view.base, view.axis, state, getComputedStyle(view.root).fontFamily);
  if (COARSE) layout.dragmode = false; // a finger scrolls the page
  layout.height = fitted(view, layout.height);
  layout.width = view.width = Math.round(view.frame.clientWidth);
  const first = !view.drawn;
  await Plotly.react(view.gd, traces, { ...layout }, CONFIG);
  view.traces = traces;
  view.layout = layout;
  view.drawn = true;
  view.wait.hidden = true;
  view.stage.setAttribute("aria-label", view.data.alt);
  view.frame.setAttribute("aria-label", `Chart of ${view.data.run}. Arrow keys read values, plus and minus zoom, question mark lists all keys.`);
  tools(view);
  headings(view);
  place(view);
  if (first) attend(Plotly, view);
  show(view, view.at ?? null);
  ask(view);
}

function attend(Plotly, view) {
  view.gd.on("plotly_relayout", (change) => relayout(view, change));
  view.gd.on("plotly_doubleclick", () => zoomTo(null));
  view.sizes = new ResizeObserver(() => resize(Plotly, view));
  view.sizes.observe(view.frame);
}

function resize(Plotly, view) {
  const width = Math.round(view.frame.clientWidth);
  if (!width || width === view.width) return;
  view.width = width;
  Plotly.relayout(view.gd, { width }).then(() => { place(view); show(view, view.at ?? null); });
}

// A zoom is the reader's, and outlives new data. It is in the address in steps, whatever the axis was.
function relayout(view, change) {
  const range = change["xaxis.range"] ?? ("xaxis.range[0]" in change ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : null);
  if (!range) return;
  const [low, high] = range.map(Number);
  const steps = stepsBetween(view.axis, low, high) ?? view.state.steps;
  view.pressed = false;
  view.shown = null; // plotly shows what was dragged, not what is in the address
  zoomTo(steps);
  redraw(view);
}

// A long run was thinned for another view than this: asks the server for the one that is wanted.
function ask(view) {
  clearTimeout(view.question);
  const { detail } = view.data;
  if (!detail) return;
  const { steps, smooth } = view.state;
  const same = String(detail.steps ?? "") === String(steps ?? "") && (!smooth || detail.smooth === smooth);
  if (!same) view.question = setTimeout(() => view.send("set", { steps: steps?.join(":") ?? null, smooth: smooth || null }), PATIENCE_MS);
}

function point(view, event) {
  const axis = view.gd._fullLayout?.xaxis;
  if (!axis || !view.axis) return;
  const place = axis.p2d(event.clientX - view.gd.getBoundingClientRect().left - axis._offset);
  view.row = event.clientY - view.gd.getBoundingClientRect().top;
  look(view, nearest(view.axis, place));
}
