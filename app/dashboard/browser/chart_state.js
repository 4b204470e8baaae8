// What the reader has chosen of the charts. It is in the address and nowhere else: links restore it, charts of a page share it.
import { asked, put } from "./address.js";

export const AXES = ["step", "tokens", "time", "onset"];
export const SMOOTHINGS = [0, 5, 11, 25, 51, 101];
const LONGEST = 999; // as charts/lines.py

export function read() {
  const smooth = Number(asked("smooth"));
  return {
    steps: range(asked("steps")),
    x: AXES.includes(asked("x")) ? asked("x") : "step",
    smooth: Number.isInteger(smooth) && smooth > 1 ? Math.min(smooth, LONGEST) : 0,
    log: names("log"), linear: names("linear"), hide: names("hide"), full: asked("full") === "1",
  };
}

export const zoomTo = (steps) => put({ steps: steps?.join(":") ?? null });
export const drawOver = (x) => put({ x: x === "step" ? null : x });
export const fill = (full) => put({ full: full ? 1 : null });
export const smoothOver = (steps) => put({ smooth: steps || null });

// Switches the y axis of the row `key`; `usual`: whether it is logarithmic when nobody has said so.
export function scaleAs(key, log, usual) {
  const state = read();
  const change = (list, wanted) => [...list.filter((each) => each !== key), ...(wanted ? [key] : [])].join(",");
  put({ log: change(state.log, log && !usual), linear: change(state.linear, !log && usual) });
}

export function hide(role, hidden) {
  put({ hide: [...read().hide.filter((each) => each !== role), ...(hidden ? [role] : [])].join(",") });
}

export const isLog = (state, row) => (row.log ? !state.linear.includes(row.key) : state.log.includes(row.key));

// What a row says of itself, and of what cannot be seen on its axis.
export function noteOf(row, state) {
  if (!isLog(state, row)) return row.notes.linear;
  return row.notes[row.log && !state.steps ? "log" : "zoomed"];
}

const names = (name) => (asked(name) ?? "").split(",").filter(Boolean);

// "300:500", "300:" or ":500" as numbers; anything else is none.
function range(text) {
  const found = /^(-?\d+)?:(-?\d+)?$/.exec(text ?? "");
  return found && text !== ":" ? [Number(found[1] ?? -Infinity), Number(found[2] ?? Infinity)].sort((a, b) => a - b) : null;
}

// Of the range that was asked for, what the run has (`steps`, ascending); null: all of it, or nothing.
export function within(asked, steps) {
  if (!asked || !steps.length) return null;
  const [first, last] = [steps[0], steps[steps.length - 1]];
  const [from, to] = [Math.max(asked[0], first), Math.min(asked[1], last)];
  return from > to || (from === first && to === last) ? null : [from, to];
}
