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
