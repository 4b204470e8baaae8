// A plotly figure that stays mounted while its data grows, with headings that read the values under the pointer: Streamlit's own chart
// is made again with every change of its data, and does not say what it is zoomed to. What the reader chose is in the address; the
// server draws by it.
import { asked, listen } from "./address.js";
import { focusedKey, node, saveAs } from "./dom.js";
import { integer, number } from "./format.js";
import { lowerBound, unpackArray } from "./traces.js";

const CONFIG = { displayModeBar: false, responsive: false, scrollZoom: false, doubleClick: false, showTips: false };
const COARSE = globalThis.matchMedia?.("(pointer: coarse)").matches;
const PATIENCE_MS = 3000; // until a zoom that the server did not hear of is given up
const PICTURE = { width: 1200, scale: 2 };
let failures = 0;

// The browser has it once, for all figures of the page. It remembers a failure by the address: the next figure asks by another.
async function library(address) {
  const again = failures ? `?again=${failures}` : "";
  await import(new URL(address + again, document.baseURI).href).catch((error) => { failures += 1; throw error; });
  return globalThis.Plotly;
}

export function update(root, view) {
  if (!view.plot) build(root, view);
  if (view.version === view.data.version) return;
  library(`${view.data.assets}/plotly-basic.min.js`).then((Plotly) => draw(Plotly, root, view)).catch((error) => {
    view.wait.textContent = `The charts could not be drawn: ${error.message}. Reload the page to try again.`;
    view.wait.hidden = false;
  });
}

export function close(_root, view) {
  view.closed = true;
  view.sizes?.disconnect();
  view.deaf?.();
  for (const name of ["pointerup", "pointercancel"]) removeEventListener(name, view.release);
  if (view.plot) globalThis.Plotly?.purge(view.plot);
}

function build(root, view) {
  view.plot = node("div", { class: "lp-plot" });
  view.headings = node("div", { class: "lp-headings" });
  view.line = node("div", { class: "lp-line", hidden: true });
  view.wait = node("p", { class: "lp-wait", text: "Loading charts …" });
  view.stage = node("div", { class: "lp-stage", role: "img" }, view.plot);
  view.frame = node("div", { class: "lp-frame", tabindex: 0, role: "group", "aria-roledescription": "chart" }, view.stage, view.headings, view.line, view.wait);
  view.legend = node("span", { class: "lp-legend", role: "group", "aria-label": "lines" });
  view.kinds = node("span", { class: "lp-kinds" });
  view.note = node("span", { class: "lp-note" });
  view.cursor = node("span", { class: "lp-cursor" });
  view.spoken = node("span", { class: "lp-spoken", role: "status", "aria-live": "polite" });
  view.absent = node("p", { class: "lp-absent", hidden: true });
  const picture = node("button", { class: "lp-tool", type: "button", text: "PNG", title: "the picture, with the names of its rows", onclick: () => save(view) });
  root.replaceChildren(node("section", { class: "lp lp-chart" },
    node("div", { class: "lp-tools" }, view.legend, picture, view.note, view.cursor, view.kinds, view.spoken), view.frame, view.absent));
  view.frame.addEventListener("pointermove", (event) => point(view, event));
  view.frame.addEventListener("pointerdown", (event) => { view.pressed = event.pointerType !== "touch"; point(view, event); });
  view.frame.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") show(view, null); });
  view.frame.addEventListener("blur", () => show(view, null));
  view.frame.addEventListener("keydown", (event) => key(view, event));
  view.release = () => { view.pressed = false; if (view.late) update(root, view); };
  for (const name of ["pointerup", "pointercancel"]) addEventListener(name, view.release);
  view.deaf = listen(() => { if (view.drawn && view.sent !== (asked("steps") ?? "")) zoom(view, asked("steps")); });
}

