// The Tokens page: a step, its worst sequences, and every token of one of them.
import { asked, put } from "./address.js";
import { choice, pairs } from "./choice.js";
import { code, download, node } from "./dom.js";
import { integer, number } from "./format.js";
import { offer, withdraw } from "./keys.js";
import { chooser, trend } from "./token_charts.js";
import { gradient, palette } from "./token_paint.js";
import { Strip } from "./token_strip.js";
import { broken, correction, csv, describe, logprob, logprobs, state, text, version } from "./token_text.js";
import { unpackArray } from "./traces.js";

const PATIENCE_MS = 250; // a key that is held down asks for one step, not for every one on the way
const ROWS = 12; // of the table
const kept = new Map(); // the columns of the sequences looked at last, by version: they travel once

export function update(root, view) {
  if (view.version === view.data.version) {
    if (view.data.strip && !view.shown) strip(view); // the columns, or that they were asked for, got lost
    return;
  }
  if (!view.parts) build(root, view);
  view.version = view.data.version;
  view.colors = palette(view.data.colors);
  replaced(view.parts.pairs, pairs(view));
  steps(view);
  sequences(view);
  view.parts.notes.replaceChildren(...view.data.notes.map((words) => node("p", { class: "lp-text lp-tone-warning", role: "status" }, ...code(words))));
  view.parts.facts.replaceChildren(...view.data.facts.map(([name, value]) => node("div", {}, node("dt", { text: name }), node("dd", { text: value }))));
  strip(view);
}

export function close(_root, view) {
  withdraw(view);
  view.strip?.close();
  view.sizes?.disconnect();
  clearTimeout(view.later);
}

function build(root, view) {
  view.strip = new Strip((index) => chosen(view, index), (index) => inspect(view, index ?? view.selected));
  const parts = {
    pairs: node("span"),
    step: node("input", { class: "lp-tk-step", type: "text", inputmode: "numeric", autocomplete: "off", "aria-label": "step", title: "type a step; the nearest one is opened", onchange: (event) => typed(view, event.target.value), onkeydown: (event) => { if (event.key === "Escape") paintSteps(view, true); } }),
    about: node("span", { class: "lp-hint" }),
    steps: node("canvas", { "aria-hidden": "true" }),
    notes: node("div", { class: "lp-tk-notes" }),
    list: node("div", { class: "lp-tk-sequences", role: "listbox", "aria-label": "worst sequences of the step", onkeydown: (event) => walk(event) }),
    facts: node("dl", { class: "lp-tk-facts" }),
    legend: node("div", { class: "lp-tk-legend" }),
    modes: node("span"),
    trend: node("canvas", { "aria-hidden": "true" }),
    sum: node("p", { class: "lp-hint" }),
    inspector: node("dl", { class: "lp-tk-inspector", "aria-label": "the token" }),
    table: node("div", { class: "lp-scroll" }),
    wait: node("p", { class: "lp-hint", text: "Loading tokens …", hidden: true }),
  };
  view.parts = parts;
  parts.slider = node("div", { class: "lp-tk-chooser", role: "slider", tabindex: "0", onkeydown: (event) => stepKey(view, event), onpointermove: (event) => about(view, view.stepAt?.(offset(event))), onpointerleave: () => about(view, null), onclick: (event) => go(view, view.stepAt?.(offset(event))) }, parts.steps);
  parts.map = node("div", { class: "lp-tk-trend", role: "img", onclick: (event) => view.strip.select(view.tokenAt(offset(event))) }, parts.trend);
  parts.save = node("button", { class: "lp-button", type: "button", text: "CSV", title: "every token of this sequence, with all digits", onclick: () => save(view) });
  const arrow = (words, by, sign) => node("button", { class: "lp-tk-arrow", type: "button", "aria-label": words, title: words, text: sign, onclick: () => move(view, by) });
  parts.body = node("div", { class: "lp-tk-body" },
    node("div", { class: "lp-tk-main" },
      node("div", { class: "lp-tk-head" }, parts.legend, parts.modes, parts.save), view.strip.element, parts.map, parts.sum, parts.facts),
    parts.inspector);
  root.replaceChildren(node("section", { class: "lp lp-tokens", "aria-label": "tokens" },
    node("div", { class: "lp-tk-tools" }, parts.pairs, node("div", { class: "lp-tk-stepper" }, arrow("previous step", -1, "‹"), "step", parts.step, arrow("next step", 1, "›")), parts.about),
    parts.slider, parts.notes,
    node("div", { class: "lp-tk-grid" }, parts.list, node("div", { class: "lp-tk-right" }, parts.wait, parts.body, parts.table))));
  offer(view, "Tokens", [
    { keys: ["n"], words: "next worst token", run: () => view.strip.ranked(1) },
    { keys: ["N"], words: "worse token", run: () => view.strip.ranked(-1) },
    { keys: ["["], words: "previous step", run: () => move(view, -1) },
    { keys: ["]"], words: "next step", run: () => move(view, 1) },
    { keys: ["←", "→", "↑", "↓"], words: "move through tokens or steps that have focus" },
  ]);
  view.sizes = new ResizeObserver(() => repaint(view));
  view.sizes.observe(root);
}

