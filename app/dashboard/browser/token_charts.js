// Two small charts: log ρ summed up over the positions of a sequence, and K3 by step to choose a step from.
import { number, integer } from "./format.js";
import { fitted, shade } from "./token_paint.js";

const TICK = 11; // pixels of a label's font
const LEFT = 52;

function frame(canvas, height, colors) {
  const width = canvas.parentElement.clientWidth;
  const pen = fitted(canvas, width, height);
  pen.font = `${TICK}px ${getComputedStyle(canvas).fontFamily}`;
  pen.fillStyle = colors.muted;
  pen.textBaseline = "middle";
  return { pen, width, inner: Math.max(1, width - LEFT - 2) };
}

function label(pen, words, y, colors) {
  pen.fillStyle = colors.muted;
  pen.textAlign = "right";
  pen.fillText(words, LEFT - 6, y);
  pen.textAlign = "left";
}

const TREND = { height: 104, top: 10, bottom: 72, heat: 82, thick: 9 };

// Returns where a click at `x` leads: the worst token among those that share its pixel.
export function trend(canvas, strip, colors, selected) {
  const { pen, inner } = frame(canvas, TREND.height, colors);
  const { tokens, n } = strip;
  if (!n) return () => 0;
  let [low, high] = [0, 0];
  for (const value of tokens.cumulative) { low = Math.min(low, value); high = Math.max(high, value); }
  const span = high - low || 1;
  const y = (value) => TREND.bottom - ((value - low) / span) * (TREND.bottom - TREND.top);
  const x = (index) => LEFT + ((index + 0.5) / n) * inner;
  pen.strokeStyle = colors.line;
  pen.lineWidth = 1;
  rule(pen, LEFT, LEFT + inner, y(0));
  label(pen, number(high), y(high), colors);
  if (y(low) - y(high) > TICK) label(pen, number(low), y(low), colors);
  for (const index of strip.turns) upright(pen, x(index - 0.5), colors.line, 1);
  for (const index of strip.switches) upright(pen, x(index - 0.5), colors.accent, 1.5);
  line(pen, strip, x, y, inner, colors);
  const buckets = heat(pen, strip, colors, inner);
  upright(pen, x(selected), colors.text, 1);
  return (left) => { const at = Math.max(0, Math.min(buckets.length - 1, Math.floor(((left - LEFT) / inner) * buckets.length))); return buckets[at]; };
}

function rule(pen, from, to, y) {
  pen.beginPath();
  pen.moveTo(from, Math.round(y) + 0.5);
  pen.lineTo(to, Math.round(y) + 0.5);
  pen.stroke();
}

function upright(pen, x, color, width) {
  pen.strokeStyle = color;
  pen.lineWidth = width;
  pen.beginPath();
  pen.moveTo(x, TREND.top - 4);
  pen.lineTo(x, TREND.heat + TREND.thick);
  pen.stroke();
}

// At most the smallest and the largest value of each pixel; the line is broken where tokens are.
function line(pen, { tokens: { cumulative, state }, first_broken: firstBroken }, x, y, inner, colors) {
  pen.strokeStyle = colors.text;
  pen.lineWidth = 1.4;
  pen.lineJoin = "round";
  pen.beginPath();
  const group = Math.max(1, Math.floor(cumulative.length / inner / 2));
  let lifted = true;
  for (let start = 0; start < cumulative.length; start += group) {
    let [low, high, broken] = [start, start, false];
    for (let index = start; index < Math.min(cumulative.length, start + group); index += 1) {
      if (cumulative[index] < cumulative[low]) low = index;
      if (cumulative[index] > cumulative[high]) high = index;
      broken ||= state[index] >= firstBroken;
    }
    if (broken && group === 1) { lifted = true; continue; }
    for (const index of low === high ? [low] : [Math.min(low, high), Math.max(low, high)]) {
      if (lifted) pen.moveTo(x(index), y(cumulative[index]));
      else pen.lineTo(x(index), y(cumulative[index]));
      lifted = false;
    }
  }
  pen.stroke();
}

// The whole sequence in one row, each pixel as its worst token.
function heat(pen, strip, colors, inner) {
  const { tokens, n, first_broken: firstBroken } = strip;
  const count = Math.min(n, Math.floor(inner));
  const wide = inner / count;
  const buckets = [];
  for (let bucket = 0; bucket < count; bucket += 1) {
    const [start, end] = [Math.floor((bucket * n) / count), Math.floor(((bucket + 1) * n) / count)];
    let [worst, size] = [start, -1];
    for (let index = start; index < end; index += 1) {
      const badness = tokens.state[index] >= firstBroken ? Infinity : tokens.state[index] === 0 ? Math.abs(tokens.d[index]) : -1;
      if (badness > size) [worst, size] = [index, badness];
    }
    buckets.push(worst);
    if (size < 0) continue;
    pen.fillStyle = size === Infinity ? colors.alarm : shade(colors, tokens.d[worst]).fill;
    pen.fillRect(LEFT + bucket * wide, TREND.heat - (size === Infinity ? 3 : 0), Math.max(1, wide - (wide > 4 ? 1 : 0)), TREND.thick + (size === Infinity ? 3 : 0));
  }
  pen.strokeStyle = colors.line;
  pen.lineWidth = 1;
  pen.strokeRect(LEFT - 0.5, TREND.heat - 0.5, inner + 1, TREND.thick + 1);
  return buckets;
}

