// The strip of marks on top of the figure: every step on which something happened can be hovered and read. Weight updates are many
// and are read with the crosshair.
import { placeOf } from "./axis.js";
import { node } from "./dom.js";
import { inView, look, speak } from "./chart_parts.js";

const MOST = 300; // the newest; beyond that they cannot be distinguished

// Steps with a mark, and what happened there.
export function happened(view) {
  const steps = new Map();
  for (const { kind, step, words } of view.data.events) if (kind !== "weights") steps.set(step, [...(steps.get(step) ?? []), words]);
  return [...steps].sort(([a], [b]) => a - b).slice(-MOST);
}

export function place(view) {
  const axis = view.gd._fullLayout?.xaxis;
  if (!axis || !view.axis) return;
  const spots = happened(view).map(([step, words]) => [step, words, placeOf(view.axis.trends[0], step)]).filter(([, , at]) => inView(view, at));
  view.tip ??= node("span", { class: "lp-tip", hidden: true });
  view.marks.replaceChildren(...spots.map(([step, words, at]) => spot(view, step, words, axis._offset + axis.d2p(at))), view.tip);
}

function spot(view, step, words, pixel) {
  const text = `step ${step.toLocaleString("en-US")}: ${words.join("; ")}`;
  return node("span", {
    class: "lp-mark", role: "img", "aria-label": text, "data-step": step, style: `left:${pixel.toFixed(1)}px`,
    onpointerenter: () => tell(view, text, pixel), onpointerleave: () => { view.tip.hidden = true; },
  });
}

function tell(view, text, pixel) {
  const wide = view.frame.clientWidth;
  view.tip.textContent = text;
  view.tip.hidden = false;
  view.tip.style.left = `${Math.max(0, Math.min(pixel - 8, wide - view.tip.offsetWidth - 4))}px`;
}

// Puts the crosshair on the next mark (way 1) or the one before (way −1), and says what happened there.
export function toMark(view, way) {
  const from = view.at?.step ?? (way > 0 ? -Infinity : Infinity);
  const marks = happened(view).filter(([step]) => (way > 0 ? step > from : step < from) && inView(view, placeOf(view.axis.trends[0], step)));
  const found = way > 0 ? marks[0] : marks.at(-1);
  if (!found) return;
  const at = placeOf(view.axis.trends[0], found[0]);
  look(view, { run: 0, step: found[0], place: at });
  tell(view, `step ${found[0].toLocaleString("en-US")}: ${found[1].join("; ")}`, view.gd._fullLayout.xaxis._offset + view.gd._fullLayout.xaxis.d2p(at));
  speak(view);
}
