// Round places on an axis, for the charts that are drawn without a library.

// 1, 2 or 5 times a power of ten apart, at least `least`: about `count` of them between two ends.
export function ticks(low, high, count, least = 0) {
  const rough = Math.max((high - low) / count, least);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough * 0.999);
  const values = [];
  for (let at = Math.ceil(low / step); at <= Math.floor(high / step); at += 1) values.push(Number((at * step).toPrecision(12)));
  return values;
}

// The same on a logarithmic axis whose ends are decades: powers of ten, with 2 and 5 times these where there is room. Within a
// part of a decade, even steps.
export function logTicks(low, high, count) {
  if (high - low < 0.5) return ticks(10 ** low, 10 ** high, count);
  const digits = high - low < 2 ? [1, 2, 5] : [1];
  const powers = Array.from({ length: Math.ceil(high) - Math.floor(low) + 1 }, (_, at) => Math.floor(low) + at);
  const all = powers.flatMap((power) => digits.map((digit) => Number((digit * 10 ** power).toPrecision(12)))).filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
  const every = Math.ceil(all.length / (count + 2));
  return all.filter((_, at) => at % every === 0);
}

// Lowest and highest finite one of `values`; where there is none, 0 and 1.
/** @returns {[number, number]} */
export function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}
