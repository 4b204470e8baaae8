// What a page answers, for somebody who sees it for the first time: shown below the bar until it is dismissed, and by `?` ever after.
import { node } from "./dom.js";

const KEY = "logprobe.seen"; // paths of the pages whose introduction was dismissed
const seen = new Set(stored());

export function introduction(page, dismissed) {
  if (!page?.about || seen.has(page.path)) return null;
  return node("aside", { class: "lp lp-guide", "aria-label": `about ${page.title}` },
    node("span", { text: page.about }),
    node("button", { class: "lp-button lp-got-it", type: "button", text: "Got it", onclick: () => { dismiss(page.path); dismissed(); } }));
}

function dismiss(path) {
  seen.add(path);
  try {
    localStorage.setItem(KEY, JSON.stringify([...seen]));
  } catch {
    // A browser that keeps nothing: dismissed until the page is loaded again.
  }
}

function stored() {
  try {
    const paths = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(paths) ? paths : [];
  } catch {
    return [];
  }
}
