// Small multiples: by place, probability and weight lag, one range of steps as bars and a second one as marks over them.
import { choice, older, pairs } from "./choice.js";
import { node } from "./dom.js";
import { integer } from "./format.js";

const LABELS = 6;

export function update(root, view) {
  if (view.version === view.data.version || view.typing) return;
  view.version = view.data.version;
  view.root = root;
  const { data } = view;
  view.cursor = node("span", { class: "lp-cursor", "aria-live": "off" });
  root.replaceChildren(node("section", { class: "lp lp-profiles", style: `--pair:${data.color}` },
    node("h2", { class: "lp-title" }, "Profiles", node("span", { class: "lp-hint", text: "where in a sequence, at which probability, and from which weights the gap comes" })),
    node("div", { class: "lp-tools-line" }, pairs(view), ranges(view), ...data.sides.map(key), ...[older(data)].filter(Boolean), view.cursor),
    node("div", { class: "lp-multiples" }, ...data.columns.map((column) => multiple(column, view)))));
}

function ranges(view) {
  const other = view.data.choice !== "view" && view.data.choice !== "ends";
  const given = node("input", {
    type: "text", value: other ? view.data.choice : "", placeholder: "0:49", "aria-label": "steps to compare with, A:B", size: 8, maxlength: 40, autocomplete: "off",
    onfocus: () => { view.typing = true; }, onblur: () => { view.typing = false; update(view.root, view); },
    onkeydown: (event) => { if (event.key === "Enter") { event.preventDefault(); given.blur(); view.send("set", { "mismatch.profile": given.value.trim() }); } },
  });
  const options = [{ key: "view", label: "in view", help: "the steps in view" }, { key: "ends", label: "last 10 % against first 10 %", help: "of the steps in view" }];
  const buttons = choice({ send: (kind, { "mismatch.profile": wanted }) => view.send(kind, { "mismatch.profile": wanted === "view" ? null : wanted }) }, "mismatch.profile", "ranges of steps", options, view.data.choice);
  return node("span", { class: "lp-against" }, buttons, node("label", { class: other ? "lp-chosen" : undefined }, "against steps ", given));
}

const key = ({ name, steps }, at) =>
  node("span", { class: "lp-key" }, node("i", { class: at ? "lp-key-mark" : "lp-key-bar", "aria-hidden": "true" }), name, node("span", { class: "lp-hint", text: steps }));

function multiple(column, view) {
  const head = node("h3", { title: column.help }, column.title, column.note ? node("span", { class: "lp-hint", text: column.note }) : null);
  if (column.missing) return node("article", { "data-profile": column.key }, head, node("p", { class: "lp-absent", text: column.missing }));
  return node("article", { "data-profile": column.key }, head, ...view.data.measures.map((measure, at) => chart(measure, column, column.values[at], view)), axis(column.labels));
}

function chart(measure, column, sides, view) {
  const known = sides.flat().filter(Boolean);
  const values = known.map(({ value }) => value);
  const scale = { low: Math.min(0, ...values), high: Math.max(0, ...values) };
  const most = known.length ? known.reduce((a, b) => (Math.abs(b.value) > Math.abs(a.value) ? b : a)).text : "–";
  const cells = column.labels.map((label, at) => bucket(label, sides.map((side) => side[at]), scale, measure, column, view));
  return node("div", { class: "lp-multiple", role: "img", "aria-label": words(measure, column, sides) },
    node("p", {}, node("span", { text: measure.title }), measure.unit ? node("span", { class: "lp-unit", text: measure.unit }) : null, node("b", { title: "furthest from 0", text: most })),
    node("div", { class: "lp-bars" }, scale.low < 0 ? node("i", { class: "lp-zero", style: `--from:${percent(0, scale)}` }) : null, ...cells));
}

const percent = (value, { low, high }) => `${(100 * (value - low)) / (high - low || 1)}%`;

function bucket(label, [first, second], scale, measure, column, view) {
  const text = [first, second].slice(0, view.data.sides.length).map((entry, at) => `${view.data.sides[at].name} ${entry ? `${entry.text} (${integer(entry.tokens)} tokens)` : "no token"}`);
  const said = `${column.title} ${label} · ${measure.title}: ${text.join(", ")}`;
  const size = first ? Math.abs(first.value) / (scale.high - scale.low || 1) : 0;
  return node("span", { title: said, onpointerenter: () => { view.cursor.textContent = said; }, onpointerleave: () => { view.cursor.textContent = ""; } },
    first ? node("i", { class: "lp-bar-value", style: `--from:${percent(Math.min(first.value, 0), scale)};--size:${100 * size}%` }) : null,
    second ? node("i", { class: "lp-mark-value", style: `--to:${percent(second.value, scale)}` }) : null);
}

function axis(labels) {
  const every = Math.ceil(labels.length / LABELS);
  return node("div", { class: "lp-bars lp-bar-labels", "aria-hidden": "true" }, ...labels.map((label, at) => node("span", { text: at % every ? "" : label })));
}

const words = (measure, column, [first]) =>
  `${measure.title} by ${column.title.toLowerCase()}: ${column.labels.map((label, at) => `${label} ${first[at]?.text ?? "none"}`).join(", ")}`;
