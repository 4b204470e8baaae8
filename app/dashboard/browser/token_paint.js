// How tokens look on a canvas: colours by ρ, hatching for what is not trained on, and what nobody may take for a healthy token.

const SHADES = 64;
const FULL = Math.log(4); // |d| from which on a colour is full
const HATCH = 5;

const parse = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
const mix = (from, to, share) => from.map((value, index) => Math.round(value + (to[index] - value) * share));
const css = (color) => `rgb(${color.join(",")})`;
const luminance = (color) => {
  const [red, green, blue] = color.map((value) => { const part = value / 255; return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};

export function palette(colors) {
  const [page, text] = [parse(colors.page), parse(colors.text)];
  const inks = [text, luminance(text) < 0.5 ? [255, 255, 255] : [10, 14, 18]];
  const shades = ["below", "above"].map((side) => Array.from({ length: SHADES + 1 }, (_, step) => {
    const fill = mix(page, parse(colors[side]), step / SHADES);
    const level = luminance(fill);
    const contrast = (ink) => { const [high, low] = [luminance(ink), level].sort((a, b) => b - a); return (high + 0.05) / (low + 0.05); };
    return { fill: css(fill), ink: css(contrast(inks[0]) >= contrast(inks[1]) ? inks[0] : inks[1]) };
  }));
  return { ...colors, shades };
}

// The square root keeps small gaps visible beside large ones.
const strength = (d) => Math.round(SHADES * Math.sqrt(Math.min(1, Math.abs(d) / FULL)));

export const shade = (colors, d) => colors.shades[d < 0 ? 0 : 1][strength(d)];

// The scale as a gradient of CSS, from ρ = 1/4 to 4, evenly in log ρ.
export function gradient(colors) {
  const stops = Array.from({ length: 33 }, (_, step) => shade(colors, FULL * (step / 16 - 1)).fill);
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

export function hatch(context, colors) {
  const tile = document.createElement("canvas");
  tile.width = HATCH;
  tile.height = HATCH;
  const pen = tile.getContext("2d");
  pen.strokeStyle = colors.muted;
  pen.globalAlpha = 0.5;
  pen.lineWidth = 1;
  for (const shift of [-HATCH, 0, HATCH]) {
    pen.beginPath();
    pen.moveTo(shift, HATCH);
    pen.lineTo(shift + HATCH, 0);
    pen.stroke();
  }
  return context.createPattern(tile, "repeat");
}

// A canvas of this size in CSS pixels, sharp on any screen.
export function fitted(canvas, width, height) {
  const scale = globalThis.devicePixelRatio || 1;
  const [across, down] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
