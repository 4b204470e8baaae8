// Where steps stand on the x axis: the step itself, tokens trained on so far, time since the first step, or steps since the onset.
// `places` are the server's, unpacked; a course is the steps of one run and their places on the axis that is shown.
import { lowerBound } from "./traces.js";

const UNITS = [["days", 86400, 3], ["hours", 3600, 2], ["minutes", 60, 2], ["seconds", 1, 0]]; // a unit once there are so many of it

export function axisOf(places, x) {
  const known = x !== "step" && places.every((each) => each[x] !== null);
  const shown = known ? x : "step";
  const unit = shown === "time" ? unitOf(places) : ["", 1];
  const courses = places.map((each) => course(each, shown, unit[1]));
  return { shown, courses, unit: unit[0], title: titleOf(shown, unit[0]), tickformat: { step: ",d", onset: "+,d", tokens: "~s", time: "" }[shown], ends: ends(courses) };
}

const titleOf = (x, unit) => ({ step: "step", onset: "steps since the onset", tokens: "tokens trained on", time: `${unit} since the first step` }[x]);

function unitOf(places) {
  const longest = Math.max(...places.map((each) => each.time.reduce((most, value) => (value > most ? value : most), 0)));
  return UNITS.find(([, seconds, least]) => longest >= least * seconds);
}

function course(places, x, scale) {
  const { steps } = places;
  const offset = { step: 0, onset: places.onset }[x] ?? null;
  const at = offset === null ? places[x].map((value) => value / scale) : steps.map((step) => step - offset);
  return { name: places.name, steps, places: at, offset };
}

function ends(courses) {
  let low = Infinity;
  let high = -Infinity;
  for (const { places } of courses) for (const place of places) { if (place < low) low = place; if (place > high) high = place; }
  return low <= high ? [low, high] : [0, 1];
}

// The place of any step: between two known ones in proportion, before the first and after the last at these.
export function placeOf({ steps, places, offset }, step) {
  if (offset !== null) return step - offset;
  const at = lowerBound(steps, step);
  if (steps[at] === step || at === 0) return places[at];
  if (at === steps.length) return places[at - 1];
  return places[at - 1] + ((places[at] - places[at - 1]) * (step - steps[at - 1])) / (steps[at] - steps[at - 1]);
}

// What is visible when the reader wants to see `steps` (null: all), with a little room around it.
export function rangeOf(axis, steps) {
  const [low, high] = steps ? steps.map((step) => placeOf(axis.courses[0], step)) : axis.ends;
  const least = axis.shown === "step" || axis.shown === "onset" ? 0.5 : 0;
  const room = Math.max(least, 0.005 * (high - low)) || 0.5 * ((axis.ends[1] - axis.ends[0]) / axis.courses[0].steps.length || 1);
  return [low - room, high + room];
}

// First and last step of the first run, or else of the next, that stand between two places; null: none does.
export function stepsBetween(axis, low, high) {
  for (const { steps, places } of axis.courses) {
    const inside = Array.from(steps.keys()).filter((at) => places[at] >= low && places[at] <= high);
    if (inside.length) return [steps[inside[0]], steps[inside.at(-1)]];
  }
  return null;
}

// The step nearest to a place, of all runs: { run, index, step, place }.
export function nearest(axis, place) {
  let best = null;
  axis.courses.forEach((course, run) => {
    const index = nearestIn(course, place);
    if (index >= 0 && (!best || Math.abs(course.places[index] - place) < Math.abs(best.place - place))) {
      best = { run, index, step: course.steps[index], place: course.places[index] };
    }
  });
  return best;
}

export function nearestIn({ places }, place) {
  let best = -1;
  for (let at = 0; at < places.length; at += 1) {
    if (!Number.isNaN(places[at]) && (best < 0 || Math.abs(places[at] - place) < Math.abs(places[best] - place))) best = at;
  }
  return best;
}

// The step of another run that stands beside `cursor`; null: that run was not there.
export function beside(axis, run, cursor) {
  const course = axis.courses[run];
  if (run === cursor.run) return cursor.step;
  const at = nearestIn(course, cursor.place);
  if (at < 0) return null;
  const neighbour = course.places[at + 1] ?? course.places[at - 1] ?? course.places[at];
  const reach = Math.abs(neighbour - course.places[at]) / 2;
  return Math.abs(course.places[at] - cursor.place) <= reach ? course.steps[at] : null;
}
