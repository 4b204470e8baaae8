// The common kind of rule as fields: one metric, one limit. The text is what counts; the fields write it.
import { code, node } from "./dom.js";

export const BLANK = { name: "my-rule", metric: "backend.k3_kl", slice: "", side: "above", limit: "0.1", clear: "", window: 10, for: 5, keep_firing: 10, severity: "warning", summary: "" };

export function formOf(values, { metrics, slices }, changed) {
  const known = new Map(metrics.map((metric) => [metric.key, metric]));
  const help = node("p", { class: "lp-hint lp-rule-help" });
  const explain = () => { const found = known.get(form.elements.metric.value); help.textContent = found ? `${found.label}${found.unit ? `, in ${found.unit}` : ""}: ${found.words}` : "There is no such metric."; };
  let distance = ratio(values.clear, values.limit);
  const follow = (name) => {
    const { clear, limit } = form.elements;
    if (name === "side" && distance) distance = 1 / distance;
    if (name === "clear") distance = ratio(clear.value, limit.value);
    else if (name === "side" || name === "limit") clear.value = moved(distance, limit.value) ?? clear.value;
  };
  const form = node("form", { class: "lp-rule-fields", "aria-label": "rule as a form", onsubmit: (event) => event.preventDefault(), oninput: ({ target }) => { follow(target.name); explain(); changed(textOf(read(form))); } },
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

const field = (name, label, input) => node("div", { class: `lp-rule-field lp-rule-field-${name}` }, node("label", {}, label, input));
const select = (name, value, options) => node("select", { name }, ...options.map(([key, words]) => node("option", { value: key, selected: key === value, text: words })));
const amount = (name, value) => node("input", { name, value: value ?? "", inputmode: "decimal", autocomplete: "off" });

// Where `clear` lies, as a multiple of the limit; null: nowhere, or no multiple of it.
export function ratio(clear, limit) {
  const share = String(clear ?? "").trim() === "" ? Number.NaN : Number(clear) / Number(limit);
  return Number.isFinite(share) ? share : null;
}

// `clear` as far from a new limit as it was from the last one; null: it stays as it is.
export function moved(distance, limit) {
  const value = String(limit).trim() === "" ? Number.NaN : Number(limit) * (distance ?? Number.NaN);
  return Number.isFinite(value) ? String(Number(value.toPrecision(6))) : null;
}

const FIELDS = { above: "limit", below: "limit", clear: "clear", for: "for", keep_firing: "keep_firing", metric: "metric", name: "name", pair: "metric", severity: "severity", side: "side", slice: "slice", summary: "summary", window: "window" };

// The field that a problem of the service is about, and what it says without its place in the text; null: none of them.
export function about(problem) {
  const [, path, words] = /^line \d+: (?:`([\w.]+)`: )?(.*)$/s.exec(problem) ?? [];
  const named = [path?.split(".").pop(), ...[...(words ?? "").matchAll(/`(\w+)`/g)].map(([, name]) => name), /\bmetric\b/.exec(words ?? "")?.[0]];
  const key = named.find((name) => Object.hasOwn(FIELDS, name));
  return key ? [FIELDS[key], words] : null;
}

// Says beside each field what is wrong with it; returns the problems that no field has.
export function complain(form, problems) {
  for (const words of form.querySelectorAll(".lp-rule-field-wrong")) words.remove();
  for (const input of form.elements) { input.removeAttribute("aria-invalid"); input.removeAttribute("aria-describedby"); }
  return problems.filter((problem) => {
    const [name, words] = about(problem) ?? [];
    const input = form.elements[name];
    if (!input) return true;
    const id = `lp-rule-wrong-${name}`;
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-describedby", id);
    input.closest(".lp-rule-field").append(node("span", { class: "lp-rule-field-wrong lp-tone-critical", id, role: "status" }, ...code(words)));
    return false;
  });
}

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
