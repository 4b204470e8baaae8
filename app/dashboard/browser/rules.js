// The rules of a home: a list, and an editor for one of them whose text is checked as it is typed.
// A draft is the reader's: news from the service never takes it away, and a file that changed meanwhile is said, not overwritten.
import { asked, listen, put } from "./address.js";
import { code, node, table, title } from "./dom.js";
import { buttons } from "./buttons.js";
import { BLANK, complain, formOf, textOf } from "./rule_form.js";

const PAUSE = 450; // ms after the last key, before a draft is checked
const NEW = "+"; // no rule can be called so
const BY = { name: "by", label: "your name", required: true };
const BUILT_IN = "built in"; // as `rule_rows.BUILT_IN`
const HEAD = ["rule", "severity", "fires when", "defined in", "state"];

export function update(root, view) {
  if (view.form) return; // never take a form from under somebody's hands
  if (view.version === view.data.version && view.built) return;
  view.version = view.data.version;
  if (!view.built) build(root, view);
  settle(view);
  drawList(view);
  drawEditor(view);
}

export function close(_root, view) {
  clearTimeout(view.pause);
  view.unlisten?.();
}

function build(root, view) {
  view.built = true;
  view.update = update;
  view.list = node("div");
  view.editor = node("div", { class: "lp-rule-editor", hidden: true });
  view.said = node("div", { class: "lp-rule-said" });
  view.root = root;
  root.replaceChildren(node("section", { class: "lp lp-report lp-rules", "aria-label": "rules" },
    title("Rules", "conditions that send notifications; saved rules apply immediately"),
    view.said, view.editor, view.list));
  view.unlisten = listen(() => { if ((asked("rule") ?? null) !== (view.draft?.open ?? null)) { open(view, asked("rule")); drawList(view); drawEditor(view); } });
  open(view, asked("rule"));
}

const find = (view, name) => view.data.rules.find((rule) => rule.name === name);

// Begins a draft of a rule; null: none is edited.
function open(view, name) {
  const rule = name && find(view, name);
  view.shown = null;
  view.draft = rule ? draftOf(view, rule) : name === NEW ? { open: NEW, was: null, text: textOf(BLANK), form: BLANK, base: view.data.fingerprint } : null;
  if (view.draft) check(view);
}

function draftOf(view, rule) {
  return { open: rule.name, was: rule.name, text: rule.text, form: rule.form, base: view.data.fingerprint };
}

function choose(view, name) {
  put({ rule: name });
  open(view, name);
  drawList(view);
  drawEditor(view);
  if (view.draft) view.editor.scrollIntoView({ block: "nearest" });
}

// What came back: a draft that was saved is one no longer, one nobody has touched follows the file, and what the reader switched
// does not count as somebody else's doing.
function settle(view) {
  const { saved, fingerprint } = view.data;
  if (saved && saved.at !== view.settled) {
    view.settled = saved.at;
    if (view.draft && view.sent) { put({ rule: find(view, saved.name) ? saved.name : null }); open(view, asked("rule")); }
    else if (view.draft?.touched) view.draft.base = saved.fingerprint;
    view.sent = false;
  }
  if (view.draft && !view.draft.touched && view.draft.base !== fingerprint) open(view, view.draft.open);
}

function check(view) {
  clearTimeout(view.pause);
  view.at = `${Date.now()} ${view.draft.open}`;
  view.send("do", { id: "check", text: view.draft.text, was: view.draft.was, at: view.at });
}

function edited(view, text) {
  view.draft.text = text;
  view.draft.touched = true;
  clearTimeout(view.pause);
  view.pause = setTimeout(() => { if (view.draft) check(view); }, PAUSE);
}

