// Small multiples: by place, probability and weight lag, one range of steps as bars and a second one as marks over them.
import { choice, older, pairs } from "./choice.js";
import { node, svg, title } from "./dom.js";
import { integer } from "./format.js";
import { plots } from "./plots.js";

export { closePlots as close } from "./plots.js";

const LABELS = 6;
const HEIGHT = 58;
const BELOW = 2;
const AXIS = 16; // below the last measure of a column
const WIDEST = 56; // pixels of a bucket
const GAP = 0.5; // pixels beside a bar

export function update(root, view) {
  if (view.version === view.data.version || view.typing) return;
  view.version = view.data.version;
  view.root = root;
  const { data } = view;
  const kit = plots(view, groupOf(data));
  root.replaceChildren(node("section", { class: "lp lp-profiles", style: `--pair:${data.color}` },
    title("Profiles", "where in a sequence, at which probability, and from which weights the mismatch comes"),
    node("div", { class: "lp-tools-line" }, pairs(view), ranges(view), ...data.sides.map(key), ...[older(data)].filter(Boolean), kit.tools),
    node("div", { class: "lp-multiples" }, ...data.columns.map((column) => multiple(column, kit)))));
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

function multiple(column, { figures }) {
  const head = node("h3", { title: column.help }, column.title, column.note ? node("span", { class: "lp-hint", text: column.note }) : null);
  if (column.missing) return node("article", { "data-profile": column.key }, head, node("p", { class: "lp-absent", text: column.missing }));
  return node("article", { "data-profile": column.key }, head, ...figures.filter(({ chart }) => chart.family === column.key).map(({ element }) => element));
}

function groupOf(data) {
  const known = data.columns.filter(({ missing }) => !missing);
  return {
    name: `${data.run}-profiles-${data.pair}`, title: `${data.run}, pair ${data.pair}: ${data.sides.map(({ name, steps }) => `${name} (${steps})`).join(", ")}`, fixed: true,
    axis: { column: "bucket", position: String }, words: (at, { family }) => said(data, known.find((column) => column.key === family), at),
    csv: () => csv(data, known), png: { columns: data.measures.length, width: 300 },
    charts: known.flatMap((column) => data.measures.map((measure, at) => chart(measure, column, at, data))),
  };
}

function chart(measure, column, at, data) {
  const sides = column.values[at].slice(0, data.sides.length);
  const last = at === data.measures.length - 1;
  const count = column.labels.length;
  const every = Math.ceil(count / LABELS);
  const values = sides.flat().filter(Boolean);
  const most = values.length ? values.reduce((a, b) => (Math.abs(b.value) > Math.abs(a.value) ? b : a)).text : "–";
  return {
    title: `${measure.title} by ${column.title.toLowerCase()}`, unit: measure.unit, alt: words(measure, column, sides), family: column.key, measure: at, className: "lp-multiple", picture: "lp-bars",
    head: node("figcaption", {}, node("span", { text: measure.title }), measure.unit ? node("span", { class: "lp-unit", text: measure.unit }) : null, node("b", { title: "furthest from 0", text: most })),
    height: HEIGHT + (last ? AXIS : 0), below: last ? AXIS + BELOW : BELOW, left: 0, right: 0, whole: [-0.5, count - 0.5], widest: count * WIDEST,
    stops: column.labels.map((_, place) => place), ticks: () => (last ? column.labels.map((label, place) => [place, label]).filter((_, place) => place % every === 0) : []),
    panes: [{ bare: true, exact: true, zero: true, also: () => [0, ...values.map(({ value }) => value)], under: (x, y, pane) => bars(sides, x, y, pane) }],
  };
}

function bars(sides, x, y, { left, right, bottom }) {
  const wide = x(1) - x(0) - 2 * GAP;
  const rect = (entry, at) => ({ x: x(at) - wide / 2, y: Math.min(y(entry.value), y(0)), width: Math.max(1, wide), height: Math.max(1, Math.abs(y(entry.value) - y(0))) });
  const [first, second] = sides;
  return [
    svg("path", { class: "lp-plot-grid", d: `M${left} ${bottom - 0.5}H${right}` }), svg("path", { class: "lp-zero", d: `M${left} ${y(0)}H${right}` }),
    ...first.flatMap((entry, at) => (entry ? [svg("rect", { class: "lp-bar-value", ...rect(entry, at) })] : [])),
    ...(second ?? []).flatMap((entry, at) => (entry ? [svg("path", { class: "lp-mark-value", d: `M${x(at) - wide / 2 - 1} ${y(entry.value)}h${wide + 2}` })] : [])),
  ];
}

// What is under the cursor: all measures of the bucket.
function said(data, column, at) {
  if (!column) return "";
  const values = data.measures.map((measure, place) => `${measure.title} ${data.sides.map(({ name }, side) => entryText(name, column.values[place][side][at])).join(", ")}`);
  return `${column.title} ${column.labels[at]} · ${values.join(" · ")}`;
}

const entryText = (name, entry) => `${name} ${entry ? `${entry.text} (${integer(entry.tokens)} tokens)` : "no token"}`;

function csv(data, columns) {
  const rows = columns.flatMap((column) => column.labels.flatMap((label, at) => data.sides.map(({ steps }, side) => [
    column.title, label, steps, ...data.measures.map((_, place) => column.values[place][side][at]?.value), column.values[0][side][at]?.tokens])));
  return [["profile", "bucket", "steps", ...data.measures.map(({ title }) => title), "tokens"], ...rows];
}

const words = (measure, column, [first]) =>
  `${measure.title} by ${column.title.toLowerCase()}: ${column.labels.map((label, at) => `${label} ${first[at]?.text ?? "none"}`).join(", ")}`;
