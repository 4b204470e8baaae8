// Every metric by pair: a table to be filtered, in which a click opens a metric's chart. It also tells the server when another panel
// of the page has changed the steps in view, which the panels drawn by the server must follow.
import { asked, listen, put } from "./address.js";
import { focusedKey, node } from "./dom.js";
import { offer, withdraw } from "./keys.js";
import { spark } from "./tiles.js";

const FIND = "mismatch.find";
const PATIENCE_MS = 250; // between a zoom and the question for what belongs to it: more may follow

export function update(root, view) {
  if (!view.box) build(root, view);
  if (view.version === view.data.version) return;
  view.version = view.data.version;
  const at = view.box.scrollTop;
  const focused = focusedKey(view.box);
  view.hint.textContent = view.data.note;
  view.broken.replaceChildren(...view.data.broken.map((words) => node("p", { class: "lp-text lp-tone-warning", text: words })),
    ...view.data.absent.map((words) => node("p", { class: "lp-text lp-hint", text: words })));
  view.box.replaceChildren(table(view));
  filter(view);
  view.box.scrollTop = at;
  if (focused) [...view.box.querySelectorAll("button")].find((each) => each.dataset.key === focused)?.focus();
}

export function close(_root, view) {
  view.deaf?.();
  withdraw(view);
  clearTimeout(view.question);
}

function build(root, view) {
  view.hint = node("span", { class: "lp-hint" });
  view.find = node("input", { type: "search", value: asked(FIND) ?? "", placeholder: "filter metrics", "aria-label": "filter metrics", autocomplete: "off", spellcheck: "false", oninput: () => { put({ [FIND]: view.find.value }); filter(view); } });
  view.count = node("span", { class: "lp-hint", role: "status" });
  view.broken = node("div", { class: "lp-metrics-broken", role: "status" });
  view.box = node("div", { class: "lp-metrics-box", tabindex: 0, role: "region", "aria-label": "all metrics by pair" });
  root.replaceChildren(node("section", { class: "lp lp-metrics" },
    node("h2", { class: "lp-title" }, "All metrics", view.hint), view.broken, node("div", { class: "lp-tools-line" }, view.find, view.count), view.box));
  offer(view, "Mismatch", [{ keys: ["f"], words: "filter the metrics", run: () => view.find.focus() }]);
  view.steps = asked("steps");
  view.deaf = listen(() => follow(view));
}

function follow(view) {
  const steps = asked("steps");
  if (steps === view.steps) return;
  view.steps = steps;
  clearTimeout(view.question);
  view.question = setTimeout(() => view.send("set", { steps }), PATIENCE_MS);
}

function table(view) {
  const { pairs, groups, neutral } = view.data;
  return node("table", { class: "lp-metrics-table" },
    node("thead", {}, node("tr", {}, node("th", { scope: "col", text: "metric" }), node("th", { scope: "col", text: "worse when" }),
      ...pairs.map(({ name, help, color }) => node("th", { scope: "col", title: help }, node("i", { class: "lp-pair-dot", style: `background:${color}`, "aria-hidden": "true" }), name)))),
    ...groups.map((group) => node("tbody", {},
      node("tr", { class: "lp-metric-group" }, node("th", { colspan: 2 + pairs.length, scope: "rowgroup" }, group.title, node("span", { class: "lp-hint", text: group.note }))),
      ...group.rows.map((row) => line(row, pairs, neutral, view)))));
}

function line(row, pairs, neutral, view) {
  const cells = row.cells.step
    ? [cell(row.cells.step, "value", neutral, pairs.length)]
    : pairs.map(({ name, color }) => cell(row.cells[name], name, color));
  const open = row.key === view.data.selected;
  return node("tr", { class: open ? "lp-metric-open" : undefined, "data-words": `${row.label} ${row.key} ${row.help}`.toLowerCase() },
    node("th", { scope: "row" }, node("button", { type: "button", "data-key": row.key, title: row.help, "aria-pressed": String(open), onclick: () => choose(row.key, view) }, row.label),
      row.unit ? node("span", { class: "lp-unit", text: row.unit }) : null),
    node("td", { class: "lp-metric-worse", title: row.worse_help, "data-label": "worse when", text: row.worse }), ...cells);
}

function cell(data, name, color, span = 1) {
  if (data.undefined) return node("td", { class: "lp-metric-undefined", title: data.undefined, "data-label": name });
  const words = data.said ? "" : data.missing || [data.change, data.late].filter(Boolean).join(" · ");
  return node("td", { colspan: span > 1 ? span : null, "data-label": name, class: data.missing ? "lp-metric-missing" : undefined },
    node("div", { class: "lp-metric-cell" }, node("b", { text: data.value }), node("span", { class: "lp-change", title: data.missing || data.change_help, text: words }),
      data.spark?.length > 1 ? spark(data.spark, color) : null));
}

function choose(key, view) {
  view.send("set", { metric: key });
  document.querySelector(".lp-chart")?.scrollIntoView({ block: "nearest", behavior: "smooth" });
}

// All words must be in a row's name, key, words or formula.
function filter(view) {
  const words = view.find.value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  for (const body of view.box.querySelectorAll("tbody")) {
    let some = 0;
    for (const row of body.querySelectorAll("tr[data-words]")) {
      row.hidden = !words.every((word) => row.dataset.words.includes(word));
      some += row.hidden ? 0 : 1;
    }
    body.hidden = !some;
    found += some;
  }
  view.count.textContent = found ? `${found} metrics` : "no metric matches";
}
