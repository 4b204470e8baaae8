import assert from "node:assert/strict";
import { test } from "node:test";

import { compact, duration, integer, number, tick } from "../../app/dashboard/browser/format.js";
import { extent, ticks } from "../../app/dashboard/browser/ticks.js";

test("ticks are round, within the axis, and about as many as asked for", () => {
  assert.deepEqual(ticks(0, 1, 5), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  assert.deepEqual(ticks(3, 97, 6), [20, 40, 60, 80]);
  assert.deepEqual(ticks(0, 3, 10, 1), [0, 1, 2, 3]);
  assert.deepEqual(ticks(5, 5, 4), [5]);
});

test("an axis without a finite value goes from 0 to 1", () => {
  assert.deepEqual(extent([NaN, Infinity]), [0, 1]);
  assert.deepEqual(extent([NaN, 3, -1]), [-1, 3]);
});

test("numbers are short, unknown ones are a dash and no number looks rounder than it is", () => {
  assert.equal(number(null), "–");
  assert.equal(number(NaN), "–");
  assert.equal(number(-0.00012345), "\u22121.23e-4");
  assert.equal(number(0.99999), "0.99999");
  assert.equal(number(12345.6), "12,346");
  assert.equal(tick(1e-4), "1e-4");
  assert.equal(integer(1234567), "1,234,567");
  assert.equal(compact(12345), "12.3 k");
  assert.equal(compact(2.5e9), "2.5 G");
  assert.equal(duration(3700), "1 h");
  assert.equal(duration(-5), "0 s");
});
