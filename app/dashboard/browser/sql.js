// The SQL box: text, Run, Stop, and the rows that came back. What is typed belongs to the reader: no news ever touches it, and a
// statement that came with a link is only run by whoever reads it first. Values go in as text.
import { asked, put } from "./address.js";
import { code, download, node, title } from "./dom.js";

const LOOK_MS = 700; // while a query runs

export function update(root, view) {
  if (!view.text) build(root, view);
  if (view.version === view.data.version) return;
  view.version = view.data.version;
  draw(view);
}

export function close(_root, view) {
  clearTimeout(view.timer);
  view.inSight?.abort();
}

function build(root, view) {
  const linked = asked("sql");
  view.text = node("textarea", {
    id: "lp-sql", class: "lp-sql", rows: 7, spellcheck: "false", autocomplete: "off", autocapitalize: "off",
    "aria-describedby": "lp-sql-hint", onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(view); } },
  });
  view.text.value = linked ?? view.data.answer.sql ?? view.data.examples[0][1];
  view.run = node("button", { class: "lp-button lp-sure", type: "button", text: "Run", onclick: () => run(view) });
  view.stop = node("button", { class: "lp-button", type: "button", text: "Stop", hidden: true, onclick: () => send(view, { id: "stop" }) });
  view.hint = node("span", { class: "lp-hint", id: "lp-sql-hint", text: linked !== null && linked !== view.data.answer.sql ? "From the link; nothing has run. Read it, then press Run." : "Ctrl+Enter runs. One read-only statement." });
  view.said = node("p", { class: "lp-text", role: "status" });
  view.result = node("div", { class: "lp-sql-result" });
  view.examples = node("div", { class: "lp-sql-examples" });
  view.schema = node("div", { class: "lp-sql-schema" });
  root.replaceChildren(node("section", { class: "lp lp-report", "aria-label": "SQL" },
    title("SQL", `read-only, over all runs of this home; at most ${view.data.limit.toLocaleString("en-US")} rows`),
    view.examples,
    node("label", { class: "lp-hint lp-sql-label", for: "lp-sql", text: "statement" }), view.text,
    node("div", { class: "lp-actions lp-sql-actions" }, view.run, view.stop, view.hint),
    view.said, view.result,
    node("details", { class: "lp-sql-tables" }, node("summary", { text: "Views, tables and their columns" }), view.schema)));
  if (linked !== null) keepInSight(root, view);
}

// Until the reader does something: what is drawn later, above it, would push it out of sight again.
function keepInSight(root, view) {
  const sizes = new ResizeObserver(() => root.scrollIntoView({ block: "start" }));
  for (let around = root; around; around = around.parentElement) sizes.observe(around);
  const stop = new AbortController();
  for (const kind of ["wheel", "touchstart", "pointerdown", "keydown"]) addEventListener(kind, () => stop.abort(), { capture: true, passive: true, signal: stop.signal });
  stop.signal.addEventListener("abort", () => sizes.disconnect());
  view.inSight = stop;
}

function run(view) {
  if (!view.text.value.trim() || view.data.answer.state === "running") return;
  put({ sql: view.text.value });
  view.hint.textContent = "Ctrl+Enter runs. One read-only statement.";
  send(view, { id: "run", sql: view.text.value });
}

function send(view, what) {
  view.run.disabled = true; // until the server has answered
  view.send("do", { ...what, at: Date.now() });
}

function draw(view) {
  const { answer, examples, schema } = view.data;
  const running = answer.state === "running";
  clearTimeout(view.timer);
  if (running) view.timer = setTimeout(() => view.send("do", { id: "look", at: Date.now() }), LOOK_MS);
  view.run.disabled = running;
  view.stop.hidden = !running;
  if (changed(view, "examples", examples)) view.examples.replaceChildren(node("span", { class: "lp-hint", text: "examples" }), ...examples.map(([title, sql]) => example(view, title, sql)));
  if (changed(view, "schema", schema)) view.schema.replaceChildren(...schema.map((each) => relation(view, each)));
  if (running) {
    view.said.className = "lp-text";
    view.said.textContent = `Running for ${answer.seconds} s …`;
    return; // the rows of before stay until there are new ones
  }
  view.said.className = `lp-text${answer.state === "refused" ? " lp-tone-critical" : ""}`;
  view.said.replaceChildren(...words(view, answer));
  if (changed(view, "rows", [answer.rows, answer.columns])) view.result.replaceChildren(...(answer.rows?.length ? [rows(answer)] : []));
}

function changed(view, name, value) {
  const text = JSON.stringify(value ?? null);
  view.drawn ??= {};
  const other = view.drawn[name] !== text;
  view.drawn[name] = text;
  return other;
}

function words(_view, answer) {
  if (answer.state === "none") return [];
  if (answer.state === "refused") return code(answer.words);
  const save = answer.csv === null ? node("span", { class: "lp-hint" }, ...code(answer.large)) : node("button", { class: "lp-button", type: "button", text: "Download CSV", onclick: () => download(answer.csv, "text/csv;charset=utf-8", "logprobe.csv") });
  return [`${answer.words}. `, answer.more ? `${answer.more} ` : "", save];
}

function rows({ columns, rows: values }) {
  const right = (index) => (columns[index][2] ? "lp-number" : undefined);
  const value = (text, index) => (text === null ? node("td", { class: "lp-null", title: "null", text: "–" }) : node("td", { class: right(index), text }));
  return node("div", { class: "lp-sql-rows", tabindex: "0", role: "region", "aria-label": "rows" }, node("table", { class: "lp-sql-table" },
    node("thead", {}, node("tr", {}, ...columns.map(([name, type], index) => node("th", { scope: "col", class: right(index), title: type, text: name })))),
    node("tbody", {}, ...values.map((row) => node("tr", {}, ...row.map(value))))));
}

function example(view, title, sql) {
  return node("button", { class: "lp-button", type: "button", text: title, onclick: () => { view.text.value = sql; view.text.focus(); } });
}

function relation(view, { name, view: isView, columns }) {
  return node("details", {}, node("summary", {}, node("b", { text: name }), node("span", { class: "lp-hint", text: `${isView ? "view" : "table"}, ${columns.length} columns` })),
    node("p", { class: "lp-sql-columns" }, ...columns.map(([column, type]) => node("button", { class: "lp-sql-column", type: "button", title: type, text: column, onclick: () => insert(view, column) }))));
}

// Plain names as they are; others as SQL quotes them.
function insert(view, name) {
  const quoted = /^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`;
  const { selectionStart: from, selectionEnd: to } = view.text;
  view.text.setRangeText(quoted, from, to, "end");
  view.text.focus();
}
