// Where the parts of a long page are.
import { node } from "./dom.js";

export function update(root, view) {
  if (view.version === view.data.version) return;
  view.version = view.data.version;
  root.replaceChildren(node("nav", { class: "lp lp-jumps", "aria-label": "parts of this page" }, ...view.data.parts.map(([label, words]) =>
    node("button", { class: "lp-jump", type: "button", text: words, onclick: () => jump(label) }))));
}

function jump(label) {
  document.querySelector(`section[aria-label="${CSS.escape(label)}"]`)?.scrollIntoView({ block: "start", behavior: "smooth" });
}
