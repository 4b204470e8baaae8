// The charts of a comparison as one picture, with the words that stand around them on the page.
import { unitOf } from "./compare_charts.js";
import { saveAs, svg } from "./dom.js";

const SHARP = 2;
const COLUMNS = 3;
const CELL = { width: 424, height: 274, top: 30 }; // a chart with its title above it
const HEAD = 64;
const EDGE = 16;
// What of the page's style sheets a picture needs.
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-family", "font-size", "font-variant-numeric", "text-anchor"];

export async function savePicture(view) {
  const drawn = (view.drawn ?? []).filter(({ cursor }) => cursor); // others have no values
  if (!drawn.length) return;
  const { looks, place } = view.charts;
  const look = getComputedStyle(place.closest(".lp"));
  const columns = Math.min(COLUMNS, drawn.length);
  const title = `${looks.slice(1).map(({ name }) => name).join(", ")} against ${looks[0].name}`;
  const keys = legend(looks, look.fontFamily);
  const width = Math.ceil(2 * EDGE + Math.max(columns * CELL.width, keys.width, widthOf(title, `600 15px ${look.fontFamily}`)));
  const height = HEAD + Math.ceil(drawn.length / columns) * CELL.height;
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": look.fontFamily, fill: look.color },
    svg("rect", { width, height, fill: look.getPropertyValue("--st-background-color").trim() || "#ffffff" }),
    label(title, EDGE, 26, 15, 600), ...keys.parts, ...drawn.map((each, at) => cell(each, EDGE + (at % columns) * CELL.width, HEAD + Math.floor(at / columns) * CELL.height)));
  saveAs(await png(picture, width, height), `comparison-with-${looks[0].name}.png`);
}

function legend(looks, family) {
  let left = EDGE;
  const parts = looks.flatMap(({ name, color, dash }) => {
    const drawn = [svg("path", { d: `M${left} 44H${left + 24}`, fill: "none", stroke: color, "stroke-width": 2.4, "stroke-dasharray": dash }), label(name, left + 30, 48, 12)];
    left += 54 + widthOf(name, `12px ${family}`);
    return drawn;
  });
  return { parts, width: left };
}

// The picture has no fonts of the page: a little more than these words take there.
function widthOf(words, font) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = font;
  return 1.15 * pen.measureText(words).width;
}

function cell({ chart, element }, left, top) {
  const unit = unitOf(chart);
  const drawn = styled(element.querySelector("svg[role=img]"));
  return svg("g", { transform: `translate(${left} ${top})` }, label(`${chart.title}${unit ? `, ${unit}` : ""}`, 0, 18, 12, 600), svg("g", { transform: `translate(0 ${CELL.top})` }, ...drawn.children));
}

function label(words, x, y, size, weight = 400) {
  const element = svg("text", { x, y, "font-size": size, "font-weight": weight });
  element.textContent = words;
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
