// A plotly figure that stays mounted while its data grows, with headings that read the values under the pointer. Streamlit's own
// chart is made again with every change of its data (streamlit#16052) and does not say what it is zoomed to (#8655).

const ANSWER_MS = 10_000; // by then a figure has the range that somebody zoomed to, or it was not one to keep
const CONFIG = { displayModeBar: false, doubleClick: false, showTips: false };
const COARSE = globalThis.matchMedia?.("(pointer: coarse)").matches;
let failures = 0; // the browser remembers a failure by the address: the next figure asks by another

export function number(value) { // as app/text/numbers.py writes it
  if (!Number.isFinite(value)) return "–";
  const [sign, size] = [value < 0 ? "−" : "", Math.abs(value)];
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) {
    const [mantissa, exponent] = size.toExponential(2).split("e");
    return `${sign}${mantissa}e${Number(exponent)}`;
  }
  const off = Math.abs(1 - size);
  if (off > 0 && off < 0.01) return sign + String(Number(size.toFixed(Math.min(6, Math.ceil(-Math.log10(off)) + 1))));
  return sign + (size >= 1000 ? Math.round(size).toLocaleString("en-US") : String(Number(size.toPrecision(3))));
}

const node = (tag, name, text = "", parent = null) => {
  const made = Object.assign(document.createElement(tag), { className: name, textContent: text });
  parent?.append(made);
  return made;
};

export default function plot({ parentElement, data, setTriggerValue }) {
  let view = parentElement.view;
  if (!view) {
    const frame = node("div", "lp-frame", "", parentElement);
    view = parentElement.view = { frame, box: node("div", "lp-plot", "", frame), values: [], at: null };
    Object.assign(view, { headings: node("div", "lp-headings", "", frame), line: node("div", "lp-line", "", frame) });
    view.said = node("p", "lp-said", "Loading charts …", frame);
    view.said.setAttribute("role", "status");
    frame.setAttribute("role", "group");
    frame.setAttribute("aria-roledescription", "chart");
    frame.tabIndex = 0;
    frame.onpointermove = ({ clientX }) => show(view, nearest(view, clientX));
    frame.onpointerleave = frame.onblur = () => show(view, null);
    frame.onpointerdown = () => { view.pressed = true; };
    frame.onclick = ({ clientX }) => { if (view.data.picks) view.pick(nearest(view, clientX)); };
    frame.onkeydown = (event) => key(view, event);
    view.release = () => { view.pressed = false; view.late?.(); };
    addEventListener("pointerup", view.release);
  }
  Object.assign(view, { data, zoom: (range) => { view.zoomed &&= range && view.zoomed; setTriggerValue("range", range); }, pick: (at) => at !== null && setTriggerValue("pick", at) });
  view.frame.classList.toggle("lp-picks", data.picks);
  draw(view);
  return () => { removeEventListener("pointerup", view.release); globalThis.Plotly?.purge(view.box); };
}

async function draw(view) {
  const { data, box, frame } = view;
  view.late = view.pressed ? () => draw(view) : null; // never while somebody drags
  if (view.late || view.version === data.version) return;
  view.version = data.version;
  try {
    await import(new URL(`${data.library}${failures ? `?again=${failures}` : ""}`, document.baseURI).href);
    const { data: traces, layout } = JSON.parse(data.figure);
    if (view.zoomed && (layout.uirevision !== view.zoomed.revision || performance.now() > view.zoomed.until)) view.zoomed = null;
    if (view.zoomed) Object.assign(layout.xaxis, { range: view.zoomed.range, autorange: false }); // it was made before the zoom was heard of
    view.revision = layout.uirevision;
    const font = { ...layout.font, family: getComputedStyle(frame).fontFamily };
    await Plotly.react(box, traces, { ...layout, font, autosize: true, dragmode: COARSE ? false : layout.dragmode }, { ...CONFIG, responsive: true });
  } catch (error) {
    failures += 1;
    view.version = null;
    console.error(error);
    view.said.textContent = `The charts could not be drawn: ${error.message}. The next step tries again.`;
    return;
  }
  frame.setAttribute("aria-label", `${data.alt} Arrow keys read values.`);
  view.stops = [...new Set(box._fullData.flatMap((trace) => (trace.visible === true && trace.x ? Array.from(trace.x) : [])))].filter((x) => x !== null && !Number.isNaN(x)).sort((a, b) => a - b);
  view.values = [];
  view.headings.replaceChildren(...data.rows.map(({ axis, help, title, lines }) => {
    const heading = node("div", "lp-heading");
    Object.assign(heading, { title: help, axis });
    for (const { trace, name, color, line } of lines) {
      const value = node("span", "lp-value", "", heading);
      node("i", "", "", value).style.borderTop = `3px ${line} ${color}`;
      if (name) node("span", "lp-role", name, value);
      view.values.push({ trace, title, name, shown: node("b", "", "", value) });
    }
    return heading;
  }));
  if (!view.listens) {
    view.listens = true;
    box.on("plotly_relayout", (change) => {
      const range = change["xaxis.range"] ?? ("xaxis.range[0]" in change ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : null);
      if (range && view.data.zooms) zoomed(view, range.map(Number));
    });
    box.on("plotly_afterplot", () => placed(view));
    box.on("plotly_doubleclick", () => view.data.zooms && view.zoom(null));
  }
  placed(view);
  show(view, view.at);
}

