// Slices of the sequences in view: a table that sorts by any column. Names of slices come from outside and go in as text.
import { asked, put } from "./address.js";
import { choice, older, pairs } from "./choice.js";
import { code, node, title } from "./dom.js";
import { integer } from "./format.js";
import { spark } from "./tiles.js";

const SORT = "mismatch.sort";

export function update(root, view) {
  if (view.version === view.data.version) return;
  view.version = view.data.version;
  const { data } = view;
  const open = view.picker?.open;
  view.place = node("div", { class: "lp-scroll lp-slices-box" });
  view.picker = picker(view);
  if (open) view.picker.open = true;
  root.replaceChildren(node("section", { class: "lp lp-slices" },
    title("Slices", "groups of the sequences in view, with the same formulas"),
    node("div", { class: "lp-tools-line" }, pairs(view), choice(view, "mismatch.by", "slice by", data.dimensions, data.dimension), view.picker, ...[older(data)].filter(Boolean)),
    view.place, node("p", { class: "lp-absent" }, ...code([data.missing, data.note].filter(Boolean).join(" · ")))));
  draw(view);
}

function draw(view) {
  const { data } = view;
  const heads = columns(data);
  const wanted = asked(SORT) ?? "";
  const sorted = heads.find(({ key }) => key === wanted.replace(/^-/, ""));
  const down = wanted.startsWith("-");
  const rows = sorted ? [...data.rows].sort((a, b) => compared(sorted.of(a), sorted.of(b), down)) : data.rows;
  view.place.replaceChildren(node("table", { class: "lp-table lp-slices-table", "aria-label": `slices by ${data.dimension}` },
    node("thead", {}, node("tr", {}, ...heads.map((each) => head(each, sorted === each, down, view)), node("th", { scope: "col", text: "K3 over steps" }))),
    node("tbody", {}, ...rows.map((row) => line(row, heads, data)))));
}

function columns(data) {
  return [
    { key: "slice", label: data.dimensions.find(({ key }) => key === data.dimension)?.label ?? "slice", of: (row) => data.rows.indexOf(row), text: (row) => row.slice },
    { key: "sequences", label: "sequences", of: (row) => row.sequences, text: (row) => integer(row.sequences) },
    { key: "tokens", label: "tokens", of: (row) => row.tokens, text: (row) => integer(row.tokens) },
    { key: "share", label: "share of K3", help: "its share of the summed K3 over all tokens of these sequences", of: (row) => row.share.value, text: (row) => row.share.text, bar: true },
    ...data.columns.map(({ key, label, help }, at) => ({ key, label, help, of: (row) => row.cells[at].value, text: (row) => row.cells[at].text })),
  ];
}

// Unknown values stand last, whichever way the rest goes.
function compared(a, b, down) {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  return down ? b - a : a - b;
}

function head({ key, label, help }, sorted, down, view) {
  const usual = key === "slice" ? key : `-${key}`;
  const other = key === "slice" ? `-${key}` : key;
  const next = !sorted ? usual : (down ? `-${key}` : key) === usual ? other : usual;
  return node("th", { scope: "col", "aria-sort": sorted ? (down ? "descending" : "ascending") : "none" },
    node("button", { type: "button", title: help ?? "sort", onclick: () => { put({ [SORT]: next }); draw(view); [...view.place.querySelectorAll("th button")].find((each) => each.dataset.key === key)?.focus(); }, "data-key": key },
      label, node("span", { "aria-hidden": "true", text: sorted ? (down ? " ↓" : " ↑") : "" })));
}

function line(row, heads, data) {
  const cells = heads.map((each, at) => node("td", { "data-label": each.label, class: at ? "lp-slice-number" : row.unknown ? "lp-slice-unknown" : undefined },
    node("div", {}, each.bar ? node("i", { class: "lp-slice-share", style: `--share:${row.share.value ?? 0};background:${data.color}`, "aria-hidden": "true" }) : null, each.text(row),
      at === 0 && row.worse ? node("span", { class: "lp-mark-worse", title: row.worse, text: "worse than the rest" }) : null)));
  return node("tr", { class: row.worse ? "lp-tone-warning" : undefined }, ...cells,
    node("td", { "data-label": "over steps" }, node("div", {}, row.spark.length > 1 ? spark(row.spark, data.color) : "–")));
}

function picker(view) {
  const shown = view.data.columns.map(({ key }) => key);
  const change = (key, wanted) => view.send("set", { "mismatch.columns": (wanted ? [...shown, key] : shown.filter((each) => each !== key)).join(",") });
  return node("details", { class: "lp-picker-columns" }, node("summary", { text: "columns" }), node("div", {}, ...view.data.choices.map(({ key, label }) =>
    node("label", {}, node("input", { type: "checkbox", checked: shown.includes(key), onchange: (event) => change(key, event.target.checked) }), label))));
}