const offset = (event) => event.clientX - event.currentTarget.getBoundingClientRect().left;

// Rebuilt buttons take the focus of those that they replace.
function replaced(place, made) {
  const focused = place.contains(document.activeElement);
  place.replaceChildren(made);
  if (focused) place.querySelector("[aria-pressed=true]")?.focus();
}

// --- Steps ---

function steps(view) {
  const { chooser: given } = view.data;
  view.steps = zoomed(Object.fromEntries(["step", "k3", "broken", "marks"].map((name) => [name, unpackArray(given[name])])), view.data.step);
  if (view.wanted === view.data.step || !view.steps.step.includes(view.wanted)) view.wanted = null;
  view.parts.slider.setAttribute("aria-label", given.alt);
  view.parts.slider.setAttribute("aria-valuemin", view.steps.step[0]);
  view.parts.slider.setAttribute("aria-valuemax", view.steps.step[view.steps.step.length - 1]);
  paintSteps(view);
}

// The steps that the address limits all charts to, as long as the one that is looked at is among them.
function zoomed(columns, chosen) {
  const [from, to] = (/^(\d+):(\d+)$/.exec(asked("steps") ?? "") ?? []).slice(1).map(Number);
  if (!(chosen >= from && chosen <= to)) return columns;
  const inside = [...columns.step.keys()].filter((at) => columns.step[at] >= from && columns.step[at] <= to);
  return Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, inside.map((at) => values[at])]));
}

const current = (view) => view.wanted ?? view.data.step;

// `anyway`: also over what is being typed.
function paintSteps(view, anyway = false) {
  view.stepAt = chooser(view.parts.steps, view.steps, view.colors, current(view));
  if (anyway || view.parts.step !== document.activeElement) view.parts.step.value = String(current(view));
  view.parts.slider.setAttribute("aria-valuenow", current(view));
  view.parts.slider.setAttribute("aria-valuetext", stepWords(view, view.steps.step.indexOf(current(view))));
  about(view, null);
}

function stepWords(view, at) {
  const { step, k3, broken: sick, marks } = view.steps;
  return [`step ${integer(step[at])}`, `K3 ${number(k3[at])}`, sick[at] > 0 ? `${integer(sick[at])} broken tokens` : "", marks[at] & 1 ? "" : "no raw tokens kept"].filter(Boolean).join(" · ");
}

// What stands under the pointer, or the step that is looked at.
function about(view, at) {
  const usual = stepWords(view, view.steps.step.indexOf(current(view))).split(" · ").slice(1).join(" · ");
  view.parts.about.textContent = at === null || at === undefined ? [usual, view.data.note].filter(Boolean).join(" · ") : stepWords(view, at);
}

function go(view, at) {
  if (at === undefined || at === null || !(at in view.steps.step)) return;
  view.wanted = view.steps.step[at];
  put({ token: null });
  paintSteps(view);
  clearTimeout(view.later);
  view.later = setTimeout(() => view.send("set", { step: view.wanted, sequence: null }), PATIENCE_MS);
}

// Opens the step that is nearest to what was typed; anything but a number changes nothing.
function typed(view, text) {
  const wanted = Number(text.replaceAll(",", "").trim() || Number.NaN);
  const { step } = view.steps;
  if (Number.isFinite(wanted)) go(view, [...step.keys()].reduce((best, at) => (Math.abs(step[at] - wanted) < Math.abs(step[best] - wanted) ? at : best), 0));
  paintSteps(view, true);
}

const move = (view, by) => go(view, view.steps.step.indexOf(current(view)) + by);

