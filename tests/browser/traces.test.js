import assert from "node:assert/strict";
import { test } from "node:test";

import { lowerBound, unpackArray } from "../../app/dashboard/browser/traces.js";

const packed = (values) => ({ dtype: "f8", bdata: Buffer.from(Float64Array.from(values).buffer).toString("base64") });

test("packed arrays are the numbers that were sent, NaN and infinities included", () => {
  const sent = [1.5, NaN, -Infinity, 5e-324];
  assert.deepEqual([...unpackArray(packed(sent))], sent);
  assert.deepEqual(unpackArray([1, 2]), [1, 2]);
});

test("sorted places are found, ties included", () => {
  assert.deepEqual([0, 1, 2, 5, 9].map((value) => lowerBound([1, 2, 2, 5], value)), [0, 0, 1, 3, 4]);
});
