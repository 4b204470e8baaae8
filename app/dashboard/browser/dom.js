// Small helpers to build elements. Text goes in as text: names of runs and metrics never become markup.

export function node(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter(Boolean));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// `words` between backticks are code.
export const code = (words) =>
  String(words).split("`").map((part, index) => (index % 2 ? node("code", { text: part }) : part)).filter((part) => part !== "");

// The same where only text fits, such as a tooltip.
export const uncoded = (words) => words?.replaceAll("`", "");

// The title of a part of a page; beside it `hint` in small print, and tools.
export const title = (words, hint, tools = null) => node("h2", { class: "lp-title" }, words, hint ? node("span", { class: "lp-hint" }, ...code(hint)) : null, tools);

// A table in a frame of its own; `head`: words or header cells, `lines`: rows; `kinds`: further classes of the table and of the frame.
export function table(name, head, lines, [kind, frame] = ["", ""]) {
  const cells = head.map((words) => (words instanceof Node ? words : node("th", { scope: "col", text: words })));
  return node("div", { class: `lp-scroll ${frame}`.trim() }, node("table", { class: `lp-table ${kind}`.trim(), "aria-label": name },
    node("thead", {}, node("tr", {}, ...cells)), node("tbody", {}, ...lines)));
}

// A plain click stays within the session; any other opens the address as links do.
export function follow(event, view, path) {
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
  event.preventDefault();
  view.send("go", `/${path}`);
}

// A cell of a table that people open in a spreadsheet: no control characters, no formula; numbers stay numbers. As `plain_text.csv_cell`.
export function csvCell(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  const text = typeof value === "string" ? harmless(value) : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

// biome-ignore-start lint/suspicious/noControlCharactersInRegex: these are what is taken out
export const harmless = (text) => (/^[\s\ufeff]*[=+@\uff1d\uff0b\uff0d\uff20-]|^[\t\n]/.test(text) && !/^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/.test(text) ? "'" : "")
  + text.replaceAll(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, "\ufffd");
// biome-ignore-end lint/suspicious/noControlCharactersInRegex: as above

// Puts a text where the reader can paste it; over plain HTTP browsers have no clipboard to write to, only what is selected.
export async function copyText(text, button) {
  await (navigator.clipboard?.writeText(text) ?? copySelected(text, button));
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 2_000);
}

function copySelected(text, beside) {
  const field = node("textarea", { readonly: true, "aria-hidden": "true" });
  field.value = text;
  beside.after(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

// Hands a text to the reader as a file.
export function download(text, type, name) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  saveAs(address, name);
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

export const saveAs = (address, name) => node("a", { href: address, download: name.replaceAll(/[^\w.-]+/g, "_") }).click();

// `data-key` of what has the focus within `element`; null: nothing in it has.
export function focusedKey(element) {
  const focused = document.activeElement;
  return focused instanceof HTMLElement && element.contains(focused) ? (focused.dataset.key ?? null) : null;
}
