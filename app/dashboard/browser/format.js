// Numbers and times as app/text/numbers.py writes them; change both together.

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const sign = value < 0 ? "\u2212" : "";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) {
    const [mantissa, exponent] = size.toExponential(2).split("e");
    return `${sign}${mantissa}e${Number(exponent)}`;
  }
  const off = Math.abs(1 - size);
  if (off > 0 && off < 0.01) {
    const digits = Math.min(6, Math.ceil(-Math.log10(off)) + 1);
    return sign + String(Number(size.toFixed(digits)));
  }
  if (size >= 1000) return sign + Math.round(size).toLocaleString("en-US");
  return sign + String(Number(size.toPrecision(3)));
}

// A round number beside an axis.
export const tick = (value) => number(value).replace(".00e", "e");

export const integer = (value) => Math.round(value).toLocaleString("en-US");

/** @type {[number, string][]} */
const SIZES = [[1e9, "G"], [1e6, "M"], [1e4, "k"]];

export function compact(value) {
  for (const [size, name] of SIZES) {
    if (value >= size) return `${Number((value / (name === "k" ? 1e3 : size)).toPrecision(3))}${name === "k" ? " k" : ` ${name}`}`;
  }
  return integer(value);
}

/** @type {[number, string][]} */
export const TIMES = [[86400, "d"], [3600, "h"], [60, "min"]];

export function duration(seconds) {
  for (const [size, name] of TIMES) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${name}`;
  }
  return `${Math.max(0, Math.floor(seconds))} s`;
}
