// The correction of a run over its steps: what it did to the gap, how much it masked, and what was decided when.
import { node } from "./dom.js";
import { integer } from "./format.js";
import { ruleChart, swatch } from "./rule_chart.js";

export function update(root, view) {
  if (view.version === view.data.version) return;
  view.version = view.data.version;
  if (!view.host) {
    view.host = node("div", { class: "lp-trend" });
    root.replaceChildren(node("section", { class: "lp lp-report", "aria-label": "trend of the correction" },
      node("h2", { class: "lp-title" }, "Trend", node("span", { class: "lp-hint", text: "over the steps of the run" })), view.host));
    view.sizes = new ResizeObserver(() => draw(view));
    view.sizes.observe(view.host);
  }
  draw(view);
}

export function close(_root, view) {
  view.sizes?.disconnect();
}

function draw(view) {
  const { data } = view;
  const width = Math.floor(view.host.clientWidth);
  if (!width) return;
  const columns = data.rows.length > 1 && width > 760 ? 2 : 1;
  const each = Math.floor((width - (columns - 1) * 14) / columns);
  const steps = [data.first, data.last];
  view.host.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  view.host.replaceChildren(...data.rows.map((row) => node("figure", { class: "lp-trend-row" },
    node("figcaption", {}, row.title, row.unit ? node("span", { class: "lp-unit", text: row.unit }) : null,
      row.below ? node("span", { class: "lp-unit", text: ` ${row.below} below the axis` }) : null),
    ruleChart({ lines: [{ points: row.points }], spans: data.spans, marks: data.marks, limits: [], steps, log: row.log, floor: row.floor, alt: `${row.title}. ${data.alt}` }, each))),
    node("p", { class: "lp-hint lp-rule-key lp-trend-key" }, swatch("announced"), "announced", swatch("on"), "correction on",
      ...data.marks.slice(0, 12).flatMap(({ step, word, tone }) => [node("i", { class: `lp-trend-tick lp-tone-${tone}`, "aria-hidden": "true" }), `${word}, step ${integer(step)}`])));
}
