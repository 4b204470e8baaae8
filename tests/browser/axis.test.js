import assert from "node:assert/strict";
import { test } from "node:test";

import { axisOf, placeOf, stepsBetween } from "../../app/dashboard/browser/axis.js";

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

test("two places name the steps between them", () => {
  const axis = axisOf([RUN], "tokens");
  assert.deepEqual(stepsBetween(axis, 299, 701), [10, 20]);
  assert.equal(stepsBetween(axis, 301, 302), null);
});
