// A document that the server made, such as that of an incident, as it is in the exported file: its markup and its own style, in a shadow
// root, so that neither style reaches the other. Text from outside was escaped where the markup was made; what is parsed here runs nothing.
import { node } from "./dom.js";

export function update(root, view) {
  if (view.version === view.data.version) return;
  view.version = view.data.version;
  const host = view.host ?? node("section", { class: "lp lp-document", "aria-label": view.data.label });
  const shadow = view.shadow ?? host.attachShadow({ mode: "open" });
  Object.assign(view, { host, shadow });
  Object.assign(host.style, { colorScheme: view.data.theme, background: "transparent" });
  const parsed = new DOMParser().parseFromString(view.data.markup, "text/html");
  const style = node("style", { text: view.data.style });
  shadow.replaceChildren(style, ...parsed.body.childNodes);
  if (!host.isConnected) root.replaceChildren(host);
}
