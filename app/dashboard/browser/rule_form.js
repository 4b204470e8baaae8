// The common kind of rule as fields: one metric, one limit. The text is what counts; the fields write it.
import { node } from "./dom.js";

export const BLANK = { name: "my-rule", metric: "backend.k3_kl", slice: "", side: "above", limit: "0.1", clear: "", window: 10, for: 5, keep_firing: 10, severity: "warning", summary: "" };

export function formOf(values, { metrics, slices }, changed) {
  const known = new Map(metrics.map((metric) => [metric.key, metric]));
  const help = node("p", { class: "lp-hint lp-rule-help" });
  const explain = () => { const found = known.get(form.elements.metric.value); help.textContent = found ? `${found.label}${found.unit ? `, in ${found.unit}` : ""}: ${found.words}` : "There is no such metric."; };
  const form = node("form", { class: "lp-rule-fields", "aria-label": "rule as a form", onsubmit: (event) => event.preventDefault(), oninput: () => { explain(); changed(textOf(read(form))); } },
    field("name", "name", node("input", { name: "name", value: values.name, maxlength: 80, autocomplete: "off" })),
    field("severity", "severity", select("severity", values.severity, ["info", "warning", "critical"].map((word) => [word, word]))),
    field("metric", "metric", node("input", { name: "metric", value: values.metric, list: "lp-metrics", autocomplete: "off" })),
    field("slice", "slice", select("slice", values.slice, [["", "whole step"], ...slices.map((name) => [name, `each ${name}`]), ...(values.slice && !slices.includes(values.slice) ? [[values.slice, values.slice]] : [])])),
    field("side", "is bad", select("side", values.side, [["above", "above"], ["below", "below"]])),
    field("limit", "this value", amount("limit", values.limit)),
    field("clear", "clear at (optional)", amount("clear", values.clear)),
    field("window", "median of steps", amount("window", values.window)),
    field("for", "for steps", amount("for", values.for)),
    field("keep_firing", "clear for steps", amount("keep_firing", values.keep_firing)),
    field("summary", "notification text (optional)", node("input", { name: "summary", value: values.summary, maxlength: 200, autocomplete: "off" })),
    help,
    node("datalist", { id: "lp-metrics" }, ...metrics.map((metric) => node("option", { value: metric.key, label: `${metric.label}${metric.unit ? `, ${metric.unit}` : ""}` }))));
  explain();
  return form;
}

const field = (name, label, input) => node("label", { class: `lp-rule-field lp-rule-field-${name}` }, label, input);
const select = (name, value, options) => node("select", { name }, ...options.map(([key, words]) => node("option", { value: key, selected: key === value, text: words })));
const amount = (name, value) => node("input", { name, value: value ?? "", inputmode: "decimal", autocomplete: "off" });

const read = (form) => Object.fromEntries(new FormData(form).entries());

// Values go in as they were typed: anything but a number is refused by the service, with its line.
export function textOf(values) {
  const given = (name) => String(values[name] ?? "").trim();
  const condition = [`${given("side")}: ${scalar(given("limit"))}`];
  if (given("clear")) condition.push(`clear: ${scalar(given("clear"))}`);
  if (given("window") && given("window") !== "1") condition.push(`window: ${scalar(given("window"))}`);
  const [, pair, metric] = /^(backend|update|total)\.(.*)$/.exec(given("metric")) ?? [null, "", given("metric")];
  const lines = [`name: ${scalar(given("name"))}`, `severity: ${given("severity")}`, `metric: ${scalar(metric)}`];
  if (pair) lines.push(`pair: ${pair}`); // said aloud: what is shipped below it may say another one
  if (given("slice")) lines.push(`slice: ${scalar(given("slice"))}`);
  lines.push(`when: {kind: threshold, ${condition.join(", ")}}`);
  for (const name of ["for", "keep_firing"]) if (given(name) && given(name) !== "0") lines.push(`${name}: ${scalar(given(name))}`);
  if (given("summary")) lines.push("annotations:", `  summary: ${JSON.stringify(given("summary"))}`);
  return `${lines.join("\n")}\n`;
}

// Plain where YAML reads it as it is written, else quoted.
const scalar = (text) => (/^[A-Za-z0-9][A-Za-z0-9_.=+-]*$/.test(text) || /^-?[0-9.]+$/.test(text) ? text : JSON.stringify(text));