function stepKey(view, event) {
  const last = view.steps.step.length - 1;
  const at = view.steps.step.indexOf(current(view));
  const moves = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, PageUp: Math.min(last, at + 10), PageDown: Math.max(0, at - 10), Home: 0, End: last };
  if (!(event.key in moves) || event.metaKey || event.ctrlKey || event.altKey) return;
  event.preventDefault();
  go(view, moves[event.key]);
}

// --- Sequences ---

function sequences(view) {
  const listed = JSON.stringify(view.data.sequences);
  if (listed === view.listed) return;
  view.listed = listed;
  const focused = view.parts.list.contains(document.activeElement);
  view.parts.list.replaceChildren(...view.data.sequences.map((each) => node("button", {
    class: `lp-tk-sequence${each.broken ? " lp-tone-critical" : ""}`, type: "button", role: "option", "aria-selected": String(each.chosen), tabindex: each.chosen ? "0" : "-1",
    onclick: () => { if (!each.chosen) { put({ token: null }); view.send("set", { sequence: each.sample }); } },
  }, node("span", { class: "lp-name", text: each.name }), node("b", { text: each.share, title: "share of the step's K3" }), node("i", { class: "lp-tk-share", "aria-hidden": "true", style: `width:${Math.min(100, 100 * each.bar).toFixed(1)}%` }),
  node("span", { class: "lp-hint", text: each.words.join(" · ") }))));
  if (focused) view.parts.list.querySelector("[aria-selected=true]")?.focus();
}

function walk(event) {
  const options = [...event.currentTarget.querySelectorAll("button")];
  const at = options.indexOf(document.activeElement);
  const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: options.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  options[Math.max(0, Math.min(options.length - 1, next))]?.focus();
}

// --- The strip ---

function strip(view) {
  const { strip: given } = view.data;
  const { body, map, sum, wait, table } = view.parts;
  const known = given && received(given);
  body.hidden = !given && !view.data.facts.length;
  body.classList.toggle("lp-tk-gone", !known);
  table.hidden = !known?.worst.length;
  map.hidden = sum.hidden = !known?.measured; // a line at 0 would say that the two sides agree
  wait.hidden = !given || Boolean(known);
  if (given && !known) view.send("do", { id: "strip", at: Date.now() });
  const look = known ? `${known.version} ${view.data.colors.page}` : null;
  if (look === view.look) return; // what is scrolled to and pointed at stays the reader's
  view.look = look;
  if (!known) { view.shown = null; return; }
  const other = view.shown?.version !== known.version;
  view.shown = known;
  if (other) view.selected = start(known);
  modes(view);
  legend(view);
  view.strip.show(known, view.colors, mode(view), view.selected);
  map.setAttribute("aria-label", `Σ d over the positions of the sequence, ending at ${number(known.tokens.cumulative[known.n - 1])}.`);
  sum.textContent = `Σ d, summed up from the first token on${known.turns.length ? `; ${integer(known.turns.length + 1)} turns` : ""}${known.switches.length ? `; weights switched ${integer(known.switches.length)} ×` : ""}`;
  table.replaceChildren(worst(view));
  repaint(view);
  inspect(view, view.selected);
}

function received(given) {
  if (given.columns) {
    const { columns, ...rest } = given;
    const tokens = Object.fromEntries(Object.entries(columns).map(([name, packed]) => [name, unpackArray(packed)]));
    kept.set(given.version, { ...rest, tokens });
    if (kept.size > 3) kept.delete(kept.keys().next().value);
  }
  return kept.get(given.version);
}

// The token the address names, or the worst.
function start(known) {
  const named = asked("token");
  return named !== null && /^\d+$/.test(named) && Number(named) < known.n ? Number(named) : known.worst[0] ?? 0;
}

const MODES = { text: "the tokens' text", ids: "the tokens' ids", squares: "one square per token" };
const LONG = 2000;

function mode(view) {
  const named = asked("strip");
  const readable = Object.keys(view.shown.texts).length > 0;
  if (named in MODES && (named !== "text" || readable)) return named;
  return readable ? "text" : view.shown.n > LONG ? "squares" : "ids";
}

function modes(view) {
  const readable = Object.keys(view.shown.texts).length > 0;
  const options = Object.entries(MODES).filter(([name]) => name !== "text" || readable).map(([key, help]) => ({ key, label: key, help }));
  replaced(view.parts.modes, choice({ send: (_, address) => drawn(view, address) }, "strip", "how tokens are drawn", options, mode(view)));
}

