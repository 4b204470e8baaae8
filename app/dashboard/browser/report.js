// A page of words and tables: blocks of data in, elements out. Text goes in as text. What is to be done is asked twice: a button
// opens a form that says what will happen, and only its own button sends it.
import { code, copyButton, follow, node, table as tableOf, title, uncoded } from "./dom.js";
import { plots, stepAxis } from "./plots.js";
import { ruleChart } from "./rule_chart.js";

export function update(root, view) {
  if (view.version === view.data.version) return;
  if (view.form) return; // never take a form from under somebody's hands; closing it draws what is new
  view.version = view.data.version;
  root.replaceChildren(node("section", { class: "lp lp-report", "aria-label": view.data.label }, ...view.data.blocks.map((block) => BLOCKS[block.type](block, root, view))));
}

// How other panels draw the same buttons: `view.update` is then theirs.
export { buttons };
export { closePlots as close } from "./plots.js";

const UNFOLDED = 8; // rows of a long table

const BLOCKS = { verdict, picture, details, heading: ({ text: words, note }) => title(words, note), text, facts, table, actions: (block, root, view) => buttons(block.actions, root, view) };

function verdict(block, _root, view) {
  return node("div", { class: `lp-verdict lp-tone-${block.tone}`, role: "status" },
    node("p", { class: "lp-headline" }, node("span", { class: "lp-icon", "aria-hidden": "true", text: block.icon }), node("b", { text: block.word }),
      node("span", { class: "lp-words", text: block.words }), block.note ? node("span", { class: "lp-hint", text: block.note }) : null),
    block.facts.length ? pairs(block.facts, "lp-why") : null,
    block.do.length ? pairs(block.do, "lp-do") : null,
    block.links?.length ? node("p", { class: "lp-links" }, ...block.links.map((link) => anchor(link, view))) : null);
}

const pairs = (items, name) =>
  node("dl", { class: `lp-pairs ${name}` }, ...items.flatMap(([key, value, copied]) =>
    [node("dt", { text: key }), node("dd", {}, ...code(value), copied ? copyButton(copied) : null)]));

function anchor({ path, href, title, help }, view) {
  return node("a", { href, text: title, title: help, onclick: (event) => follow(event, view, path) });
}

function text({ text: words, tone }) {
  return node("p", { class: `lp-text${tone ? ` lp-tone-${tone}` : ""}`, role: tone ? "status" : undefined }, ...code(words));
}

function facts({ items }) {
  return pairs(items, "lp-facts-list");
}

// What is folded stays as the reader left it.
function details({ name, summary, blocks }, root, view) {
  view.unfolded ??= new Set();
  const place = node("details", { class: "lp-details", open: view.unfolded.has(name) }, node("summary", { text: summary }),
    ...blocks.map((block) => BLOCKS[block.type](block, root, view)));
  place.addEventListener("toggle", () => view.unfolded[place.open ? "add" : "delete"](name));
  return place;
}

function picture(block, _root, view) {
  const { tools, figures } = plots(view, {
    ...stepAxis, name: block.name, title: block.title, whole: block.whole, charts: [ruleChart(block)],
  });
  const key = block.lines.map(({ slice }, at) => node("span", { class: "lp-picture-line" }, node("i", { class: `lp-picture-sample lp-rule-line-${at}`, "aria-hidden": "true" }), slice));
  return node("div", { class: "lp-picture" }, title(block.title, block.hint, tools), ...figures.map(({ element }) => element), node("p", { class: "lp-hint" }, ...key));
}

function table({ head, rows, empty, name, fold }, root, view) {
  if (!rows.length) return node("p", { class: "lp-text lp-hint" }, ...code(empty));
  const lines = rows.map((row) => line(row, head, root, view));
  const place = tableOf(name, head, lines);
  if (fold && rows.length > UNFOLDED + 2) folded(lines.slice(UNFOLDED), name, place, view);
  return place;
}

// A long list of what is past shows its first rows until the reader wants all of them; that outlives new data.
function folded(lines, name, place, view) {
  view.unfolded ??= new Set();
  if (view.unfolded.has(name)) return;
  for (const each of lines) each.hidden = true;
  place.append(node("button", { class: "lp-button lp-more", type: "button", text: `${lines.length} more`, onclick: ({ target }) => {
    view.unfolded.add(name);
    for (const each of lines) each.hidden = false;
    target.remove();
  } }));
}

function line({ cells, tone, actions }, head, root, view) {
  const tds = cells.map((cell, index) => node("td", { "data-label": head[index] }, node("div", {}, ...(cell?.href ? [anchor(cell, view)] : code(cell)))));
  if (actions?.length) tds[tds.length - 1].firstChild.append(buttons(actions, root, view));
  return node("tr", { class: tone ? `lp-tone-${tone}` : undefined }, ...tds);
}

function buttons(actions, root, view) {
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
  const close = () => { view.form = null; rest(); (view.update ?? update)(root, view); };
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
