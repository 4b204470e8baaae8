// What is said of one token: the same words in the panel beside the strip, in the table of the worst, and in the file.
import { harmless } from "./dom.js";
import { integer, number } from "./format.js";

const LOGPROBS = [["rollout", "rollout r"], ["trainer", "trainer t"], ["current", "current c"]];

// Log-probs with their names; of the reference policy only where there is one.
export const logprobs = (tokens) => (tokens.reference ? [...LOGPROBS, ["reference", "reference"]] : LOGPROBS);

const at = (column, index) => (column ? column[index] : NaN);
const signed = (text) => text.replace(/^-/, "\u2212");

// Five digits: log-probs are compared with one another.
const digits = (value) => signed(value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(3) : String(Number(value.toPrecision(5))));

export function special(value) {
  if (Number.isNaN(value)) return "NaN";
  if (value === Infinity) return "+inf";
  if (value === -Infinity) return "\u2212inf";
  return null;
}

export const recorded = (tokens, name, index) => Boolean(tokens[name]) && (!tokens[`${name}_known`] || tokens[`${name}_known`][index] === 1);

export function logprob(tokens, name, index) {
  if (!recorded(tokens, name, index)) return "not recorded";
  const value = tokens[name][index];
  return special(value) ?? digits(value);
}

// Short name of what is broken about a token; "" when nothing is.
export function broken(strip, index) {
  const code = strip.tokens.state[index];
  if (code < strip.first_broken) return "";
  const { side, short } = strip.states[code];
  return short || logprob(strip.tokens, side, index);
}

export const text = (strip, index) => strip.texts[strip.tokens.id[index]];

export const version = (strip, index) => {
  const code = strip.tokens.version[index];
  return code < 0 ? "unknown" : strip.versions[code];
};

export function state(strip, index) {
  if (index < strip.first && strip.tokens.state[index] === strip.masked) return "before the first token that is trained on: prompt or context";
  return strip.states[strip.tokens.state[index]].words;
}

// What the correction at `place` does to a token.
export function correction(strip, place, index) {
  const { rules, note } = strip.corrections[place];
  const codes = strip.tokens[`rule${place}`];
  if (!codes) return note;
  const weight = strip.tokens[`weight${place}`][index];
  if (Number.isNaN(weight)) return "\u2013";
  if (strip.corrections[place].dropped.includes(codes[index])) return rules[codes[index]];
  return `weight ${number(weight)}${codes[index] ? `, ${rules[codes[index]]}` : ""}${note ? ` (${note})` : ""}`;
}

export function describe(strip, index) {
  const { tokens } = strip;
  const named = text(strip, index);
  const measured = (name) => number(at(tokens[name], index));
  return [
    ["token", named === undefined ? `id ${tokens.id[index]}` : `${named} \u00a0(id ${tokens.id[index]})`, "lp-tk-text"],
    ["position", `${integer(index)}, in 0\u2013${integer(strip.n - 1)}`],
    ["state", state(strip, index), broken(strip, index) ? "lp-tk-broken" : ""],
    ...logprobs(tokens).map(([name, words]) => [words, logprob(tokens, name, index)]),
    ["d = log \u03c1", measured("d")],
    ["\u03c1", measured("ratio")],
    ["K3 term", measured("k3")],
    ["\u03a3 d so far", strip.measured ? measured("cumulative") : "\u2013"],
    ["entropy", tokens.entropy ? measured("entropy") : "not recorded"],
    ["advantage", tokens.advantage ? measured("advantage") : "not recorded"],
    ["weights", `engine ${version(strip, index)}, trainer ${strip.trainer_version}`],
    ...strip.corrections.map(({ name }, place) => [name, correction(strip, place, index)]),
  ];
}

// --- The file ---

const exact = (value) => (Number.isNaN(value) ? "NaN" : Number.isFinite(value) ? String(Number(value.toPrecision(9))) : value > 0 ? "inf" : "-inf");
const quoted = (value) => `"${harmless(value).replaceAll('"', '""')}"`;

export function csv(strip) {
  const { tokens } = strip;
  const measures = [["d", "log_ratio"], ["ratio", "ratio"], ["k3", "k3"], ["cumulative", "cumulative_log_ratio"], ["entropy", "entropy"], ["advantage", "advantage"]].filter(([name]) => tokens[name]);
  const effects = strip.corrections.map((each, place) => [place, each.name]).filter(([place]) => tokens[`rule${place}`]);
  const head = ["position", "token_id", "text", "state", ...logprobs(tokens).map(([name]) => `${name}_logprob`), ...measures.map(([, name]) => name), "weight_version",
    ...effects.flatMap(([, name]) => [`weight, ${name}`, `rule, ${name}`])];
  const lines = [head.map(quoted).join(",")];
  for (let index = 0; index < strip.n; index += 1) {
    const unmeasured = tokens.state[index] !== 0;
    const value = (name) => (Number.isNaN(tokens[name][index]) || (unmeasured && ["d", "ratio", "k3"].includes(name)) ? "" : exact(tokens[name][index]));
    lines.push([
      index, tokens.id[index], quoted(text(strip, index) ?? ""), quoted(state(strip, index)),
      ...logprobs(tokens).map(([name]) => (recorded(tokens, name, index) ? exact(tokens[name][index]) : "")),
      ...measures.map(([name]) => value(name)),
      tokens.version[index] < 0 ? "" : quoted(version(strip, index)),
      ...effects.flatMap(([place]) => [value(`weight${place}`), quoted(strip.corrections[place].rules[tokens[`rule${place}`][index]])]),
    ].join(","));
  }
  return `${lines.join("\r\n")}\r\n`;
}
