import assert from "node:assert/strict";
import { test } from "node:test";

import { csvCell, harmless, uncoded } from "../../app/dashboard/browser/dom.js";

test("no cell runs as a formula, and numbers stay numbers", () => {
  for (const text of ["=1+1", "+cmd", "@x", "-2+3", " =1", "\ttab", "\uff1dx"]) assert.equal(harmless(text)[0], "'", text);
  for (const text of ["-1.5e-3", "+2", "words", "a=b", ""]) assert.equal(harmless(text), text);
});

test("control characters and changes of direction are replaced", () => {
  assert.equal(harmless("a\u0000b\u202ec"), "a\ufffdb\ufffdc");
});

test("cells are quoted where they have to be; unknown is empty", () => {
  assert.equal(csvCell('say "hi", now'), '"say ""hi"", now"');
  assert.equal(csvCell(NaN), "");
  assert.equal(csvCell(null), "");
  assert.equal(csvCell(0), "0");
});

test("a tooltip has no signs for code", () => {
  assert.equal(uncoded("run `logprobe token`"), "run logprobe token");
  assert.equal(uncoded(undefined), undefined);
});
