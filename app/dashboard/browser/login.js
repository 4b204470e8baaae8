// The way in, by the providers that there are; or who is in, and the way out.

import { node } from "./dom.js";

export function update(root, view) {
  const drawn = JSON.stringify([view.data.providers, view.data.words]);
  if (view.drawn === drawn) return;
  view.drawn = drawn;
  root.replaceChildren(view.data.providers ? wayIn(view) : wayOut(view));
}

function wayIn(view) {
  const buttons = view.data.providers.map((provider) =>
    node("button", {
      type: "button",
      class: "lp-button",
      text: provider ? `Sign in with ${provider}` : "Sign in",
      onclick: () => view.send("do", { provider, at: Date.now() }),
    }),
  );
  return node("div", { class: "lp lp-login" }, node("h1", { text: "logprobe" }), ...buttons);
}

function wayOut(view) {
  if (view.data.by) localStorage.setItem("logprobe.by", view.data.by); // forms ask for a name; the server puts this one anyway
  const leave = () => view.send("do", { leave: true, at: Date.now() });
  return node(
    "div",
    { class: "lp lp-who" },
    node("span", { text: view.data.words }),
    node("button", { type: "button", class: "lp-button", text: "Sign out", onclick: leave }),
  );
}