function drawList(view) {
  const { data } = view;
  view.said.replaceChildren(...[...data.said, ...(data.problem ? [{ text: data.problem, tone: "warning" }] : [])].map(({ text, tone }) =>
    node("p", { class: `lp-text lp-tone-${tone}`, role: "status" }, ...code(text))));
  view.list.replaceChildren(table("rules", HEAD, data.rules.map((rule) => row(rule, view)), ["lp-rule-list", ""]),
    node("div", { class: "lp-actions lp-rule-new" }, node("button", { class: "lp-button", type: "button", text: "New rule", onclick: () => choose(view, NEW) }),
      data.runs.length ? node("span", { class: "lp-hint", text: `${data.runs.length} part${data.runs.length === 1 ? "" : "s"} for single runs (${data.runs.join(", ")}): edited in the file alone` }) : null));
}

function row(rule, view) {
  const current = view.draft?.open === rule.name;
  const state = rule.enabled ? (rule.special ? "other for this run" : "on") : "disabled";
  const cells = [node("button", { class: "lp-rule-name", type: "button", "aria-expanded": String(current), text: rule.name, onclick: () => choose(view, current ? null : rule.name) }),
    rule.severity, rule.fires, rule.where, state];
  return node("tr", { class: [current ? "lp-rule-current" : "", rule.enabled ? "" : "lp-rule-off"].join(" ").trim() || undefined },
    ...cells.map((cell, index) => node("td", { "data-label": HEAD[index] }, node("div", {}, cell))));
}

function drawEditor(view) {
  view.editor.hidden = !view.draft;
  if (!view.draft) { view.shown = null; view.editor.replaceChildren(); return; }
  if (view.shown !== view.draft) layOut(view);
  refresh(view);
}

function layOut(view) {
  const { draft } = view;
  view.shown = draft;
  const rule = find(view, draft.open);
  view.text = node("textarea", { class: "lp-rule-text", "aria-label": "rule as text", spellcheck: "false", autocapitalize: "off", wrap: "off", oninput: () => { edited(view, view.text.value); view.draft.byForm = false; number(view); },
    onscroll: () => { view.gutter.scrollTop = view.text.scrollTop; }, onkeydown: (event) => indent(event, view) });
  view.text.value = draft.text;
  view.gutter = node("div", { class: "lp-rule-gutter", "aria-hidden": "true" });
  view.problems = node("div", { class: "lp-rule-problems" });
  view.fields = node("div");
  view.meanwhile = node("div");
  view.switches = node("div", { class: "lp-rule-switches" });
  view.editor.replaceChildren(
    node("h3", { class: "lp-rule-title" }, rule ? rule.name : "New rule", node("span", { class: "lp-hint", text: ` ${rule ? rule.where : ""}` })),
    node("div", { class: "lp-rule-writing" }, view.fields, node("div", { class: "lp-rule-code" }, view.gutter, view.text), view.problems,
      ...(rule?.below ?? []).map((layer) => node("details", { class: "lp-rule-shipped" }, node("summary", { text: layerName(layer) }), node("pre", { text: layer.text })))),
    view.meanwhile, view.switches);
  view.form = null;
  fill(view, draft.form);
  number(view);
}

// The fields, unless somebody is typing in them.
function fill(view, form) {
  if (view.fields.contains(document.activeElement)) return;
  const comments = /(^|\s)#/.test(view.draft.text) && form;
  view.fields.replaceChildren(...(comments ? [node("p", { class: "lp-hint", text: "The form rewrites the text: comments in it are lost. Edit the text to keep them." })] : []), form ? formOf(form, view.data, (text) => { view.text.value = text; edited(view, text); view.draft.byForm = true; number(view); })
    : node("p", { class: "lp-hint", text: "Too complex for the form: edit the YAML." }));
}

function number(view) {
  const wrong = new Set((checked(view)?.problems ?? []).map((words) => Number(/^line (\d+):/.exec(words)?.[1])));
  const lines = view.text.value.split("\n").length;
  view.text.rows = Math.max(8, Math.min(28, lines));
  view.gutter.replaceChildren(...Array.from({ length: lines }, (_, at) => node("span", { class: wrong.has(at + 1) ? "lp-rule-wrong" : undefined, text: String(at + 1) })));
}