// Steps are whole: a zoom ends beside one at once, as the address has it and the next figure draws it.
function zoomed(view, [low, high]) {
  if (!view.data.whole) { view.zoom([low, high]); return; }
  const inside = [Math.ceil(low), Math.floor(high)];
  const [first, last] = inside[0] <= inside[1] ? inside : [Math.round((low + high) / 2), Math.round((low + high) / 2)];
  const range = [first - 0.5, last + 0.5];
  if (low === range[0] && high === range[1]) return;
  view.zoomed = { range, revision: view.revision, until: performance.now() + ANSWER_MS };
  view.zoom([first, last]);
  Plotly.relayout(view.box, { "xaxis.range": range });
}

// Headings stand above their rows, wherever a legend of several lines has moved these.
function placed(view) {
  for (const heading of view.headings.children) heading.style.top = `${view.box._fullLayout[heading.axis]._offset - 25}px`;
  view.line.style.height = `${view.box._fullLayout._size.h}px`;
  view.line.style.top = `${view.box._fullLayout._size.t}px`;
}

function nearest(view, clientX) {
  const axis = view.box._fullLayout?.xaxis;
  if (!axis || !view.stops?.length) return null;
  const at = axis.p2d(clientX - view.box.getBoundingClientRect().left - axis._offset);
  return view.stops.reduce((best, stop) => (Math.abs(stop - at) < Math.abs(best - at) ? stop : best));
}

function key(view, event) {
  if (event.key === "Enter" && view.data.picks) view.pick(view.at);
  const way = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (event.key === "0" && view.data.zooms) view.zoom(null);
  if (!way || !view.stops?.length || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const [low, high] = view.box._fullLayout.xaxis.range.map(Number);
  const stops = view.stops.filter((stop) => stop >= low && stop <= high);
  const now = view.at === null ? (way > 0 ? -1 : stops.length) : stops.indexOf(view.at);
  show(view, stops[Math.max(0, Math.min(stops.length - 1, now + way * (event.shiftKey ? 10 : 1)))]);
}

// Values at a place, or the newest ones in view (null). Where a long run was thinned and this step left out: near it.
function show(view, at) {
  view.at = at;
  const newest = view.box._fullLayout?.xaxis?.range[1];
  for (const { trace, shown } of view.values) {
    const { x, y } = view.box._fullData[trace] ?? {};
    let best = -1;
    for (let i = 0; x && i < x.length; i += 1) if (at !== null || (Number.isFinite(y[i]) && !(typeof x[i] === "number" && x[i] > newest))) if (best < 0 || at === null || Math.abs(x[i] - at) < Math.abs(x[best] - at)) best = i;
    shown.textContent = best < 0 ? "–" : `${at !== null && x[best] !== at ? "≈ " : ""}${number(y[best])}`;
  }
  const axis = view.box._fullLayout?.xaxis;
  const pixel = at === null || !axis ? -1 : axis._offset + axis.d2p(at);
  view.line.hidden = pixel < 0;
  view.line.style.transform = `translateX(${pixel}px)`;
  const words = at === null ? "" : view.data.words[String(at)] ?? "";
  view.said.textContent = at === null ? view.data.note : [view.data.axis && `${view.data.axis} ${at.toLocaleString("en-US")}`, words, ...view.values.slice(0, view.frame === document.activeElement ? 6 : 0).map(({ title, name, shown }) => `${title} ${name} ${shown.textContent}`)].filter(Boolean).join(" · ");
}
