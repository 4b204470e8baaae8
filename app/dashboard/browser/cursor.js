// The step under the pointer, for all charts of a page: whoever reads one says so, and the others show the same step.

/** @type {Map<object, (step: number | null) => void>} */
const readers = new Map();

export const hear = (owner, told) => readers.set(owner, told);

export const leave = (owner) => readers.delete(owner);

// `step`: null when the pointer has left the chart.
export function point(owner, step) {
  for (const [reader, told] of readers) if (reader !== owner) told(step);
}