function indent(event, view) {
  if (event.key !== "Enter") return; // the next line begins where this one does, as editors do
  const before = view.text.value.slice(0, view.text.selectionStart);
  const space = /^ */.exec(before.slice(before.lastIndexOf("\n") + 1))[0];
  if (!space) return;
  event.preventDefault();
  view.text.setRangeText(`\n${space}`, view.text.selectionStart, view.text.selectionEnd, "end");
  view.text.dispatchEvent(new Event("input"));
}

// What came of the newest check; null: it is under way.
const checked = (view) => (view.data.checked?.at === view.at ? view.data.checked : null);

function refresh(view) {
  const found = checked(view);
  const { draft, data } = view;
  switches(view, find(view, draft.open));
  if (found) {
    const form = view.fields.querySelector("form");
    const left = form ? complain(form, draft.byForm ? found.problems : []) : []; // a field says nothing of a text that was written by hand
    view.problems.replaceChildren(...(draft.byForm && form ? left : found.problems).map((words) => node("p", { class: "lp-text lp-tone-critical", role: "status" }, ...code(words))),
      ...(found.lost ? [node("p", { class: "lp-text lp-tone-warning", role: "status", text: `Saving loses ${found.lost}.` })] : []));
    if (found.answered && !found.problems.length && draft.touched) fill(view, found.form);
    number(view);
  }
  const changed = draft.touched && draft.base !== data.fingerprint;
  view.meanwhile.replaceChildren(...(changed ? [node("p", { class: "lp-text lp-tone-warning", role: "status" }, "The rules file has changed in the meantime. "),
    node("div", { class: "lp-actions" },
      node("button", { class: "lp-button", type: "button", text: "Use the version on disk", onclick: () => { open(view, find(view, draft.open) ? draft.open : NEW); drawEditor(view); } }),
      node("button", { class: "lp-button", type: "button", text: "Keep mine", onclick: () => { draft.base = data.fingerprint; refresh(view); } }))] : []));
}

function switches(view, rule) {
  const { draft, data } = view;
  const drawn = JSON.stringify([rule?.name, rule?.enabled, rule?.where, data.blocked, data.file]);
  if (view.switches.dataset.drawn === drawn) return; // a button that is replaced while it is pressed is not clicked
  view.switches.dataset.drawn = drawn;
  const args = (more) => () => ({ name: draft.open, based_on: draft.base, ...more });
  const save = { id: "save", label: "Save", words: `Writes the rule to \`${data.file}\`; it applies immediately.`, fields: [BY], disabled: data.blocked,
    // A check that is still to come would take the place of what is sent now.
    args: () => { clearTimeout(view.pause); view.sent = true; return { name: nameIn(draft.text), based_on: draft.base, text: draft.text, was: draft.was }; } };
  const list = [save];
  if (rule) {
    const on = !rule.enabled;
    list.push({ id: "enable", label: on ? "Enable" : "Disable", fields: [BY], disabled: data.blocked, args: args({ on }),
      words: on ? `\`${rule.name}\` is evaluated again, for all steps of every run.` : `\`${rule.name}\` is no longer evaluated; its firing alerts end.` });
    if (rule.own) list.push({ id: "delete", label: below(rule) ? `Restore the ${below(rule)}` : "Delete", fields: [BY], danger: true, disabled: data.blocked, args: args({}),
      words: `Removes the entry for \`${rule.name}\` from \`${data.file}\`.${below(rule) ? ` The ${below(rule)} applies again.` : ""}` });
  }
  view.switches.replaceChildren(buttons(list, view.root, view));
  view.switches.append(node("button", { class: "lp-button lp-rule-close", type: "button", text: "Close", onclick: () => choose(view, null) }));
}

const layerName = ({ file }) => (file === BUILT_IN ? "built-in rule" : `rule in ${file}`);
const below = (rule) => rule.below.slice(-1).map(layerName)[0];
const nameIn = (text) => /(?:^|[{,]\s*)name:\s*["']?([^\s,"'}]+)/m.exec(text)?.[1] ?? "";
