// What stands around the figure: legend, choices, headings with the values under the crosshair.
import { beside, rangeOf } from "./axis.js";
import { AXES, SMOOTHINGS, drawOver, hide, isLog, noteOf, scaleAs, smoothOver, zoomTo } from "./chart_state.js";
import { point } from "./cursor.js";
import { focusedKey, node } from "./dom.js";
import { saveCsv, savePng } from "./exports.js";
import { integer, number } from "./format.js";
import { toggle } from "./full.js";
import { picker, picks } from "./picker.js";
import { lowerBound } from "./traces.js";

const AXIS_NAMES = { step: "steps", tokens: "tokens", time: "time", onset: "since onset" };

export function toolbar(view) {
  view.legend = node("span", { class: "lp-legend", role: "group", "aria-label": "lines" });
  view.over = node("select", { "aria-label": "x axis", onchange: (event) => drawOver(event.target.value) });
  view.smooth = node("select", { "aria-label": "smoothing", onchange: (event) => smoothOver(Number(event.target.value)) });
  view.whole = node("button", { class: "lp-tool", type: "button", onclick: () => toggle(view) });
  view.reset = node("button", { class: "lp-reset", type: "button", hidden: true, text: "reset zoom", onclick: () => zoomTo(null) });
  view.cursor = node("span", { class: "lp-cursor" });
  view.spoken = node("span", { class: "lp-spoken", role: "status", "aria-live": "polite" });
  view.kinds = node("span", { class: "lp-kinds" });
  view.remark = node("span", { class: "lp-note" });
  const save = (text, help, action) => node("button", { class: "lp-tool", type: "button", title: help, text, onclick: action });
  return node("div", { class: "lp-tools" }, view.legend,
    node("label", { class: "lp-over" }, "x", view.over), node("label", { class: "lp-over" }, "smooth", view.smooth),
    save("CSV", "the steps and lines that are shown, as measured, with all digits (e)", () => saveCsv(view)),
    save("PNG", "the picture with headings and legend (p)", () => savePng(view)), picker(view), view.whole, view.reset, view.remark, view.cursor, view.kinds, view.spoken);
}

// Brings the tools up to date; what has the focus keeps it.
export function tools(view) {
  const { data, state, axis } = view;
  refill(view.legend, data.legend.map((entry) => key(entry, state)));
  refill(view.over, AXES.map((x) => option(x, AXIS_NAMES[x], axis.shown === x, x === "step" ? "" : missing(data, x))));
  const lengths = SMOOTHINGS.includes(state.smooth) ? SMOOTHINGS : [...SMOOTHINGS, state.smooth];
  refill(view.smooth, lengths.map((steps) => option(steps, steps ? `${steps} steps` : "none", state.smooth === steps)));
  refill(view.kinds, data.kinds.map(({ name, sign, color }) => node("span", { class: "lp-kind" }, node("i", { style: `color:${color}`, "aria-hidden": "true", text: sign }), name)));
  const unable = axis.shown === state.x ? "" : `not over ${AXIS_NAMES[state.x]}: ${missing(data, state.x)}`;
  view.remark.textContent = [unable, data.note].filter(Boolean).join(" · ");
  view.remark.title = data.note ? data.note_help : "";
  view.reset.hidden = !state.steps;
  view.whole.textContent = state.full ? "exit full screen" : "full screen";
  view.whole.title = state.full ? "the page as it was (f or Escape)" : "only the verdict and the charts, on all of the window (f)";
  picks(view);
}

const missing = (data, x) => data.places.map(({ why }) => why[x]).find(Boolean) ?? "";

const option = (value, text, selected, why = "") => node("option", { value, text: why ? `${text} (unknown)` : text, selected, disabled: Boolean(why), title: why || undefined });

function refill(element, children) {
  const fresh = node("div", {}, ...children);
  if (element.innerHTML === fresh.innerHTML) return;
  const focused = focusedKey(element);
  element.replaceChildren(...fresh.childNodes);
  if (focused) [...element.children].find((child) => child instanceof HTMLElement && child.dataset.key === focused)?.focus();
}

function key({ name, role, color, dash, help }, state) {
  const hidden = state.hide.includes(role);
  return node("button", {
    class: `lp-key${hidden ? " lp-off" : ""}`, type: "button", title: help, "data-key": role, "aria-pressed": String(!hidden), onclick: () => hide(role, !hidden),
  }, swatch(color, dash), name);
}

function swatch(color, dash) {
  return node("i", { class: `lp-swatch lp-${dash}`, style: `border-color:${color}`, "aria-hidden": "true" });
}

