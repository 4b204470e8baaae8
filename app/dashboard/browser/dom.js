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

// A plain click stays within the session; any other opens the address as links do.
export function follow(event, view, path) {
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
  event.preventDefault();
  view.send("go", `/${path}`);
}

// Hands a text to the reader as a file.
export function download(text, type, name) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  saveAs(address, name);
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

export const saveAs = (address, name) => node("a", { href: address, download: name.replaceAll(/[^\w.-]+/g, "_") }).click();
