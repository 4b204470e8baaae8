// Tokens of a sequence as text or ids: coloured by ρ, hatched where they are not trained on, framed where they are broken.

const FULL = Math.log(4); // |d| from which on a colour is full
const PATIENCE_MS = 150; // a key that is held down asks for one token, not for every one on the way

const rgb = (hex) => [1, 3, 5].map((from) => parseInt(hex.slice(from, from + 2), 16));
const luminance = (color) => {
  const [red, green, blue] = color.map((value) => (value / 255 <= 0.03928 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};

// The square root keeps small gaps visible beside large ones; the ink is whichever can be read.
function shaded(cell, d, { page, text, below, above }) {
  const share = Math.sqrt(Math.min(1, Math.abs(d) / FULL));
  const [from, to] = [rgb(page), rgb(d < 0 ? below : above)];
  const fill = from.map((value, at) => Math.round(value + (to[at] - value) * share));
  const level = luminance(fill);
  const contrast = (ink) => { const [high, low] = [luminance(ink), level].sort((a, b) => b - a); return (high + 0.05) / (low + 0.05); };
  const inks = [rgb(text), [255, 255, 255], [0, 0, 0]];
  cell.style.background = `rgb(${fill})`;
  cell.style.color = `rgb(${inks.find((ink) => contrast(ink) >= 4.5) ?? inks[2]})`;
}

export default function strip({ parentElement, data, setStateValue }) {
  let box = parentElement.querySelector(".lp-strip");
  if (!box) {
    box = document.createElement("div");
    box.className = "lp-strip";
    box.tabIndex = 0;
    box.setAttribute("role", "listbox");
    parentElement.append(box);
    box.onclick = ({ target }) => { const cell = target.closest("[role=option]"); if (cell) choose(box, Number(cell.dataset.at)); };
    box.onkeydown = (event) => key(box, event);
  }
  box.send = (token) => { clearTimeout(box.later); box.later = setTimeout(() => setStateValue("token", token), PATIENCE_MS); };
  if (box.version !== data.version) fill(box, data);
  return () => clearTimeout(box.later);
}

function fill(box, data) {
  Object.assign(box, { version: data.version, first: data.first, worst: data.worst });
  box.setAttribute("aria-label", data.alt);
  box.replaceChildren(...data.cells.map(([label, d, state, marks, words, broken], index) => {
    const cell = document.createElement("span");
    const at = data.first + index;
    cell.dataset.at = String(at);
    cell.id = `lp-token-${at}`;
    cell.setAttribute("role", "option");
    cell.title = words;
    cell.className = `lp-token-${state} ${marks}`;
    cell.textContent = label;
    if (state === "trained") shaded(cell, d, data.colors);
    if (broken) cell.append(Object.assign(document.createElement("b"), { textContent: broken }));
    cell.setAttribute("aria-label", `${cell.textContent} ${words}`.trim());
    return cell;
  }));
  choose(box, data.chosen, true);
}

function choose(box, at, quiet = false) {
  const cell = box.children[at - box.first];
  if (!cell) return;
  box.querySelector("[aria-selected=true]")?.removeAttribute("aria-selected");
  cell.setAttribute("aria-selected", "true");
  box.setAttribute("aria-activedescendant", cell.id);
  box.at = at;
  box.scrollTop += Math.min(0, cell.offsetTop - box.scrollTop) + Math.max(0, cell.offsetTop + cell.offsetHeight - box.scrollTop - box.clientHeight);
  if (!quiet) box.send(at);
}

// The token of the line above or below that stands nearest.
function beside(box, way) {
  const cells = [...box.children];
  const now = cells[box.at - box.first];
  const line = cells.filter((cell) => (way < 0 ? cell.offsetTop < now.offsetTop : cell.offsetTop > now.offsetTop));
  const top = way < 0 ? Math.max(...line.map((cell) => cell.offsetTop)) : Math.min(...line.map((cell) => cell.offsetTop));
  const near = line.filter((cell) => cell.offsetTop === top).sort((a, b) => Math.abs(a.offsetLeft - now.offsetLeft) - Math.abs(b.offsetLeft - now.offsetLeft))[0];
  return near ? Number(near.dataset.at) : box.at;
}

function key(box, event) {
  if (event.metaKey || event.ctrlKey || event.altKey) return;
  const ranked = (by) => box.worst[(box.worst.indexOf(box.at) + by + box.worst.length) % box.worst.length] ?? box.at;
  const moves = {
    ArrowRight: () => box.at + 1, ArrowLeft: () => box.at - 1, ArrowDown: () => beside(box, 1), ArrowUp: () => beside(box, -1),
    Home: () => box.first, End: () => box.first + box.children.length - 1, n: () => ranked(1), N: () => ranked(-1),
  };
  if (!(event.key in moves)) return;
  event.preventDefault();
  const to = moves[event.key]();
  if (box.children[to - box.first]) choose(box, to);
  else if (box.worst.includes(to)) box.send(to); // on another page of the sequence
}
