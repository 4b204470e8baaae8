// Buttons for what is to be done, which is asked twice: a button opens a form that says what will happen, and only its own button
// sends it. `view.form`: the one that is open; `view.update` draws the panel again.
import { code, follow, node, uncoded } from "./dom.js";

export function buttons(actions, root, view) {
  const place = node("div", { class: "lp-actions" });
  const rest = () => place.replaceChildren(...actions.map((action) => action.href ? link(action, view) : node("button", {
    class: `lp-button${action.danger ? " lp-danger" : ""}`, type: "button", disabled: Boolean(action.disabled), title: uncoded(action.disabled || action.help),
    text: action.label, onclick: () => ask(action, place, rest, root, view),
  })));
  rest();
  return place;
}

function link({ path, href, label, help }, view) {
  return node("a", { class: "lp-button", href, title: help, text: label, onclick: (event) => follow(event, view, path) });
}

function ask(action, place, rest, root, view) {
  view.form?.rest();
  const close = () => { view.form = null; rest(); view.update(root, view); };
  const fields = (action.fields ?? []).map((field) => node("label", {}, field.label, input(field)));
  const sure = `lp-button lp-sure${action.danger ? " lp-danger" : ""}`;
  const choices = action.choices ?? [{ label: action.confirm ?? action.label, args: {} }];
  const form = node("form", {
    class: "lp-form", onsubmit: (event) => { event.preventDefault(); send(action, choices[event.submitter?.value ?? 0], event.target, view); close(); },
    onkeydown: (event) => { if (event.key === "Escape") close(); },
  }, node("p", {}, ...code(action.words)), ...fields, node("div", { class: "lp-actions" },
    ...choices.map(({ label }, at) => node("button", { class: sure, type: "submit", value: at, text: label })),
    node("button", { class: "lp-button", type: "button", text: "Cancel", onclick: close })));
  view.form = { rest };
  place.replaceChildren(form);
  (form.querySelector("input") ?? form.querySelector("button")).focus();
}

function input({ name, value, required, options }) {
  if (options) return node("select", { name }, ...options.map((option) => node("option", { value: option, selected: option === value, text: option || "any" })));
  return node("input", { name, value: value ?? remembered(name), required, maxlength: 200, autocomplete: "off" });
}

function send(action, choice, form, view) {
  const args = typeof action.args === "function" ? action.args() : action.args;
  const given = Object.fromEntries(new FormData(form).entries());
  if (given.by) localStorage.setItem("logprobe.by", String(given.by));
  view.send("do", { id: action.id, ...args, ...choice.args, ...given, at: Date.now() });
}

const remembered = (name) => (name === "by" ? (localStorage.getItem("logprobe.by") ?? "") : "");
