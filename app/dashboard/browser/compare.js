// Runs against a baseline: what is compared, a sentence per run, verdicts, onsets, charts, and what was set up differently.
// A part is redrawn only when its data changed, so that an open menu, a selection or a place in a table is never lost.
import { drawCharts } from "./compare_charts.js";
import { code, download, node, table, title } from "./dom.js";
import { sample, savePng } from "./plots.js";

export { closePlots as close } from "./plots.js";

const MARKS = { worse: "▼", better: "▲", same: "=", differs: "≠", unknown: "?" };

export function update(root, view) {
  if (!view.parts) build(root, view);
  const { data } = view;
  part(view, "choice", data.choice, choice);
  part(view, "elsewhere", data.choice.elsewhere, elsewhere);
  if (data.file && data.file.at !== view.given) hand(view, data.file);
  part(view, "adder", data.verdicts && { metrics: data.choice.metrics, shown: data.choice.shown }, adder);
  if (data.version && data.version === view.version) return;
  view.version = data.version;
  part(view, "verdicts", data.verdicts && { verdicts: data.verdicts, looks: data.looks }, verdicts);
  part(view, "matrix", data.matrix && { matrix: data.matrix, looks: data.looks, single: data.verdicts.length === 1, table: data.tables }, metrics);
  part(view, "charts", data.charts && { charts: data.charts, looks: data.looks, axis: data.axis }, drawCharts);
  part(view, "onsets", data.onsets && { onsets: data.onsets, looks: data.looks }, onsets);
  part(view, "settings", data.settings && { settings: data.settings }, settings);
}

function build(root, view) {
  view.parts = {};
  view.open = new Set();
  const names = ["choice", "verdicts", "settings", "matrix", "adder", "charts", "onsets", "elsewhere"];
  for (const name of names) view.parts[name] = { place: node("div", { class: `lp-compare-${name}` }) };
  root.replaceChildren(node("section", { class: "lp lp-report lp-compare", "aria-label": "comparison" }, ...names.map((name) => view.parts[name].place)));
}

function part(view, name, data, draw) {
  const text = JSON.stringify(data ?? null);
  const known = view.parts[name];
  if (known.text === text) return;
  known.text = text;
  if (data) draw(known.place, data, view);
  else known.place.replaceChildren();
}

function choice(place, data, view) {
  const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  const others = data.runs.filter((name) => name !== data.baseline && !data.chosen.includes(name));
  const full = data.chosen.length >= data.most;
  fill(place,
    node("div", { class: "lp-cmp-chooser" },
      field("baseline", select("baseline", [["", "choose …"], ...data.runs.map(entry)], data.baseline ?? "", (name) => view.send("set", without(data, name)))),
      field("compared", node("span", { class: "lp-cmp-chips" },
        ...data.chosen.map((name) => chip(name, data, view)),
        others.length && !full ? select("add a run", [["", "add a run …"], ...others.map(entry)], "", (name) => name && chosen(view, [...data.chosen, name])) : null)),
      field("aligned by", node("span", { class: "lp-cmp-choices", role: "group", "aria-label": "align by" },
        ...data.axes.map(([key, words]) => node("button", { type: "button", "aria-pressed": String(key === data.align), "aria-label": `align by ${words}`, text: words, onclick: () => view.send("set", { align: key === "step" ? null : key }) })))),
      data.missing ? null : field("report", node("span", { class: "lp-cmp-choices" }, wish("html", "HTML", view), wish("json", "JSON", view), wish("csv", "CSV", view, "the values of the charts"), picture(view)))),
    ...data.notes.map((words) => node("p", { class: "lp-text lp-tone-warning", role: "status", text: words })),
    data.missing ? node("p", { class: "lp-text lp-tone-info", role: "status", text: data.missing }) : null,
    data.missing && data.runs.length > 1 ? offers(data, view) : null);
  if (focused) [...place.querySelectorAll("[aria-label]")].find((each) => each.getAttribute("aria-label") === focused)?.focus();
}

function elsewhere(place, words) {
  fill(place, node("p", { class: "lp-text lp-hint" }, ...code(words)));
}

const fill = (place, ...content) => place.replaceChildren(...content.filter(Boolean));

const entry = (name) => [name, name];
const inAddress = (names) => names.map((name) => name.replace(/[%,]/g, encodeURIComponent)).join(","); // a comma may be part of a name
const chosen = (view, names) => view.send("set", { runs: inAddress(names) });
// A run that becomes the baseline is compared no more.
const without = (data, name) => ({ baseline: name, runs: inAddress(data.chosen.filter((each) => each !== name)) });

// What to begin with, as buttons: the first thing somebody does on this page.
function offers(data, view) {
  const toBaseline = !data.baseline;
  const names = data.runs.filter((name) => name !== data.baseline && !data.chosen.includes(name));
  const pick = (name) => (toBaseline ? view.send("set", without(data, name)) : chosen(view, [name]));
  return node("div", { class: "lp-actions" }, ...names.slice(0, 12).map((name) => node("button", { class: "lp-button", type: "button", text: name, onclick: () => pick(name) })));
}

const field = (words, ...content) => node("div", { class: "lp-cmp-field" }, node("span", { class: "lp-cmp-field-name", text: words }), ...content);

function select(label, options, value, change) {
  const element = node("select", { "aria-label": label, onchange: (event) => change(event.target.value) },
    ...options.map(([key, words]) => node("option", { value: key, text: words })));
  element.value = value;
  return element;
}

