import assert from "node:assert/strict";
import { test } from "node:test";

import { centredMedian, extent, logTicks, lonely, lowerBound, padded, unpack, unpackArray, widest } from "../../app/dashboard/browser/traces.js";

const packed = (values) => ({ dtype: "f8", bdata: Buffer.from(Float64Array.from(values).buffer).toString("base64") });

test("packed arrays are the numbers that were sent, NaN and infinities included", () => {
  const sent = [1.5, NaN, -Infinity, 5e-324];
  assert.deepEqual([...unpackArray(packed(sent))], sent);
  assert.deepEqual(unpackArray([1, 2]), [1, 2]);
});

test("a trace that was sent whole has the steps of its run", () => {
  const trace = unpack({ y: packed([1, 2]), meta: { run: 1 } }, [{ steps: [0] }, { steps: [3, 4] }]);
  assert.deepEqual(trace.x, [3, 4]);
  assert.equal(trace.whole, true);
});

test("medians are those of a plain computation, stop at gaps and keep them", () => {
  const values = Array.from({ length: 200 }, (_, at) => ((at * 7919) % 101) / 10);
  for (const at of [0, 50, 51, 120]) values[at] = NaN;
  for (const steps of [5, 11]) assert.deepEqual([...centredMedian(Float64Array.from(values), steps)], plainly(values, steps));
});

function plainly(values, steps) {
  const half = Math.floor(steps / 2);
  return values.map((value, at) => {
    if (Number.isNaN(value)) return NaN;
    let [start, end] = [at, at];
    while (start > 0 && at - start < half && !Number.isNaN(values[start - 1])) start -= 1;
    while (end < values.length - 1 && end - at < half && !Number.isNaN(values[end + 1])) end += 1;
    const sorted = values.slice(start, end + 1).sort((a, b) => a - b);
    const middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  });
}

test("the extent of what is seen counts one point beyond either side", () => {
  const trace = { x: [0, 1, 2, 3, 4], y: [100, 1, 2, 3, NaN] };
  assert.deepEqual(extent(trace, [2, 2], false), [1, 3]);
  assert.deepEqual(extent({ x: [0, 1], y: [0, 10] }, null, true), [1, 1]); // 0 has no place on a logarithmic axis
  assert.equal(extent({ x: [0], y: [NaN] }, null, false), null);
  assert.deepEqual([null, [1, 2], [0, 1]].reduce(widest, null), [0, 2]);
});

test("a flat line still has room around it", () => {
  const [low, high] = padded([2, 2], false);
  assert.ok(low < 2 && high > 2);
  assert.equal(padded([2, 3], true)[0], 0);
});

test("points between gaps get a marker", () => {
  assert.deepEqual(lonely([NaN, 1, NaN, 2, 3]), [0, 4, 0, 0, 0]);
  assert.equal(lonely([1, 2]), null);
});

test("sorted places are found, ties included", () => {
  assert.deepEqual([0, 1, 2, 5, 9].map((value) => lowerBound([1, 2, 2, 5], value)), [0, 0, 1, 3, 4]);
});

test("logarithmic ticks thin out as the axis gets longer", () => {
  assert.equal(logTicks([-4, -3]), "D2");
  assert.equal(logTicks([-8, 0]), 2);
  assert.match(String(logTicks([0, 0.1])), /^L0\.1$/);
});
