// What a page answers, for somebody who sees it for the first time: shown below the bar until it is dismissed, and by `?` ever after.
import { follow, node } from "./dom.js";

const KEY = "logprobe.seen"; // paths of the pages whose introduction was dismissed
const seen = new Set(stored());

export function introduction(page, view, dismissed) {
  if (!page?.about || seen.has(page.path)) return null;
  return node("aside", { class: "lp lp-guide", "aria-label": `about ${page.title}` },
    node("span", {}, `${page.about} `, ...next(page, view)),
    node("button", { class: "lp-button lp-got-it", type: "button", text: "Got it", onclick: () => { dismiss(page.path); dismissed(); } }));
}

// The page in full: its question, its parts, and where to go from there.
export function explanation(page, view) {
  if (!page?.about) return [];
  return [node("p", { text: page.about }), node("dl", { class: "lp-parts" }, ...page.parts.flatMap(([name, words]) => [node("dt", { text: name }), node("dd", { text: words })])),
    node("p", {}, ...next(page, view))];
}

const next = (page, view) => ["Next: ", ...page.next.flatMap(({ path, href, title, words }, at) =>
  [at ? ", " : "", node("a", { href, text: title, onclick: (event) => follow(event, view, path) }), ` ${words}`]), "."];

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