function chip(name, data, view) {
  return node("span", { class: "lp-cmp-chip" }, node("span", { class: "lp-name", text: name }),
    data.chosen.length > 1 ? node("button", { type: "button", "aria-label": `leave out ${name}`, title: `leave out ${name}`, text: "×", onclick: () => chosen(view, data.chosen.filter((each) => each !== name)) }) : null);
}

const wish = (id, words, view, what = "the comparison") =>
  node("button", { type: "button", "aria-label": `download ${words}`, title: `download ${what} as one ${words} file`, text: words, onclick: () => view.send("do", { id, at: Date.now() }) });

const picture = (view) =>
  node("button", { type: "button", "aria-label": "download PNG", title: "download the charts as one PNG file", text: "PNG", onclick: () => { if (view.kit) savePng(view.kit); } });

function hand(view, file) {
  view.given = file.at;
  download(file.text, file.type, file.name);
}

const lookOf = (looks, name) => looks.find((look, at) => at > 0 && look.name === name) ?? looks[0];

function verdicts(place, { verdicts: items, looks }) {
  place.replaceChildren(node("ul", { class: "lp-cmp-outcomes" }, ...items.map((item) =>
    node("li", { class: `lp-cmp-outcome lp-is-${item.tone}` }, sample(lookOf(looks, item.run)), node("b", { class: "lp-name", text: item.run }),
      node("span", { class: "lp-cmp-outcome-words" }, item.words, node("span", { class: "lp-hint", text: ` · ${item.note}` }))))));
}

const WIDE = "lp-cmp-wide-table";

// One run: a table with the numbers. Several: who is what, metric by metric, and the numbers of each run below, on demand.
function metrics(place, { matrix, looks, single, table }, view) {
  const tables = table.runs.map((run) => numbers(run, table.head, matrix, view));
  fill(place,
    title("Verdicts", "intervals account for autocorrelation; final: the value in the last tenth of the common steps, not a distance; area: the summed difference of the values; click a metric to show or hide its chart"),
    single ? tables[0] : overview(matrix, looks, view),
    ...(single ? [] : table.runs.map((run, at) => fold(view, run.run, `numbers and reasons of ${run.run}`, tables[at]))));
}

function overview(matrix, looks, view) {
  const head = ["metric", ...looks.slice(1).map((look) => node("th", { scope: "col" }, sample(look), look.name))];
  return table("verdicts", head, matrix.map((line) => node("tr", {}, node("th", { scope: "row" }, toggle(line, view)),
    ...line.cells.map((cell, at) => node("td", { class: `lp-is-${cell.tone}`, "data-label": looks[at + 1]?.name, title: cell.reason }, ...word(cell))))), ["lp-cmp-matrix", WIDE]);
}

const word = ({ verdict, change }) => [node("span", { class: "lp-verdict-mark", "aria-hidden": "true", text: MARKS[verdict] }), node("b", { text: verdict }), change ? node("span", { class: "lp-hint", text: ` ${change}` }) : null];

function numbers(run, head, matrix, view) {
  const lines = run.rows.map(({ tone, cells }, at) => node("tr", {}, ...cells.map((words, column) => cell(words, head[column], column, tone, matrix[at], view))));
  return table(`numbers of ${run.run}`, head, lines, ["lp-cmp-numbers", WIDE]);
}

function cell(words, label, column, tone, line, view) {
  const content = column === 0 ? [toggle(line, view)] : column === 1 ? word({ verdict: words, change: null }) : [words];
  return node("td", { "data-label": label, class: column === 1 ? `lp-is-${tone}` : undefined }, node("div", {}, ...content));
}

function toggle(line, view) {
  const shown = view.data.choice.shown;
  const next = line.shown ? shown.filter((key) => key !== line.key) : [...shown, line.key];
  return node("button", { class: "lp-cmp-toggle", type: "button", "aria-pressed": String(line.shown), title: `${line.help}\n${line.shown ? "Hide" : "Show"} its chart.`, text: line.label,
    onclick: () => next.length && view.send("set", { metric: next.join(",") }) });
}

function adder(place, { metrics: keys, shown }, view) {
  fill(place, select("compare another metric", [["", "compare another metric …"], ...keys.map((key) => [key, key])], "", (key) => key && view.send("set", { metric: [...shown, key].join(",") })));
}

// Stays as the reader left it when its content is redrawn.
function fold(view, key, words, content) {
  const element = node("details", { open: view.open.has(key), ontoggle: () => (element.open ? view.open.add(key) : view.open.delete(key)) }, node("summary", { text: words }), content);
  return element;
}

function onsets(place, { onsets: { head, rows }, looks }) {
  const lines = rows.map((row, at) => node("tr", {}, ...row.map((words, column) => node("td", { "data-label": head[column] }, node("div", {}, column ? null : sample(looks[at] ?? looks[0]), words)))));
  place.replaceChildren(title("Onsets", "when K3 left the baseline, and when it started to grow by the run's own past"), table("onsets", head, lines));
}

function settings(place, { settings: { head, rows } }) {
  const words = "settings that differ from the baseline's, those that affect log-probs first";
  fill(place, title("Configuration", words), rows.length ? configuration(head, rows) : node("p", { class: "lp-text lp-hint", text: "No recorded settings differ." }));
}

function configuration(head, rows) {
  return table("configuration", head, rows.map((row) => node("tr", { class: row.at(-1) ? "lp-tone-warning" : undefined },
    ...row.map((words, column) => node("td", { "data-label": head[column] }, node("div", {}, words || (column < row.length - 1 ? node("span", { class: "lp-hint", text: "the same" }) : "")))))), ["", WIDE]);
}