function drawn(view, address) {
  put(address);
  modes(view);
  view.strip.show(view.shown, view.colors, mode(view), view.selected);
}

function legend(view) {
  const { shown, colors } = view;
  const has = (test) => shown.tokens.state.some(test);
  const first = shown.corrections[0];
  const key = (name, words, title) => node("span", { class: "lp-tk-key", title }, node("i", { class: `lp-tk-mark lp-tk-mark-${name}`, "aria-hidden": "true" }), words);
  view.parts.legend.replaceChildren(...[
    node("span", { class: "lp-tk-scale", title: "colour of ρ, linear in log ρ; full from 4 on" }, "ρ ≤ ¼", node("i", { style: `background:${gradient(colors)}`, "aria-hidden": "true" }), "≥ 4"),
    has((value) => value === shown.masked) ? key("masked", "masked", "not trained on") : null,
    has((value) => value > shown.masked && value < shown.first_broken) ? key("missing", "not recorded", "one of the two log-probs was not recorded") : null,
    has((value) => value >= shown.first_broken) ? key("broken", "broken", "not a valid log-prob; left out of every value") : null,
    shown.switches.length ? key("switch", "new weights", "the engine's weights changed before this token") : null,
    shown.turns.length ? key("turn", "turn", "a turn starts") : null,
    shown.tokens.rule0?.some((value) => first.dropped.includes(value)) ? key("dropped", `dropped: ${first.name}`, first.config) : null,
    shown.tokens.rule0?.some((value) => first.limited.includes(value)) ? key("limited", `limited: ${first.name}`, first.config) : null,
  ].filter(Boolean));
}

function chosen(view, index) {
  view.selected = index;
  put({ token: index });
  inspect(view, index);
  paintTrend(view);
}

function inspect(view, index) {
  if (!view.shown?.n) return;
  view.parts.inspector.replaceChildren(...describe(view.shown, index).flatMap(([name, value, tone]) => [node("dt", { text: name }), node("dd", { class: tone || undefined, text: value })]));
}

function paintTrend(view) {
  view.tokenAt = trend(view.parts.trend, view.shown, view.colors, view.selected);
}

function repaint(view) {
  if (!view.data || !view.steps || !view.parts.slider.clientWidth) return;
  paintSteps(view);
  if (view.shown) paintTrend(view);
}

// The same in words, for those who do not see the colours.
function worst(view) {
  const { shown } = view;
  const head = ["position", "token", "state", ...logprobs(shown.tokens).map(([, words]) => words), "d", "ρ", "K3 term", "weights", ...shown.corrections.map(({ name }) => name)];
  const row = (index) => [
    integer(index), text(shown, index) ?? `id ${shown.tokens.id[index]}`, state(shown, index), ...logprobs(shown.tokens).map(([name]) => logprob(shown.tokens, name, index)), number(shown.tokens.d[index]),
    number(shown.tokens.ratio[index]), number(shown.tokens.k3[index]), version(shown, index), ...shown.corrections.map((_, place) => correction(shown, place, index)),
  ];
  const name = broken(shown, shown.worst[0] ?? 0) ? "Worst tokens, broken ones first" : "Worst tokens, by the size of d";
  return node("table", { class: "lp-table lp-tk-worst", "aria-label": "worst tokens" }, node("caption", { text: name }),
    node("thead", {}, node("tr", {}, ...head.map((words) => node("th", { scope: "col", text: words })))),
    node("tbody", {}, ...[...shown.worst].slice(0, ROWS).map((index) => node("tr", { class: broken(shown, index) ? "lp-tone-critical" : undefined },
      ...row(index).map((words, column) => node("td", { "data-label": head[column] }, node("div", {}, column ? words : jump(view, index, words))))))));
}

const jump = (view, index, words) => node("button", {
  class: "lp-tk-go", type: "button", text: words, title: "show it in the strip", onclick: () => { view.strip.select(index); view.strip.element.scrollIntoView({ block: "nearest" }); },
});

function save(view) {
  const { data, shown } = view;
  const sample = data.sequences.find((each) => each.chosen)?.sample ?? "sequence";
  download(csv(shown), "text/csv;charset=utf-8", `${data.run}-step-${data.step}-${sample}-${data.pair}.csv`);
}
