// Where steps stand on the x axis: the step itself, tokens trained on so far, time since the first step, or steps since the onset.
// `places` are the server's, unpacked; a trend is the steps of one run and their places on the axis that is shown.
import { extent } from "./ticks.js";
import { lowerBound } from "./traces.js";

/** @type {[string, number, number][]} */
const UNITS = [["days", 86400, 3], ["hours", 3600, 2], ["minutes", 60, 2], ["seconds", 1, 0]]; // a unit once there are so many of it

export function axisOf(places, x) {
  const known = ["tokens", "time", "onset"].includes(x) && places.every((each) => each[x] !== null);
  const shown = known ? x : "step";
  const unit = shown === "time" ? unitOf(places) : ["", 1];
  const trends = places.map((each) => trend(each, shown, unit[1]));
  return { shown, trends, unit: unit[0], title: titleOf(shown, unit[0]), tickformat: { step: ",d", onset: "+,d", tokens: "~s", time: "" }[shown], ends: extent(trends.flatMap((each) => Array.from(each.places))) };
}

const titleOf = (x, unit) => ({ step: "step", onset: "steps since the onset", tokens: "tokens trained on", time: `${unit} since the first step` }[x]);

function unitOf(places) {
  const longest = Math.max(...places.map((each) => each.time.reduce((most, value) => (value > most ? value : most), 0)));
  return UNITS.find(([, seconds, least]) => longest >= least * seconds);
}

function trend(places, x, scale) {
  const { steps } = places;
  const offset = { step: 0, onset: places.onset }[x] ?? null;
  const at = offset === null ? places[x].map((value) => value / scale) : steps.map((step) => step - offset);
  return { name: places.name, steps, places: at, offset };
}

// The place of any step: between two known ones in proportion, before the first and after the last at these.
export function placeOf({ steps, places, offset }, step) {
  if (offset !== null) return step - offset;
  const at = lowerBound(steps, step);
  if (steps[at] === step || at === 0) return places[at];
  if (at === steps.length) return places[at - 1];
  return places[at - 1] + ((places[at] - places[at - 1]) * (step - steps[at - 1])) / (steps[at] - steps[at - 1]);
}

// First and last step of the first run, or else of the next, that stand between two places; null: none does.
export function stepsBetween(axis, low, high) {
  for (const { steps, places } of axis.trends) {
    const inside = Array.from(steps.keys()).filter((at) => places[at] >= low && places[at] <= high);
    if (inside.length) return [steps[inside[0]], steps[inside.at(-1)]];
  }
  return null;
}