const ROOM = 0.5; // decades
const CHOOSER = { height: 84, top: 10, bottom: 64 };

// Bars of K3 by step; returns where a click at `x` leads: the worst step of those that share its pixel.
export function chooser(canvas, steps, colors, chosen) {
  const { pen, inner } = frame(canvas, CHOOSER.height, colors);
  const { step, k3, marks } = steps;
  const drawn = Array.from(k3).filter((value) => value > 0).map(Math.log10).sort((a, b) => a - b);
  // A few steps that are next to 0, such as a first one on the same weights, must not flatten all others.
  const [least, most] = drawn.length ? [Math.max(drawn[0], drawn[Math.floor(0.02 * drawn.length)] - ROOM), drawn[drawn.length - 1]] : [-1, 0];
  const floor = least - 0.08 * (most - least || 1) - 0.05;
  const y = (value) => CHOOSER.bottom - Math.max(0.02, (Math.log10(value) - floor) / (most - floor || 1)) * (CHOOSER.bottom - CHOOSER.top);
  const count = Math.min(step.length, Math.floor(inner));
  const wide = inner / count;
  const buckets = Array.from({ length: count }, (_, bucket) => bucketOf(steps, bucket, count, chosen));
  buckets.forEach((at, bucket) => {
    const left = LEFT + bucket * wide;
    const width = Math.max(1, wide - (wide > 3 ? 1 : 0));
    const current = step[at] === chosen;
    pen.fillStyle = current ? colors.accent : marks[at] & 1 ? colors.muted : colors.line;
    const top = k3[at] > 0 ? y(k3[at]) : CHOOSER.bottom - 1;
    pen.fillRect(left, top, width, CHOOSER.bottom - top);
    if (marks[at] & 2) cross(pen, left + width / 2, CHOOSER.top - 4, colors);
    if (current) pointer(pen, left + width / 2, colors);
  });
  pen.strokeStyle = colors.line;
  pen.lineWidth = 1;
  rule(pen, LEFT, LEFT + inner, CHOOSER.bottom);
  if (drawn.length) {
    label(pen, number(10 ** most), CHOOSER.top + 2, colors);
    if (y(10 ** least) - CHOOSER.top > TICK) label(pen, number(10 ** least), y(10 ** least), colors);
  }
  ends(pen, step, inner, colors);
  return (left) => buckets[Math.max(0, Math.min(count - 1, Math.floor((left - LEFT) / wide)))];
}

function ends(pen, step, inner, colors) {
  pen.fillStyle = colors.muted;
  pen.fillText(`step ${integer(step[0])}`, LEFT, CHOOSER.bottom + 14);
  pen.textAlign = "right";
  if (step.length > 1) pen.fillText(integer(step[step.length - 1]), LEFT + inner, CHOOSER.bottom + 14);
  pen.textAlign = "left";
}

function bucketOf({ step, k3, marks }, bucket, count, chosen) {
  const [start, end] = [Math.floor((bucket * step.length) / count), Math.floor(((bucket + 1) * step.length) / count)];
  let best = start;
  for (let at = start; at < end; at += 1) {
    if (step[at] === chosen) return at;
    const [a, b] = [marks[at] & 2, marks[best] & 2];
    if (a > b || (a === b && (k3[at] > k3[best] || Number.isNaN(k3[best])))) best = at;
  }
  return best;
}

function cross(pen, x, y, colors) {
  pen.strokeStyle = colors.alarm;
  pen.lineWidth = 1.6;
  pen.beginPath();
  pen.moveTo(x - 2.5, y - 2.5); pen.lineTo(x + 2.5, y + 2.5);
  pen.moveTo(x + 2.5, y - 2.5); pen.lineTo(x - 2.5, y + 2.5);
  pen.stroke();
}

function pointer(pen, x, colors) {
  pen.fillStyle = colors.accent;
  pen.beginPath();
  pen.moveTo(x, CHOOSER.bottom + 2);
  pen.lineTo(x - 4, CHOOSER.bottom + 8);
  pen.lineTo(x + 4, CHOOSER.bottom + 8);
  pen.fill();
}
