// Small charts as one picture (PNG), with the words that stand around them on the page.
import { saveAs, svg } from "./dom.js";
import { label } from "./plot.js";

const SHARP = 2;
const COLUMNS = 3;
const WIDTH = 400; // of a chart
const GAP = 24;
const ABOVE = 30; // for a chart's title
const BELOW = 14;
const HEAD = 64;
const EDGE = 16;
// What of the page's style sheets a picture needs.
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "paint-order", "opacity", "font-family", "font-size", "font-weight", "font-variant-numeric", "image-rendering", "color"];

// `cells`: [{ title, height, className, draw(picture, width) }]; `legend`: [{ name, color, dash }]; `look`: an element with the page's look.
export async function savePicture({ name, title, legend, cells, look, columns = COLUMNS, width = WIDTH }) {
  const style = getComputedStyle(look.closest(".lp"));
  const across = Math.min(columns, cells.length);
  const keys = keysOf(legend, style.fontFamily);
  const rows = Array.from({ length: Math.ceil(cells.length / across) }, (_, at) => Math.max(...cells.slice(at * across, (at + 1) * across).map(({ height }) => height + ABOVE + BELOW)));
  const wide = Math.ceil(2 * EDGE + Math.max(across * (width + GAP), keys.width, widthOf(title, `600 15px ${style.fontFamily}`)));
  const high = HEAD + rows.reduce((sum, each) => sum + each, 0);
  const top = (at) => HEAD + rows.slice(0, Math.floor(at / across)).reduce((sum, each) => sum + each, 0);
  const picture = svg("svg", { width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, "font-family": style.fontFamily, fill: style.color },
    svg("rect", { width: wide, height: high, fill: style.getPropertyValue("--st-background-color").trim() || "#ffffff" }),
    words(title, EDGE, 26, 15, 600), ...keys.parts, ...cells.map((each, at) => cell(each, look, width, EDGE + (at % across) * (width + GAP), top(at))));
  saveAs(await png(picture, wide, high), name);
}

function keysOf(legend, family) {
  let left = EDGE;
  const parts = legend.flatMap(({ name, color, dash }) => {
    const drawn = [svg("path", { d: `M${left} 44H${left + 24}`, fill: "none", stroke: color, "stroke-width": 2.4, "stroke-dasharray": dash ?? "" }), words(name, left + 30, 48, 12)];
    left += 54 + widthOf(name, `12px ${family}`);
    return drawn;
  });
  return { parts, width: left };
}

// The picture has no fonts of the page: a little more than these words take there.
function widthOf(text, font) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = font;
  return 1.15 * pen.measureText(text).width;
}

// Drawn beside the page first: only there it has the look of the style sheets.
function cell({ title, height, className, draw }, look, width, left, top) {
  const chart = svg("svg", { class: className, width, height, style: "position:absolute;left:-9999px" });
  look.append(chart);
  draw(chart, width);
  const copy = styled(chart);
  chart.remove();
  return svg("g", { transform: `translate(${left} ${top})` }, words(title, 0, 18, 12, 600), svg("g", { transform: `translate(0 ${ABOVE})` }, ...copy.childNodes));
}

function words(text, x, y, size, weight = 400) {
  const element = label(text, x, y);
  element.setAttribute("font-size", String(size));
  element.setAttribute("font-weight", String(weight));
  return element;
}

// A copy that looks the same without the page's style sheets.
function styled(chart) {
  const copy = chart.cloneNode(true);
  const [from, to] = [chart, copy].map((each) => [...each.querySelectorAll("*")]);
  from.forEach((element, at) => {
    const look = getComputedStyle(element);
    to[at].setAttribute("style", STYLES.map((name) => `${name}:${look.getPropertyValue(name)}`).join(";"));
  });
  return copy;
}

async function png(picture, width, height) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(picture))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [SHARP * width, SHARP * height];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/png");
}
