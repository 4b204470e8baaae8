import assert from "node:assert/strict";
import { test } from "node:test";

import { about, moved, ratio } from "../../app/dashboard/browser/rule_form.js";

test("clear keeps its distance from a limit that moves", () => {
  assert.equal(moved(ratio("0.05", "0.1"), "0.3"), "0.15");
  assert.equal(moved(ratio("", "0.1"), "0.3"), null); // nowhere: it stays there
  assert.equal(moved(ratio("0.05", "0"), "0.3"), null);
  for (const unfinished of ["", "-", "high"]) assert.equal(moved(0.5, unfinished), null, unfinished);
});

test("a problem is said beside the field that it is about", () => {
  assert.deepEqual(about("line 5: `when.above`: Input should be a valid number"), ["limit", "Input should be a valid number"]);
  assert.equal(about("line 5: `rules.when`: `clear` must be below `above`")[0], "clear");
  assert.equal(about("line 1: there is no metric 'k3_lk'; did you mean 'k3_kl'?")[0], "metric");
  assert.equal(about("line 3: `four`: unknown key; did you mean 'for'?"), null); // no field has it
  assert.equal(about("the rules file cannot be read"), null);
});