// Never while somebody drags, and never behind a zoom that the server does not know of yet.
async function draw(Plotly, root, view) {
  const { data } = view;
  const behind = (asked("steps") ?? "") !== data.steps && performance.now() - (view.zoomed ?? -PATIENCE_MS) < PATIENCE_MS;
  view.late = Boolean(view.pressed) || behind;
  if (view.closed || view.late || view.version === data.version) return;
  view.version = data.version;
  view.sent = data.steps;
  const columns = data.columns.map(unpackArray);
  view.traces = data.figure.data.map((trace) => ({ ...trace, x: typeof trace.x === "number" ? columns[trace.x] : trace.x, y: unpackArray(trace.y) }));
  view.stops = stopsOf(data);
  const { layout } = data.figure;
  view.layout = { ...layout, font: { ...layout.font, family: getComputedStyle(root).fontFamily }, width: Math.round(view.frame.clientWidth), dragmode: COARSE ? false : layout.dragmode };
  await Plotly.react(view.plot, view.traces, { ...view.layout }, CONFIG);
  view.wait.hidden = true;
  around(view);
  if (!view.drawn) attend(Plotly, view);
  view.drawn = true;
  show(view, view.at ?? null);
}

function attend(Plotly, view) {
  view.plot.on("plotly_relayout", (change) => relayout(view, change));
  view.plot.on("plotly_doubleclick", () => { if (view.data.zooms) zoom(view, null); });
  view.sizes = new ResizeObserver(() => {
    const width = Math.round(view.frame.clientWidth);
    if (width && width !== view.plot._fullLayout.width) Plotly.relayout(view.plot, { width }).then(() => show(view, view.at ?? null));
  });
  view.sizes.observe(view.frame);
}

// Places that the reader can go to, of all runs: { run, name, step, place, words }, in their order on the axis.
function stopsOf({ stops }) {
  const all = stops.flatMap(({ name, steps, places, words: said }, run) => {
    const at = unpackArray(places ?? steps);
    return Array.from(unpackArray(steps), (step, index) => ({ run, name, step, place: at[index], words: said?.[index] }));
  });
  return all.filter(({ place }) => Number.isFinite(place)).sort((a, b) => a.place - b.place);
}

// --- Zoom: in the address in steps, whatever the axis is ---

function zoom(view, steps) {
  view.zoomed = performance.now();
  view.sent = steps ?? "";
  view.send("set", { steps });
}

function relayout(view, change) {
  const range = change["xaxis.range"] ?? ("xaxis.range[0]" in change ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : null);
  if (!range) return;
  const [low, high] = range.map(Number);
  const steps = view.stops.filter(({ run, place }) => run === 0 && place >= low && place <= high).map(({ step }) => step);
  view.pressed = false;
  view.version = null; // plotly shows what was dragged: draw what the server answers, also where that is what there was
  zoom(view, steps.length ? `${steps[0]}:${steps.at(-1)}` : asked("steps"));
}

function nearer(view, factor) {
  const own = view.stops.filter(({ run }) => run === 0);
  const [first, last] = [own[0].step, own.at(-1).step];
  const [low, high] = view.data.window ?? [first, last];
  const middle = view.at?.run === 0 ? view.at.step : (low + high) / 2;
  const half = Math.max(1, ((high - low) * factor) / 2);
  const [from, to] = [Math.max(first, Math.floor(middle - half)), Math.min(last, Math.ceil(middle + half))];
  zoom(view, from <= first && to >= last ? null : `${from}:${to}`);
}

// --- Reading: by pointer, or by arrow keys ---

function nearest(view, place) {
  const at = lowerBound(view.stops.map((stop) => stop.place), place);
  const [before, after] = [view.stops[at - 1], view.stops[at]];
  return after && (!before || after.place - place < place - before.place) ? after : (before ?? null);
}

function point(view, event) {
  const axis = view.plot._fullLayout?.xaxis;
  if (axis && view.stops && (view.data.zooms || view.data.rows.length)) show(view, nearest(view, axis.p2d(event.clientX - view.plot.getBoundingClientRect().left - axis._offset)));
}

