// Keyboard shortcuts of the whole dashboard. Panels offer theirs; the newest offer of a key wins. Nothing happens
// while somebody types into a field, or while a menu or a form is open.
import { node } from "./dom.js";

const WAIT_MS = 1500; // for the second key of a pair such as "g d"
const FIELDS = "input, textarea, select, [contenteditable]:not([contenteditable=false])";
const OPEN = "dialog[open], .lp-menu:not([hidden]), .lp-form";
const COLORS = ["--st-text-color", "--st-background-color", "--st-secondary-background-color", "--st-border-color", "--st-primary-color"];

const offers = new Map(); // owner → { group, shortcuts }
let pending = null; // first key of a pair, and when it came
let dialog = null;

// `shortcuts`: [{ keys, words, run(key) }]; without `run` they are only listed. A pair is written "g d". The latest offer comes first,
// except for one that stands `behind` all others.
export function offer(owner, group, shortcuts, behind = false) {
  if (!offers.size) addEventListener("keydown", pressed, true);
  offers.delete(owner);
  const others = behind ? [...offers] : [];
  if (behind) offers.clear();
  offers.set(owner, { group, shortcuts });
  for (const [other, its] of others) offers.set(other, its);
}

export function withdraw(owner) {
  offers.delete(owner);
  if (!offers.size) removeEventListener("keydown", pressed, true);
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.target.closest?.(FIELDS)) return;
  if (document.querySelector(OPEN)) return; // Escape closes it by itself
  const chord = pending && performance.now() - pending.at < WAIT_MS ? `${pending.key} ${event.key}` : event.key;
  pending = null;
  const known = [...offers.values()].reverse().flatMap(({ shortcuts }) => shortcuts).filter(({ run }) => run);
  const shortcut = known.find(({ keys }) => keys.includes(chord));
  if (shortcut) return taken(event, () => shortcut.run(event.key));
  if (known.some(({ keys }) => keys.some((each) => each.startsWith(`${event.key} `)))) taken(event, () => { pending = { key: event.key, at: performance.now() }; });
}

// Whatever means something here must not also reach what Streamlit listens for.
function taken(event, action) {
  event.preventDefault();
  event.stopImmediatePropagation();
  if (!event.repeat || !dialog) action();
}

// `about`: elements in front of the keys; following a link in them closes it.
export function help(title, about) {
  const before = /** @type {HTMLElement | null} */ (document.activeElement);
  const root = document.querySelector(".lp");
  dialog = node("dialog", { class: "lp lp-keys", "aria-labelledby": "lp-keys-title" },
    node("h2", { id: "lp-keys-title", text: title }), ...about, ...groups(),
    node("button", { class: "lp-button", type: "button", text: "Close", autofocus: true, onclick: () => dialog.close() }));
  // It lies outside of our panels, where the theme's colours are not set.
  if (root) for (const name of COLORS) dialog.style.setProperty(name, getComputedStyle(root).getPropertyValue(name));
  dialog.addEventListener("close", () => { dialog.remove(); dialog = null; before?.focus?.(); });
  dialog.addEventListener("click", (event) => { if (event.target === dialog || event.target.closest("a")) dialog.close(); });
  document.body.append(dialog);
  dialog.showModal();
  dialog.scrollTop = 0; // the focus on "Close" scrolls to the end
}

function groups() {
  const listed = new Map(); // group → shortcuts, each once
  for (const { group, shortcuts } of offers.values()) {
    const lines = listed.get(group) ?? new Map();
    for (const shortcut of shortcuts) lines.set(shortcut.keys.join(), shortcut);
    listed.set(group, lines);
  }
  return [...listed].flatMap(([group, lines]) => [node("h3", { text: group }), node("dl", {}, ...[...lines.values()].flatMap(line))]);
}

const line = ({ keys, words }) => [
  node("dt", {}, ...keys.filter((key) => key !== "=").map((key) => node("kbd", { text: key }))), node("dd", { text: words })];

const FACTOR = 2;

// Keys that every chart has, large or small; `does`: zoom(factor), all(), csv(), png().
export const plotKeys = (does) => [
  { keys: ["+", "="], words: "zoom in, around the crosshair", run: () => does.zoom(1 / FACTOR) },
  { keys: ["-"], words: "zoom out", run: () => does.zoom(FACTOR) },
  { keys: ["0"], words: "all steps", run: does.all },
  { keys: ["e"], words: "export what is shown as CSV", run: does.csv },
  { keys: ["p"], words: "export the picture as PNG", run: does.png },
  { keys: ["←", "→"], words: "crosshair one step (with shift: ten), once the chart has the focus" },
];
