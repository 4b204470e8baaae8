// Numbers of a figure's traces: unpacked, smoothed, placed on an axis, measured.

const ARRAYS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, i1: Int8Array };

// A copy of `trace` whose packed arrays are typed arrays; `steps` are its x values whatever the axis will be: its own, or those of its
// run (`places`), which a run that was sent whole has once for all lines.
export function unpack(trace, places) {
  const whole = trace.x === undefined;
  const steps = whole ? places[trace.meta.run].steps : unpackArray(trace.x);
  return { ...trace, x: steps, y: unpackArray(trace.y), steps, whole };
}

export function unpackArray(packed) {
  if (packed?.bdata === undefined) return packed;
  const text = atob(packed.bdata);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) bytes[at] = text.charCodeAt(at); // `Uint8Array.from` takes ten times as long
  return new ARRAYS[packed.dtype](bytes.buffer);
}

// Medians of the `steps` values around each one. Windows are odd, end where a gap (NaN) begins and are shorter at the ends; a gap
// stays a gap. The rule of app/dashboard/charts/lines.py; change both together.
export function centredMedian(y, steps) {
  const half = steps >> 1;
  const result = new Float64Array(y.length).fill(NaN);
  for (let start = 0; start < y.length; start += 1) {
    if (Number.isNaN(y[start])) continue;
    let end = start;
    while (end < y.length && !Number.isNaN(y[end])) end += 1;
    slide(y, start, end, half, result);
    start = end;
  }
  return result;
}

function slide(y, start, end, half, result) {
  const sorted = [];
  for (let at = start; at < Math.min(start + half, end); at += 1) sorted.splice(lowerBound(sorted, y[at]), 0, y[at]);
  for (let at = start; at < end; at += 1) {
    if (at + half < end) sorted.splice(lowerBound(sorted, y[at + half]), 0, y[at + half]);
    if (at - half - 1 >= start) sorted.splice(lowerBound(sorted, y[at - half - 1]), 1);
    const middle = sorted.length >> 1;
    result[at] = sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }
}

// Index of the first of `sorted` that is not below `value`.
export function lowerBound(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Markers that make points between two gaps visible, which have no line to be seen by; null where there are none.
export function lonely(y) {
  const there = (at) => at >= 0 && at < y.length && Number.isFinite(y[at]);
  let some = false;
  const sizes = Array.from(y, (_, at) => {
    const alone = there(at) && !there(at - 1) && !there(at + 1);
    some ||= alone;
    return alone ? 4 : 0;
  });
  return some ? sizes : null;
}

// Lowest and highest y between two places (null: anywhere), in decades on a logarithmic axis; null: there is nothing to see.
// One point beyond either side counts: lines enter and leave the view.
/** @returns {[number, number] | null} */
export function extent({ x, y }, range, log) {
  let low = Infinity;
  let high = -Infinity;
  for (let at = 0; at < x.length; at += 1) {
    if (Number.isNaN(x[at]) || (range && (x[at + 1] < range[0] || x[at - 1] > range[1]))) continue;
    const value = log ? Math.log10(y[at]) : y[at];
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : null;
}

/** @type {(a: [number, number] | null, b: [number, number] | null) => [number, number] | null} */
export const widest = (a, b) => (a && b ? [Math.min(a[0], b[0]), Math.max(a[1], b[1])] : (a ?? b));

/** @returns {[number, number]} */
export function padded([low, high], fromZero) {
  const bottom = fromZero ? Math.min(0, low) : low;
  const room = (high - bottom || Math.abs(high) * 0.1 || 1) * 0.08;
  return [fromZero ? bottom : bottom - room, high + room];
}

// Ticks of a logarithmic axis between two powers of ten: those of charts/scales.py, and on the shortest ones even steps.
export function logTicks([low, high]) {
  const decades = high - low;
  if (decades < 0.35) return `L${nice((10 ** high - 10 ** low) / 4)}`;
  return decades < 1.6 ? "D2" : Math.ceil(decades / 4);
}

// The smallest of 1, 2, 5 times a power of ten that is not below `step`.
function nice(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return [1, 2, 5, 10].find((factor) => factor * power >= step * 0.999) * power;
}