function key(view, event) {
  if (!view.drawn || event.target !== view.frame || event.ctrlKey || event.metaKey || event.altKey) return;
  const way = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
  if (way) {
    const axis = view.plot._fullLayout.xaxis;
    const [low, high] = axis.range.map(axis.r2l);
    const own = view.stops.filter(({ run, place }) => run === (view.at?.run ?? 0) && place >= low && place <= high);
    if (!own.length) return;
    const now = view.at ? own.findIndex((stop) => stop === view.at || stop.place > view.at.place || (stop.place === view.at.place && !stop.words)) : way > 0 ? -1 : own.length;
    show(view, own[Math.max(0, Math.min(own.length - 1, now + way * (event.shiftKey ? 10 : 1)))]);
    speak(view);
  } else if (factor && view.data.zooms) nearer(view, factor);
  else if (event.key === "0" && view.data.zooms) zoom(view, null);
  else return;
  event.preventDefault();
}

// Values at a stop, or the newest ones (null).
function show(view, stop) {
  view.at = stop;
  for (const { value, row, line } of view.readouts ?? []) value.textContent = stop ? valueAt(view, row, line, stop) : number(line.latest);
  const axis = view.plot._fullLayout?.xaxis;
  const pixel = stop && axis ? axis._offset + axis.d2p(stop.place) : null;
  view.line.hidden = pixel === null || pixel < axis._offset - 1 || pixel > axis._offset + axis._length + 1;
  if (pixel !== null) view.line.style.transform = `translateX(${pixel}px)`;
  const { window, unit } = view.data;
  view.cursor.textContent = stop ? words(view, stop, unit) : window ? `steps ${integer(window[0])} – ${integer(window[1])}` : "";
}

function words(view, { run, name, step, place, words: said }, unit) {
  if (said) return said;
  const happened = view.data.events.filter((event) => event.step === step).map((event) => event.words);
  const where = unit ? `${unit === "tokens" ? integer(place) : number(place)} ${unit}` : "";
  return [`${view.data.stops.length > 1 && run >= 0 ? `${name} ` : ""}${view.data.axis ?? "step"} ${integer(step)}`, where, ...happened.slice(0, 3)].filter(Boolean).join(" · ");
}

// A value as it was measured. Where a long run was thinned and this step left out: between what its neighbours reach.
function valueAt(view, row, line, { run, place }) {
  const own = view.traces.filter(({ meta }) => meta.row === row.axis && meta.run === line.run && meta.smooth === undefined);
  const trace = own.find(({ meta }) => meta.line === line.line);
  if (!trace) return number(null);
  const after = lowerBound(trace.x, place);
  if (trace.x[after] === place) return number(trace.y[after]);
  const band = own.find(({ meta }) => meta.of === line.line);
  if (band) return between(band, place);
  const at = after > 0 && !(trace.x[after] - place < place - trace.x[after - 1]) ? after - 1 : after;
  const reach = Math.abs((trace.x[at + 1] ?? trace.x[at - 1]) - trace.x[at]) / 2;
  return number(run !== line.run && Math.abs(trace.x[at] - place) <= reach ? trace.y[at] : null);
}

// Both edges of a band at its place nearest to `place`.
function between({ x, y }, place) {
  let best = 0;
  for (let at = 1; at < x.length; at += 1) if (Math.abs(x[at] - place) < Math.abs(x[best] - place)) best = at;
  const edges = [...y.keys()].filter((at) => x[at] === x[best] && !Number.isNaN(y[at])).map((at) => y[at]);
  return edges.length ? `${number(Math.min(...edges))} … ${number(Math.max(...edges))}` : number(null);
}

function speak(view) {
  const values = view.readouts.map(({ value, row, line }) => `${row.title} ${line.name} ${value.textContent}`);
  view.spoken.textContent = [view.cursor.textContent, values.slice(0, 6).join(", ")].filter(Boolean).join(". ");
}

// --- What stands around the figure; what has the focus keeps it ---

