// All runs as a table, the worst first. The fields above it are drawn once, so that nobody loses what is being typed; rows are drawn
// again where they changed. What is searched for is in the address; the server looks for it, and sends the rows of a screen.
import { follow, node, svg } from "./dom.js";
import { integer } from "./format.js";
import { sign } from "./sign.js";

const WAIT_MS = 120; // after the last key
const STATES = [["", "running and ended"], ["running", "running"], ["ended", "ended"]];
const GROUPS = [["", "no groups"], ["prefix", "group by prefix"]];
const BLANK = ["–", "off"]; // not worth a line on a phone
const HEAD = ["run", "since step", "cause", "K3", "alerts", "lag", "correction", "last step"];

export function update(root, view) {
  if (!view.parts) build(root, view);
  const { groups, asked, summary, found, of, more, next, severities, problems } = view.data;
  choose(view, asked, severities);
  view.parts.summary.textContent = found === of ? summary : `${integer(found)} of ${integer(of)} runs: ${summary || "none fits"}`;
  const text = JSON.stringify([groups, more, problems]);
  if (view.text === text || root.querySelector("a:active, button:active")) return; // what is pressed keeps its click
  view.text = text;
  const focused = document.activeElement?.closest?.("[data-run]")?.getAttribute("data-run");
  view.parts.rows.replaceChildren(...problems.map((text) => node("p", { class: "lp-note lp-tone-warning", role: "status", text })), table(groups, view), ...(more ? [node("button", { class: "lp-button lp-more", type: "button", text: `${integer(more)} more`, onclick: () => view.send("set", { rows: next }) })] : []));
  if (focused) view.parts.rows.querySelector(`[data-run="${CSS.escape(focused)}"] a`)?.focus();
}

function build(root, view) {
  const set = (name) => (event) => view.send("set", { [name]: event.target.value, rows: null });
  const search = node("input", { class: "lp-search", type: "search", placeholder: "search names, causes, alerts", "aria-label": "search runs", autocomplete: "off", oninput: (event) => {
    clearTimeout(view.typing);
    view.typing = setTimeout(() => { view.typing = null; view.send("set", { q: event.target.value, rows: null }); }, WAIT_MS);
  } });
  const parts = {
    search, severity: node("select", { "aria-label": "severity", onchange: set("severity") }),
    state: node("select", { "aria-label": "state", onchange: set("state") }, ...STATES.map(([value, text]) => node("option", { value, text }))),
    group: node("select", { "aria-label": "groups", onchange: set("group") }, ...GROUPS.map(([value, text]) => node("option", { value, text }))),
    summary: node("span", { class: "lp-hint", role: "status" }), rows: node("div", { class: "lp-runs-rows" }),
  };
  view.parts = parts;
  root.replaceChildren(node("section", { class: "lp lp-report lp-runs", "aria-label": "runs" },
    node("div", { class: "lp-runs-fields" }, search, parts.severity, parts.state, parts.group, parts.summary), parts.rows));
}

// The fields show what the address says, unless somebody is at them.
function choose(view, asked, severities) {
  const { search, severity, state, group } = view.parts;
  if (!severity.childElementCount) severity.append(...["", ...severities].map((value) => node("option", { value, text: value || "any severity" })));
  if (document.activeElement !== search && !view.typing) search.value = asked.words;
  severity.value = asked.severity;
  state.value = asked.state;
  group.value = asked.group;
}

function table(groups, view) {
  return node("div", { class: "lp-scroll" }, node("table", { class: "lp-table lp-runs-table", "aria-label": "runs" },
    node("thead", {}, node("tr", {}, ...HEAD.map((text) => node("th", { scope: "col", text })))),
    ...groups.map(({ name, runs, rows }) => node("tbody", {},
      name ? node("tr", { class: "lp-runs-group" }, node("th", { scope: "rowgroup", colspan: HEAD.length, text: name }, node("span", { class: "lp-hint", text: ` ${integer(runs)} ${runs === 1 ? "run" : "runs"}` }))) : null,
      ...rows.map((row) => line(row, view))))));
}

function line(row, view) {
  const path = row.elsewhere ? row.href.slice(2) : `?${new URLSearchParams({ run: row.run })}`;
  const cells = [
    [sign(row.severity), node("a", { class: "lp-name", href: row.href, text: row.run, onclick: (event) => follow(event, view, path) }),
      node("span", { class: `lp-badge lp-is-${row.state}`, title: row.reason }, node("i", { "aria-hidden": "true" }), row.state.replace("_", " "))],
    [row.since],
    [node("span", { title: row.words }, node("b", { class: `lp-word lp-tone-${row.severity}`, text: row.word }), row.cause ? ` ${row.cause}` : "")],
    [spark(row.line), node("span", { text: row.k3 })],
    [row.alerts || "–", row.acknowledged ? node("span", { class: "lp-hint", text: ` ${row.acknowledged}` }) : null],
    [row.lag], [row.correction], [row.step],
  ];
  return node("tr", { class: `lp-tone-${row.severity}`, "data-run": row.run }, ...cells.map((content, at) => node("td", { "data-label": HEAD[at], class: BLANK.includes(content[0]) ? "lp-blank" : null }, node("div", {}, ...content))));
}

const [WIDTH, HEIGHT] = [72, 18];

// K3 of the last steps on a logarithmic axis of two decades at least, so that noise does not look like growth.
function spark(values) {
  const logs = values.filter((value) => value > 0).map(Math.log10);
  if (logs.length < 2) return null;
  const middle = (Math.max(...logs) + Math.min(...logs)) / 2;
  const half = Math.max(1, (Math.max(...logs) - Math.min(...logs)) / 2);
  const points = logs.map((log, at) => `${((at / (logs.length - 1)) * WIDTH).toFixed(1)},${(HEIGHT / 2 - ((log - middle) / half) * (HEIGHT / 2 - 1)).toFixed(1)}`);
  return svg("svg", { class: "lp-runs-spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": "K3 over the last steps" }, svg("polyline", { points: points.join(" ") }));
}
