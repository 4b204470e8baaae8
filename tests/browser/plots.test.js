import assert from "node:assert/strict";
import { test } from "node:test";

import { hear, leave, point } from "../../app/dashboard/browser/cursor.js";
import { bandPath, linePath, nearestIndex, scaleOf, upright } from "../../app/dashboard/browser/plot.js";
import { following, rowsOf, valueAt } from "../../app/dashboard/browser/plots.js";
import { logTicks } from "../../app/dashboard/browser/ticks.js";

const plain = (value) => value;
const y = Object.assign(plain, { log: false });

test("scales place both ends, and decades evenly on a logarithmic one", () => {
  const log = scaleOf([-2, 2], [100, 0], true);
  assert.deepEqual([0.01, 1, 100].map(log), [100, 50, 0]);
  assert.equal(scaleOf([3, 3], [0, 10])(3), 0); // one value only
});

test("the y axis leaves room, reaches 0 where it must and holds values beyond it at its edge", () => {
  const free = upright([1, null, 3, NaN], { top: 0, bottom: 100 });
  assert.ok(free(1) < 100 && free(3) > 0);
  const zero = upright([1, 3], { top: 0, bottom: 100, zero: true });
  assert.equal(zero(0), 100);
  const floored = upright([1e-9, 1, 10], { top: 0, bottom: 100, log: true, floor: 1 });
  assert.equal(floored(1e-9), 102);
});

test("a line breaks at gaps, shows lone points, and goes on to its neighbours beyond the view", () => {
  const x = scaleOf([0, 10], [0, 10]);
  assert.equal(linePath({ x: [0, 1, 2, 3], y: [1, 2, null, 4] }, x, y), "M0.0 1L1.0 2M3.0 4h0");
  assert.equal(linePath({ x: [0, 1, 2, 3, 4], y: [0, 1, 2, 3, 4] }, scaleOf([2, 2.5], [0, 1]), y), "M-2.0 1L0.0 2L2.0 3");
  assert.equal(bandPath([[0, 1, 2], [1, 3, 4], [99, 0, 0]], x, y), "M0.0 1L1.0 3L1.0 4L0.0 2Z");
});

test("logarithmic axes have powers of ten, 2 and 5 between them where there is room, and no odd numbers", () => {
  assert.deepEqual(logTicks(-3, 0, 4), [0.001, 0.01, 0.1, 1]);
  assert.deepEqual(logTicks(0, 1, 4), [1, 2, 5, 10]);
  assert.deepEqual(logTicks(0, 0.3, 4), [1, 1.5]);
});

test("keys go from point to point, over close ones in strides, and never beyond the ends", () => {
  const stops = [0, 1, 2, 3, 10];
  assert.equal(following(stops, null, 1, 0), 0);
  assert.equal(following(stops, null, -1, 0), 10);
  assert.equal(following(stops, 1, 1, 0), 2);
  assert.equal(following(stops, 0, 1, 2), 2);
  assert.equal(following(stops, 2, -Infinity, 0), 0);
  assert.equal(following(stops, null, Infinity, 0), 10);
  assert.equal(following(stops, 10, 10, 0), 10);
  assert.equal(nearestIndex([], 3), -1);
});

test("a value is read where it was measured, not guessed from afar", () => {
  const line = { x: [0, 1, 5], y: [1, null, 3] };
  assert.equal(valueAt(line, 1), null);
  assert.equal(valueAt(line, 5), 3);
  assert.equal(valueAt(line, 2, 3), 1);
});

test("CSV has a row for every place in view and nothing where a line has no value", () => {
  const lines = [{ name: "a", x: [1, 2, 3], y: [0.1, 0.2, 0.3] }, { name: "b", x: [2], y: [null] }];
  const group = { axis: { column: "step" }, charts: [{ title: "K3", lines }, { title: "lag", lines: [{ x: [4], y: [7] }] }] };
  assert.deepEqual(rowsOf(group, [2, 9]), [["step", "K3, a", "K3, b", "lag"], [2, 0.2, null, undefined], [3, 0.3, undefined, undefined], [4, undefined, undefined, 7]]);
});

test("the step under the pointer reaches every other chart of the page", () => {
  const heard = [];
  const [a, b] = [{}, {}];
  hear(a, (step) => heard.push(["a", step]));
  hear(b, (step) => heard.push(["b", step]));
  point(a, 7);
  leave(b);
  point(a, null);
  assert.deepEqual(heard, [["b", 7]]);
  leave(a);
});