function around(view) {
  const { data } = view;
  refill(view.legend, data.legend.map(({ name, role, color, dash, help, hidden, other }) => node("button", {
    class: `lp-key${hidden ? " lp-off" : ""}`, type: "button", title: help, "data-key": role, "aria-pressed": String(!hidden), onclick: () => view.send("set", other),
  }, swatch(color, dash), name)));
  view.kinds.replaceChildren(...data.kinds.map(({ name, sign, color }) => node("span", { class: "lp-kind" }, node("i", { style: `color:${color}`, "aria-hidden": "true", text: sign }), name)));
  view.note.textContent = data.note;
  view.note.title = data.note ? data.note_help : "";
  view.stage.setAttribute("aria-label", data.alt);
  view.frame.setAttribute("aria-label", `Chart of ${data.run}. Arrow keys read values${data.zooms ? ", plus and minus zoom, 0 shows all steps" : ""}.`);
  view.absent.hidden = !data.absent;
  view.absent.textContent = data.absent;
  view.readouts = [];
  refill(view.headings, data.rows.map((row) => heading(view, row)));
}

function heading(view, row) {
  const { height, margin } = view.layout;
  const top = margin.t + (1 - view.layout[`yaxis${row.axis.slice(1)}`].domain[1]) * (height - margin.t - margin.b);
  const kind = row.log ? "log" : "linear";
  return node("div", { class: "lp-heading", style: `top:${top.toFixed(1)}px` },
    node("h3", { title: row.help }, row.title, row.unit ? node("span", { class: "lp-unit", text: row.unit }) : null),
    row.other === null ? null : node("button", { class: "lp-scale", type: "button", "data-key": row.key, text: kind, title: "switch the y axis", "aria-label": `${row.title}, y axis: ${kind}, switch`, onclick: () => view.send("set", row.other) }),
    row.note ? node("span", { class: "lp-note", text: row.note }) : null,
    node("span", { class: "lp-values" }, ...row.lines.map((line) => readout(view, row, line))));
}

function readout(view, row, line) {
  const value = node("b");
  const known = view.data.legend.some(({ name }) => name === line.name);
  view.readouts.push({ value, row, line });
  return node("span", { class: "lp-readout" }, swatch(line.color, line.dash),
    row.lines.length > 1 ? node("span", { class: `lp-role lp-role-${known ? "known" : "own"}`, text: line.name }) : null, value);
}

const swatch = (color, dash) => node("i", { class: `lp-swatch lp-${dash}`, style: `border-color:${color}`, "aria-hidden": "true" });

function refill(element, children) {
  const focused = focusedKey(element);
  element.replaceChildren(...children);
  if (focused) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

// --- The picture: with the names of its rows, on the page's colour ---

async function save(view) {
  const look = getComputedStyle(view.frame);
  const page = look.getPropertyValue("--st-background-color").trim() || "#ffffff";
  const names = view.data.rows.map((row) => caption(`<b>${plain(row.title)}</b> ${plain(row.unit)} ${row.lines.map((line) => `<span style="color:${line.color}">${plain(line.name)}</span>`).join(" ")}`, view.layout[`yaxis${row.axis.slice(1)}`].domain[1], 3, look.color));
  const run = caption(`<b>${plain(view.data.run)}</b> ${plain(view.cursor.textContent)}`, 1, 12, look.color);
  const { margin, height } = view.layout;
  const layout = { ...view.layout, height: height + 30, width: PICTURE.width, margin: { ...margin, t: margin.t + 30 }, paper_bgcolor: page, plot_bgcolor: page, annotations: [...view.layout.annotations, run, ...names] };
  const picture = await globalThis.Plotly.toImage({ data: view.traces, layout, config: CONFIG }, { format: "png", width: PICTURE.width, height: layout.height, scale: PICTURE.scale });
  saveAs(picture, `${view.data.run}${view.data.window ? `-steps-${view.data.window.join("-")}` : ""}.png`);
}

const caption = (text, y, yshift, color) => ({ text, x: 0, y, yshift, xshift: -46, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 12, color } });

// Plotly reads its texts as markup; names of runs are not.
const plain = (text) => String(text).slice(0, 200).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
