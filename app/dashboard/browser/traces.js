// Numbers as the server packs them (charts/packing.py).

const ARRAYS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, i1: Int8Array };

export function unpackArray(packed) {
  if (packed?.bdata === undefined) return packed;
  const text = atob(packed.bdata);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) bytes[at] = text.charCodeAt(at); // `Uint8Array.from` takes ten times as long
  return new ARRAYS[packed.dtype](bytes.buffer);
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
