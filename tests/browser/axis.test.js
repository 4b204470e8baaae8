import assert from "node:assert/strict";
import { test } from "node:test";

import { axisOf, beside, nearest, placeOf, rangeOf, stepsBetween } from "../../app/dashboard/browser/axis.js";

const RUN = { name: "run", steps: [0, 10, 20], tokens: [100, 300, 700], time: [0, 60, 7200], onset: 10 };

test("a run without an onset keeps the step axis", () => {
  const axis = axisOf([RUN, { ...RUN, onset: null }], "onset");
  assert.equal(axis.shown, "step");
  assert.deepEqual(axisOf([RUN], "onset").trends[0].places, [-10, 0, 10]);
});

test("time is shown in the largest unit of which there are enough", () => {
  const axis = axisOf([RUN], "time");
  assert.equal(axis.unit, "hours");
  assert.deepEqual(axis.ends, [0, 2]);
  assert.equal(axis.title, "hours since the first step");
});

test("steps between two known ones are placed in proportion", () => {
  const [trend] = axisOf([RUN], "tokens").trends;
  assert.equal(placeOf(trend, 5), 200);
  assert.equal(placeOf(trend, 15), 500);
  assert.equal(placeOf(trend, -3), 100);
  assert.equal(placeOf(trend, 99), 700);
});

test("zooming to a place and back names the same steps", () => {
  const axis = axisOf([RUN], "tokens");
  const [low, high] = rangeOf(axis, [10, 20]);
  assert.ok(low < 300 && high > 700);
  assert.deepEqual(stepsBetween(axis, low, high), [10, 20]);
  assert.equal(stepsBetween(axis, 301, 302), null);
});

test("the cursor finds the nearest step of any run, and none where a run has ended", () => {
  const axis = axisOf([RUN, { ...RUN, steps: [0, 1], tokens: [0, 1], time: [0, 1] }], "step");
  const cursor = nearest(axis, 19);
  assert.deepEqual([cursor.run, cursor.step], [0, 20]);
  assert.equal(beside(axis, 1, cursor), null);
  assert.equal(beside(axis, 1, nearest(axis, 0.6)), 1);
});
