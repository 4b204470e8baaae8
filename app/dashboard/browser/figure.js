// The figure as the reader wants it: the server's traces placed on the chosen x axis, smoothed, hidden, on the chosen y scales.
// Pure: what the server sent and what the reader chose in, what plotly takes out.
import { placeOf, rangeOf } from "./axis.js";
import { isLog } from "./chart_state.js";
import { centredMedian, extent, logTicks, lonely, padded, widest } from "./traces.js";

const FAINT = 0.28; // values behind their smoothed line

export function figureOf(data, base, axis, state, family) {
  const range = rangeOf(axis, state.steps);
  const traces = base.flatMap((trace) => drawn(trace, data, axis, state));
  const layout = { ...data.figure.layout, font: { ...data.figure.layout.font, family } };
  layout.xaxis = { ...layout.xaxis, range, autorange: false, tickformat: axis.tickformat, title: { ...layout.xaxis.title, text: axis.title } };
  layout.shapes = layout.shapes.map((shape) => (shape.xref === "x" ? { ...shape, x0: placeOf(axis.trends[0], shape.x0), x1: placeOf(axis.trends[0], shape.x1) } : shape));
  layout.annotations = layout.annotations.map((words) => beside(words, placeOf(axis.trends[0], words.x), range));
  for (const row of data.rows) {
    const name = `yaxis${row.axis.slice(1)}`;
    layout[name] = yAxis(layout[name], row, traces, state, state.steps && range);
  }
  return { traces, layout };
}

// Words beside a line, on the side where there is room.
const beside = (words, x, [low, high]) => ({ ...words, x, xanchor: x > low + 0.85 * (high - low) ? "right" : "left", visible: x >= low && x <= high });

// The lines that a trace of the server becomes: itself, and its smoothed self in front of it.
function drawn(trace, data, axis, state) {
  const { meta } = trace;
  if (meta.smooth !== undefined && meta.smooth !== state.smooth) return [];
  const trend = axis.trends[meta.run ?? 0];
  const x = axis.shown === "step" ? trace.steps : Array.from(trace.steps, (step) => (step === null ? null : placeOf(trend, step)));
  const placed = { ...trace, x, visible: !state.hide.includes(meta.role) };
  const row = data.rows.find((each) => each.axis === meta.row);
  if (!row) return [placed];
  if (meta.line === undefined) return [isLog(state, row) ? lifted(placed) : placed];
  const shown = (y) => (isLog(state, row) ? y.map((value) => (value > 0 ? value : NaN)) : y); // the heading counts what has no place
  placed.y = shown(trace.y);
  mark(placed);
  if (!state.smooth || meta.smooth !== undefined) return [placed];
  const behind = { ...placed, opacity: FAINT };
  if (!trace.whole) return [behind]; // thinned points cannot be smoothed; the server has sent the line
  const smoothed = { ...placed, y: shown(centredMedian(trace.y, state.smooth)), meta: { ...meta, smooth: state.smooth } };
  return [behind, smoothed];
}

// A band that reaches down to 0 ends at the smallest value that a logarithmic axis has a place for.
function lifted(band) {
  const least = band.y.reduce((low, value) => (value > 0 && value < low ? value : low), Infinity);
  return { ...band, y: band.y.map((value) => (value <= 0 ? least : value)) };
}

function mark(trace) {
  const size = lonely(trace.y);
  trace.mode = size ? "lines+markers" : "lines";
  if (size) trace.marker = { color: trace.line.color, size, line: { width: 0 } };
}

// As the server laid it out, unless the reader zoomed, hid lines or wants the other scale: then around what is to be seen.
function yAxis(layout, row, traces, state, range) {
  const log = isLog(state, row);
  const hidden = row.lines.some((line) => state.hide.includes(line.role));
  if (!range && !hidden && log === row.log) return { ...layout, autorange: !layout.range };
  const lines = traces.filter((trace) => trace.meta?.row === row.axis && trace.visible);
  const seen = lines.map((trace) => extent(trace, range, log)).reduce(widest, null);
  const axis = { ...layout, type: log ? "log" : "linear", zeroline: !log, tickformat: log ? ".2~e" : "", dtick: null, range: undefined, autorange: true };
  if (!seen) return axis;
  const shown = padded(seen, !log && layout.rangemode === "tozero");
  return { ...axis, range: shown, autorange: false, dtick: log ? logTicks(shown) : null };
}
