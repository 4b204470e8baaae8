// Newest values with what is usual for the run, and a sparkline each.
import { follow, node, svg } from "./dom.js";

const WIDTH = 72;
const HEIGHT = 22;

export function update(root, view) {
  if (view.version === view.data.version) return; // nothing new: leave tooltips and selections alone
  view.version = view.data.version;
  root.replaceChildren(node("section", { class: "lp lp-tiles", "aria-label": "newest values" }, ...view.data.tiles.map((each) => tile(each, view))));
}

function tile(data, view) {
  const place = new URLSearchParams(location.search);
  for (const [name, value] of new URLSearchParams(`page=${data.path.replace("?", "&")}`)) place.set(name, value);
  return node("article", { class: `lp-tile${data.missing ? " lp-missing" : ""}`, "data-metric": data.key },
    node("h3", { title: data.help, "aria-level": "2" }, node("a", { href: `./?${place}`, text: data.label, onclick: (event) => follow(event, view, data.path) })),
    node("p", { class: "lp-value" }, node("b", { text: data.value }), data.unit ? node("span", { class: "lp-unit", text: data.unit }) : null),
    node("p", { class: data.note && !data.waits ? "lp-change lp-note" : "lp-change", title: data.note || data.change_help, text: data.note || data.change || "\u00a0" }),
    data.spark?.length > 1 ? spark(data.spark, data.color) : null,
  );
}

export function spark(values, color) {
  const x = (index) => (index / (values.length - 1)) * (WIDTH - 4) + 2;
  const y = (value) => HEIGHT - 2 - value * (HEIGHT - 4);
  let path = "";
  values.forEach((value, index) => {
    if (value === null) return;
    path += `${index && values[index - 1] !== null ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  const last = values.findLastIndex((value) => value !== null);
  return svg("svg", { class: "lp-spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true", style: `color:${color}` },
    svg("path", { d: path }), svg("circle", { cx: x(last), cy: y(values[last]), r: 1.8 }));
}
