// The correction of a run over its steps: what it did to the gap, how much it masked, and what was decided when.
import { node, title } from "./dom.js";
import { integer } from "./format.js";
import { plots, stepAxis } from "./plots.js";
import { ruleChart, swatch } from "./rule_chart.js";

export { closePlots as close } from "./plots.js";

export function update(root, view) {
  if (view.version === view.data.version) return;
  view.version = view.data.version;
  const { data } = view;
  const { tools, figures } = plots(view, {
    ...stepAxis, name: `${data.run}-correction`, title: `correction of ${data.run}`, whole: [data.first, Math.max(data.last, data.first + 1)],
    charts: data.rows.map((row) => ruleChart({ ...row, lines: [{ points: row.points }], spans: data.spans, marks: data.marks, limits: [],
      note: row.below ? `${row.below} below the axis` : "", alt: `${row.title}. ${data.alt}` })),
    png: { columns: 2 },
  });
  root.replaceChildren(node("section", { class: "lp lp-report", "aria-label": "trend of the correction" },
    title("Trend", "over the steps of the run", tools),
    node("div", { class: "lp-trend" }, ...figures.map(({ element }) => element),
      node("p", { class: "lp-hint lp-rule-key lp-trend-key" }, swatch("announced"), "announced", swatch("on"), "correction on",
        ...data.marks.slice(0, 12).flatMap(({ step, word, tone }) => [node("i", { class: `lp-trend-tick lp-tone-${tone}`, "aria-hidden": "true" }), `${word}, step ${integer(step)}`])))));
}
