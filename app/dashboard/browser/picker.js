// Which metrics a chart's rows are: a menu of all that there are. What is chosen is in the address; the server draws these rows.
import { node } from "./dom.js";
import { integer } from "./format.js";

export function picker(view) {
  const button = node("button", { class: "lp-tool", type: "button", text: "metrics", title: "choose the rows", "aria-haspopup": "dialog", "aria-expanded": "false", onclick: () => open(view, view.picker.menu.hidden) });
  const search = node("input", { class: "lp-search", type: "search", placeholder: "search metrics", "aria-label": "search metrics", autocomplete: "off", oninput: () => list(view) });
  const boxes = node("div", { class: "lp-picks", role: "group", "aria-label": "metrics" });
  const usual = node("button", { class: "lp-button", type: "button", text: "Those of the overview", onclick: () => view.send("set", { charts: null }) });
  const menu = node("div", { class: "lp-menu", role: "dialog", "aria-label": "metrics", hidden: true, onkeydown: (event) => { if (event.key === "Escape") open(view, false); } }, search, usual, boxes);
  const place = node("span", { class: "lp-picker", hidden: true }, button, menu);
  view.picker = { place, button, search, boxes, menu };
  view.dismiss = (event) => { if (!menu.hidden && !place.contains(event.target)) open(view, false); };
  document.addEventListener("pointerdown", view.dismiss);
  return place;
}

export const closePicker = (view) => document.removeEventListener("pointerdown", view.dismiss);

// Brings the menu up to date; what has the focus keeps it.
export function picks(view) {
  const { offered } = view.data;
  const { place, button } = view.picker;
  place.hidden = !offered?.length;
  if (place.hidden) return;
  const shown = offered.filter((each) => each.shown).length;
  button.textContent = offered.every((each) => each.shown === each.usual) ? "metrics" : `metrics: ${integer(shown)}`;
  list(view);
}

function open(view, wanted) {
  const { button, search, menu } = view.picker;
  search.value = "";
  menu.hidden = !wanted;
  button.setAttribute("aria-expanded", String(wanted));
  if (wanted) list(view);
  (wanted ? search : button).focus();
}

function list(view) {
  const { boxes, search, menu } = view.picker;
  if (menu.hidden) return;
  const words = search.value.toLowerCase().split(/\s+/);
  const found = view.data.offered.filter(({ key, label }) => words.every((word) => `${label} ${key}`.toLowerCase().includes(word)));
  const text = JSON.stringify(found);
  if (boxes.dataset.text === text) return;
  boxes.dataset.text = text;
  const focused = boxes.contains(document.activeElement) ? document.activeElement.getAttribute("value") : null;
  boxes.replaceChildren(...found.map((each) => box(each, view)), found.length ? "" : node("p", { class: "lp-hint", text: "no metric has such a name" }));
  if (focused) boxes.querySelector(`[value="${CSS.escape(focused)}"]`)?.focus();
}

function box({ key, label, help, shown }, view) {
  return node("label", { class: "lp-pick-line", title: help }, node("input", { type: "checkbox", value: key, checked: shown, onchange: ({ target }) => choose(view, key, target.checked) }),
    node("span", { text: label }), node("code", { text: key }));
}

// The last row stays: a chart without any says nothing.
function choose(view, key, wanted) {
  const chosen = view.data.offered.filter((each) => (each.key === key ? wanted : each.shown));
  const usual = view.data.offered.every((each) => chosen.includes(each) === each.usual);
  if (!chosen.length) {
    delete view.picker.boxes.dataset.text; // ticks it again
    return list(view);
  }
  for (const each of view.data.offered) each.shown = chosen.includes(each);
  view.send("set", { charts: usual ? null : chosen.map((each) => each.key).join(",") });
}
