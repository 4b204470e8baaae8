// One of a few: a row of buttons that puts what was chosen into the address.
import { node } from "./dom.js";

// `options`: [{key, label, help}]; the one whose key is `chosen` is pressed.
export function choice(view, name, label, options, chosen) {
  return node("span", { class: "lp-choice", role: "group", "aria-label": label }, ...options.map((option) => node("button", {
    type: "button", title: option.help, text: option.label, "aria-pressed": String(option.key === chosen), onclick: () => { if (option.key !== chosen) view.send("set", { [name]: option.key }); },
  })));
}

export const pairs = (view) =>
  choice(view, "pair", "pair", view.data.pairs.map(({ name, help }) => ({ key: name, label: name, help })), view.data.pair);

// Says that the bar is ahead of what is shown.
export const older = (data) => (data.old ? node("span", { class: "lp-note", role: "status", text: data.old }) : null);
