// What is shown, as a file: values with all their digits (CSV), or the picture with everything that explains it (PNG).
import { noteOf } from "./chart_state.js";
import { csvCell, download, saveAs } from "./dom.js";
import { integer } from "./format.js";
import { unpackArray } from "./traces.js";

const WIDTH = 1200;
const HEAD = 84; // pixels for title, verdict and legend
const SHARP = 2;
const LONGEST = 220; // characters of a line
const PENS = { solid: "━━", dot: "┈┈", dash: "╍╍" };

// Steps that can be seen, first and last.
export function visible(view) {
  const { steps } = view.axis.trends[0];
  return view.state.steps ?? [steps[0], steps[steps.length - 1]];
}

// A long run's lines were thinned: its values come from the server, with the next answer.
export function saveCsv(view) {
  const [from, to] = view.state.steps ?? [null, null];
  if (!view.data.detail) return write(view, ownRuns(view), from, to);
  view.wanted = Date.now();
  view.send("do", { at: view.wanted, from, to });
}

export function receive(view) {
  const { export: answer } = view.data;
  if (!answer || answer.at !== view.wanted) return;
  view.wanted = null;
  const lines = (each) => Object.fromEntries(Object.entries(each).map(([key, packed]) => [key, unpackArray(packed)]));
  const runs = answer.runs.map((run) => ({ ...run, ...lines({ steps: run.steps, tokens: run.tokens, time: run.time }), lines: lines(run.lines) }));
  write(view, runs, ...(view.state.steps ?? [null, null]));
}

function ownRuns(view) {
  return view.places.map((place, run) => ({
    ...place,
    lines: Object.fromEntries(view.data.rows.flatMap((row) => row.lines.filter((line) => line.run === run).map((line) => [line.key,
      view.base.find(({ meta }) => meta.row === row.axis && meta.line === line.line && meta.smooth === undefined).y]))),
  }));
}

function write(view, runs, from, to) {
  const hidden = view.state.hide;
  const keys = [...new Set(view.data.rows.flatMap((row) => row.lines.filter((line) => !hidden.includes(line.role)).map((line) => line.key)))];
  const rows = runs.flatMap((run, at) => (hidden.includes(`run ${at}`) ? [] : rowsOf(run, keys, from ?? -Infinity, to ?? Infinity)));
  const text = [["run", "step", "tokens", "seconds", ...keys], ...rows].map((cells) => cells.map(csvCell).join(",")).join("\r\n");
  download(`${text}\r\n`, "text/csv;charset=utf-8", nameOf(view, "csv"));
}

function rowsOf(run, keys, from, to) {
  const inside = [...run.steps.keys()].filter((at) => run.steps[at] >= from && run.steps[at] <= to);
  return inside.map((at) => [run.name, run.steps[at], run.tokens?.[at], run.time?.[at], ...keys.map((key) => run.lines[key]?.[at])]);
}

const nameOf = ({ data, state }, kind) => `${data.run}${state.steps ? `-steps-${state.steps.join("-")}` : ""}.${kind}`;

export async function savePng(view) {
  const look = getComputedStyle(view.root.querySelector(".lp"));
  const layout = headed(view, look.getPropertyValue("--st-background-color").trim() || "#ffffff", look.color);
  const picture = { data: view.traces, layout, config: { displayModeBar: false } };
  saveAs(await globalThis.Plotly.toImage(picture, { format: "png", width: WIDTH, height: layout.height, scale: SHARP }), nameOf(view, "png"));
}

function headed(view, page, ink) {
  const { layout, data, axis, state } = view;
  const [from, to] = visible(view);
  const over = axis.shown === "step" ? "" : `, over ${axis.title}`;
  const smooth = state.smooth ? `, lines: medians of ${state.smooth} steps, behind them the values` : "";
  const head = [
    `<b>${plain(axis.trends.map(({ name }) => name).join(", "))}</b>  steps ${integer(from)} – ${integer(to)}${over}${smooth}`,
    plain(data.verdict || "not diagnosed yet"),
    [...data.legend.filter(({ role }) => !state.hide.includes(role)).map(({ name, color, dash }) => `${colored(PENS[dash], color)} ${plain(name)}`),
      ...data.kinds.map(({ name, sign, color }) => `${colored(sign, color)} ${plain(name)}`)].join("    "),
  ];
  return {
    ...layout, width: WIDTH, height: layout.height + HEAD, margin: { ...layout.margin, t: layout.margin.t + HEAD, l: layout.margin.l + 8, r: 24 }, paper_bgcolor: page, plot_bgcolor: page,
    annotations: [...layout.annotations, ...head.map((text, at) => words(text, 1, HEAD - 22 - 22 * at, at ? 12 : 15, ink)), ...data.rows.map((row) => title(view, row, ink))],
  };
}

function title(view, row, ink) {
  const axis = view.layout[`yaxis${row.axis.slice(1)}`];
  const names = row.lines.length > 1 && row.lines.some((line) => !view.data.legend.some(({ name }) => name === line.name))
    ? row.lines.map((line) => `${colored(PENS[line.dash], line.color)} ${plain(line.name)}`).join("  ") : "";
  return words([`<b>${plain(row.title)}</b> ${plain(row.unit)}`, names, plain(noteOf(row, view.state))].filter(Boolean).join("   "), axis.domain[1], 3, 12, ink);
}

const words = (text, y, yshift, size, color) => ({
  text, x: 0, y, yshift, xshift: -46, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", align: "left", showarrow: false, font: { size, color } });

const colored = (text, color) => `<span style="color:${color}">${text}</span>`;

// Plotly reads its texts as markup; names of runs are not.
function plain(text) {
  const short = text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text;
  return short.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
