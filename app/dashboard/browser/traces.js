// Reading the numbers of a figure's traces.

const ARRAYS = { f8: Float64Array, f4: Float32Array, i4: Int32Array };

// A copy of `trace` whose packed arrays are typed arrays.
export function unpack(trace) {
  const result = { ...trace };
  for (const name of ["x", "y"]) result[name] = unpackArray(trace[name]);
  return result;
}

export function unpackArray(packed) {
  if (packed?.bdata === undefined) return packed;
  const bytes = Uint8Array.from(atob(packed.bdata), (character) => character.charCodeAt(0));
  return new ARRAYS[packed.dtype](bytes.buffer);
}

// Index of the first x that is not below `value`.
function lowerBound(x, value) {
  let low = 0;
  let high = x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

export function valueAt(trace, step) {
  if (!trace) return null;
  const at = lowerBound(trace.x, step);
  return trace.x[at] === step ? trace.y[at] : null;
}

// The rule of app/figures.py: 1-2-5 on short logarithmic axes; null leaves it to plotly.
export function logTicks(decades) {
  if (decades < 0.35) return null;
  return decades < 1.6 ? "D2" : Math.ceil(decades / 4);
}

// Per row: y range of what is visible between `zoom`, with room around it; null: leave it to plotly.
export function rangeOfRows(layout, traces, zoom) {
  const rows = new Map();
  for (const trace of traces) {
    if (!trace.meta) continue;
    const axis = `yaxis${trace.meta.row.slice(1)}`;
    const log = layout[axis].type === "log";
    rows.set(axis, widest(rows.get(axis), zoom ? extent(trace, zoom, log) : null));
  }
  return [...rows].map(([axis, range]) => [axis, range && padded(range, layout[axis].rangemode === "tozero")]);
}

function extent(trace, [from, to], log) {
  let low = Infinity;
  let high = -Infinity;
  // One point beyond either side: lines enter and leave the view.
  const start = Math.max(0, lowerBound(trace.x, from) - 1);
  for (let at = start; at < trace.x.length; at += 1) {
    const value = log ? Math.log10(trace.y[at]) : trace.y[at];
    if (Number.isFinite(value)) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    if (trace.x[at] > to) break;
  }
  return low <= high ? [low, high] : null;
}

const widest = (a, b) => (a && b ? [Math.min(a[0], b[0]), Math.max(a[1], b[1])] : (a ?? b));

function padded([low, high], fromZero) {
  const bottom = fromZero ? Math.min(0, low) : low;
  const room = (high - bottom || Math.abs(high) * 0.1 || 1) * 0.08;
  return [fromZero ? bottom : bottom - room, high + room];
}
