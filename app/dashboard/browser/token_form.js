// Where the home's token is typed. Built once, so that a refresh takes nothing away from under the fingers.

import { code, node } from "./dom.js";

export function update(root, view) {
  view.root ??= build(root, view);
  view.said.replaceChildren(...code(view.data.said));
}

function build(root, view) {
  const input = node("input", {
    type: "password",
    autocomplete: "off",
    spellcheck: "false",
    "aria-label": "the home's token",
    placeholder: "the home's token",
    required: true,
  });
  view.said = node("span", { class: "lp-token-form-said", role: "status" });
  const form = node(
    "form",
    { class: "lp lp-token-form", onsubmit: (event) => submit(event, view, input) },
    node("span", { text: "This page can be reached from other machines. To make changes, enter the home's token:" }),
    input,
    node("button", { type: "submit", class: "lp-button", text: "Unlock" }),
    view.said,
  );
  root.replaceChildren(form);
  return form;
}

function submit(event, view, input) {
  event.preventDefault();
  view.send("do", { token: input.value, at: Date.now() });
  input.value = "";
}