export function headings(view) {
  const { layout, data, state } = view;
  const inner = layout.height - layout.margin.t - layout.margin.b;
  const focused = focusedKey(view.headings);
  view.readouts = [];
  view.headings.replaceChildren(...data.rows.map((row) => {
    const top = layout.margin.t + (1 - layout[`yaxis${row.axis.slice(1)}`].domain[1]) * inner;
    const log = isLog(state, row);
    return node("div", { class: "lp-heading", style: `top:${top.toFixed(1)}px` },
      node("h3", { title: row.help, "aria-level": state.full ? "2" : null }, row.title, row.unit ? node("span", { class: "lp-unit", text: row.unit }) : null),
      node("button", {
        class: "lp-scale", type: "button", "data-key": row.key, text: log ? "log" : "linear", title: `y axis: ${log ? "logarithmic" : "linear"}; switch (l)`,
        "aria-label": `${row.title}, y axis: ${log ? "log" : "linear"}, switch`, onclick: () => scaleAs(row.key, !log, row.log),
      }),
      note(row, state),
      node("span", { class: "lp-values" }, ...row.lines.map((line) => readout(view, row, line))));
  }));
  if (focused) view.headings.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  view.absent.hidden = !data.absent;
  view.absent.textContent = data.absent ?? "";
}

const note = (row, state) => (noteOf(row, state) ? node("span", { class: "lp-note", text: noteOf(row, state) }) : null);

function readout(view, row, line) {
  const value = node("b");
  const known = view.data.legend.some((entry) => entry.name === line.name);
  view.readouts.push({ value, row, line });
  return node("span", { class: `lp-readout${view.state.hide.includes(line.role) ? " lp-off" : ""}` }, swatch(line.color, line.dash),
    row.lines.length > 1 ? node("span", { class: `lp-role lp-role-${known ? "known" : "own"}`, text: line.name }) : null, value);
}

// The reader's own crosshair: the page's other charts follow to the same step of the first run.
export function look(view, cursor) {
  show(view, cursor);
  point(view, cursor?.run === 0 ? cursor.step : null);
}

// Values at the step under the crosshair, or the newest ones when it is elsewhere (null).
export function show(view, cursor) {
  view.at = cursor;
  for (const { value, row, line } of view.readouts ?? []) value.textContent = cursor ? valueAt(view, row, line, cursor) : number(line.latest);
  const axis = view.gd._fullLayout?.xaxis;
  const pixel = cursor && axis ? axis._offset + axis.d2p(cursor.place) : null;
  view.line.hidden = pixel === null || pixel < axis._offset - 1 || pixel > axis._offset + axis._length + 1;
  if (pixel !== null) view.line.style.transform = `translateX(${pixel}px)`;
  view.cursor.textContent = cursor ? words(view, cursor) : shownSteps(view);
}

function words(view, cursor) {
  const happened = view.data.events.filter((event) => event.step === cursor.step).map((event) => event.words);
  return [`${whose(view, cursor.run)}step ${integer(cursor.step)}`, elsewhere(view, cursor), ...happened.slice(0, 3)].filter(Boolean).join(" · ");
}

const whose = (view, run) => (view.axis.trends.length > 1 ? `${view.axis.trends[run].name} ` : "");

function elsewhere({ axis }, { place }) {
  if (axis.shown === "time") return `${number(place)} ${axis.unit}`;
  return { tokens: `${integer(place)} tokens`, onset: `${place >= 0 ? "+" : ""}${integer(place)} since onset` }[axis.shown];
}

function shownSteps({ state }) {
  return state?.steps ? `steps ${integer(state.steps[0])} – ${integer(state.steps[1])}` : "";
}

// A value as it was measured. Where a long run was thinned and this step left out: between what its neighbours reach.
function valueAt(view, row, line, cursor) {
  const step = beside(view.axis, line.run, cursor);
  const traces = view.base.filter(({ meta }) => meta.row === row.axis && meta.run === line.run && meta.smooth === undefined);
  const trace = traces.find(({ meta }) => meta.line === line.line);
  if (!trace || step === null) return number(null);
  const at = lowerBound(trace.steps, step);
  if (trace.steps[at] === step) return number(trace.y[at]);
  const band = traces.find(({ meta }) => meta.of === line.line);
  return band ? between(band, step) : number(null);
}

// Both edges of a band at its place nearest to a step.
function between({ steps, y }, step) {
  let best = 0;
  for (let at = 1; at < steps.length; at += 1) if (Math.abs(steps[at] - step) < Math.abs(steps[best] - step)) best = at;
  const edges = [...y.keys()].filter((at) => steps[at] === steps[best] && !Number.isNaN(y[at])).map((at) => y[at]);
  return edges.length ? `${number(Math.min(...edges))} … ${number(Math.max(...edges))}` : number(null);
}

// The values under the crosshair in words, for those who hear them.
export function speak(view) {
  const values = view.readouts.filter(({ line }) => !view.state.hide.includes(line.role)).map(({ value, row, line }) => `${row.title} ${line.name} ${value.textContent}`);
  view.spoken.textContent = `${view.cursor.textContent}. ${values.slice(0, 6).join(", ")}`;
}

export const inView = (view, place) => {
  const [low, high] = rangeOf(view.axis, view.state.steps);
  return place >= low && place <= high;
};
