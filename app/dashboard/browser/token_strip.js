// Every token of a sequence, in lines, on one canvas as large as what is seen of them: 32,000 elements with listeners would take
// seconds. Scrolling and hovering paint again what is seen.
import { node } from "./dom.js";
import { fitted, hatch, shade } from "./token_paint.js";
import { broken, describe, text } from "./token_text.js";

const FONT = "12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";
const LONGEST = 28; // characters of a token that are drawn
const SIZES = { squares: { height: 15, gap: 2, pad: 0, width: 13 }, ids: { height: 24, gap: 3, pad: 5 }, text: { height: 24, gap: 1, pad: 2 } };
const TALLEST = 408;

export class Strip {
  strip; // as the server sent it; `colors`, `mode`, `selected`, `hovered`: as the reader wants it
  colors;
  mode;
  selected = null;
  hovered = null;
  x; // left edge of each token, `w` its width, in pixels; `rows`: the first token of each line
  w;
  rows;
  size;
  width = null;
  frame = 0;
  /** @type {CanvasRenderingContext2D} */
  pen;

  constructor(onSelect, onHover) {
    this.onSelect = onSelect;
    this.onHover = onHover;
    this.canvas = node("canvas", { "aria-hidden": "true" });
    this.spacer = node("div");
    this.element = node("div", {
      class: "lp-tk-strip", tabindex: "0", role: "slider", "aria-valuemin": "0", "aria-orientation": "horizontal",
      onkeydown: (event) => this.key(event), onscroll: () => this.soon(), onpointermove: (event) => this.hover(this.hit(event)),
      onpointerleave: () => this.hover(null), onclick: (event) => { const found = this.hit(event); if (found !== null) this.select(found); },
    }, this.canvas, this.spacer);
    this.widths = new Map();
    this.sizes = new ResizeObserver(() => this.arrange());
    this.sizes.observe(this.element);
  }

  close() {
    this.sizes.disconnect();
    cancelAnimationFrame(this.frame);
  }

  show(strip, colors, mode, selected) {
    const other = this.strip !== strip || this.mode !== mode;
    Object.assign(this, { strip, colors, mode, selected, hovered: null });
    this.element.setAttribute("aria-valuemax", Math.max(0, strip.n - 1));
    this.element.setAttribute("aria-label", `${strip.alt} Arrow keys move, n goes to the next worst token.`);
    if (other) this.width = null;
    this.arrange();
    this.select(selected, { quiet: true });
  }

  label(index) {
    const { strip, mode } = this;
    const words = mode === "text" ? text(strip, index) ?? `#${strip.tokens.id[index]}` : String(strip.tokens.id[index]);
    return words.length > LONGEST ? `${words.slice(0, LONGEST - 1)}…` : words;
  }

  measure(words) {
    let width = this.widths.get(words);
    if (width === undefined) {
      width = this.pen.measureText(words).width;
      this.widths.set(words, width);
    }
    return width;
  }

  // Where each token stands: `x`, `w` in pixels, `rows` the first token of each line.
  arrange() {
    if (!this.strip) return;
    const width = this.element.clientWidth;
    if (!width || width === this.width) return;
    this.width = width;
    this.pen ??= document.createElement("canvas").getContext("2d");
    this.pen.font = FONT;
    const { n, tokens, turns } = this.strip;
    const size = SIZES[this.mode];
    const [x, w, rows] = [new Float32Array(n), new Float32Array(n), [0]];
    const begins = new Set(turns);
    let [left, feed] = [0, false];
    for (let index = 0; index < n; index += 1) {
      const label = size.width ? "" : this.label(index);
      w[index] = size.width ?? Math.max(8, this.measure(label) + 2 * size.pad);
      if (!size.width && tokens.state[index] >= this.strip.first_broken) w[index] += this.measure(broken(this.strip, index)) + 10;
      if (index && (left + w[index] > width || feed || begins.has(index))) {
        rows.push(index);
        left = 0;
      }
      x[index] = left;
      left += w[index] + size.gap;
      feed = this.mode === "text" && label.endsWith("⏎");
    }
    Object.assign(this, { x, w, rows, size });
    this.tall = rows.length * size.height + 4;
    this.seen = Math.min(TALLEST, this.tall);
    this.element.style.height = `${this.seen}px`;
    this.spacer.style.height = `${this.tall - this.seen}px`;
    this.pattern = null;
    this.reveal(this.selected);
    this.paint();
  }

  row(index) {
    let [low, high] = [0, this.rows.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.rows[middle] <= index) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  // The token of a line that is nearest to `left`.
  within(row, left) {
    let best = this.rows[row];
    const end = this.rows[row + 1] ?? this.strip.n;
    for (let index = best; index < end && this.x[index] <= left; index += 1) best = index;
    return best;
  }

  hit(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top + this.element.scrollTop) / this.size.height);
    if (!this.strip.n || row < 0 || row >= this.rows.length) return null;
    const left = event.clientX - box.left;
    const found = this.within(row, left);
    return left <= this.x[found] + this.w[found] + this.size.gap ? found : null;
  }

  hover(index) {
    if (index === this.hovered) return;
    this.hovered = index;
    this.onHover(index);
    this.soon();
  }

  select(index, { quiet = false } = {}) {
    if (!this.strip.n) return;
    this.selected = Math.max(0, Math.min(this.strip.n - 1, index));
    this.reveal(this.selected);
    this.element.setAttribute("aria-valuenow", this.selected);
    this.element.setAttribute("aria-valuetext", describe(this.strip, this.selected).slice(0, 9).map(([name, value]) => `${name} ${value}`).join(", "));
    if (!quiet) this.onSelect(this.selected);
    this.soon();
  }

  reveal(index) {
    if (!this.rows || !this.strip.n) return;
    const top = this.row(index) * this.size.height;
    const { scrollTop } = this.element;
    if (top < scrollTop) this.element.scrollTop = Math.max(0, top - this.size.height);
    else if (top + this.size.height > scrollTop + this.seen) this.element.scrollTop = top + 2 * this.size.height - this.seen;
  }

  key(event) {
    if (event.metaKey || event.ctrlKey || event.altKey || !this.strip?.n) return;
    const row = this.row(this.selected);
    const page = Math.max(1, Math.floor(this.seen / this.size.height) - 1);
    const line = (to) => this.within(Math.max(0, Math.min(this.rows.length - 1, to)), this.x[this.selected] + 1);
    const moves = {
      ArrowRight: () => this.selected + 1, ArrowLeft: () => this.selected - 1, ArrowDown: () => line(row + 1), ArrowUp: () => line(row - 1),
      PageDown: () => line(row + page), PageUp: () => line(row - page), Home: () => 0, End: () => this.strip.n - 1,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.select(moves[event.key]());
  }

  // Selects the worst token, or the one that comes `by` places after the one that is selected.
  ranked(by) {
    const worst = this.strip?.worst ?? [];
    if (!worst.length) return;
    const place = worst.indexOf(this.selected);
    this.select(worst[(place < 0 ? 0 : place + by + worst.length) % worst.length]);
  }

  soon() {
    this.frame ??= requestAnimationFrame(() => { this.frame = undefined; this.paint(); });
  }

  paint() {
    if (!this.rows || !this.width) return;
    const pen = fitted(this.canvas, this.width, this.seen);
    this.pattern ??= hatch(pen, this.colors);
    pen.font = FONT;
    pen.textBaseline = "middle";
    const top = this.element.scrollTop;
    const first = Math.max(0, Math.floor(top / this.size.height));
    const last = Math.min(this.rows.length - 1, Math.ceil((top + this.seen) / this.size.height));
    for (let row = first; row <= last; row += 1) {
      const end = this.rows[row + 1] ?? this.strip.n;
      for (let index = this.rows[row]; index < end; index += 1) this.cell(pen, index, row * this.size.height - top + 2);
    }
    this.marks(pen, first, last, top);
    this.element.dataset.sample = this.strip.sample; // what is seen now
  }

  cell(pen, index, top) {
    const { tokens, first, first_broken: firstBroken } = this.strip;
    const [left, width, height, code] = [this.x[index], this.w[index], this.size.height - (this.mode === "squares" ? 2 : 4), tokens.state[index]];
    let ink = this.colors.muted;
    if (code === 0) {
      const { fill, ink: over } = shade(this.colors, tokens.d[index]);
      pen.fillStyle = fill;
      pen.fillRect(left, top, width, height);
      ink = over;
    } else if (code < firstBroken) {
      pen.globalAlpha = index < first ? 0.45 : 1; // prompt or context
      pen.fillStyle = this.pattern;
      pen.fillRect(left, top, width, height);
      if (code !== this.strip.masked) this.framed(pen, left + 0.5, top + 0.5, width - 1, height - 1, this.colors.muted, 1, [2, 2]);
    } else {
      this.alarm(pen, index, left, top, width, height);
      ink = this.colors.text;
    }
    if (this.mode !== "squares") {
      pen.fillStyle = ink;
      pen.fillText(this.label(index), left + this.size.pad, top + height / 2 + 0.5);
    } else if (code === 0) this.framed(pen, left + 0.5, top + 0.5, width - 1, height - 1, this.colors.line);
    pen.globalAlpha = 1;
    this.treated(pen, index, left, top, width, height);
    if (index === this.selected || index === this.hovered) this.framed(pen, left - 0.5, top - 0.5, width + 1, height + 1, this.colors.text, index === this.selected ? 2 : 1);
  }

  framed(pen, left, top, width, height, color, line = 1, dash = []) {
    pen.strokeStyle = color;
    pen.lineWidth = line;
    pen.setLineDash(dash);
    pen.strokeRect(left, top, width, height);
    pen.setLineDash([]);
  }

  // A broken token: framed in the colour of alarms, with its name on that colour, or a cross where there is no room.
  alarm(pen, index, left, top, width, height) {
    pen.strokeStyle = this.colors.alarm;
    pen.fillStyle = this.colors.alarm;
    if (this.mode === "squares") {
      pen.fillRect(left, top, width, height);
      pen.strokeStyle = this.colors.page;
      pen.lineWidth = 2;
      pen.beginPath();
      for (const [from, to] of [[3, height - 3], [height - 3, 3]]) {
        pen.moveTo(left + 3, top + from);
        pen.lineTo(left + width - 3, top + to);
      }
      pen.stroke();
      return;
    }
    const name = broken(this.strip, index);
    const chip = this.measure(name) + 8;
    pen.lineWidth = 2;
    pen.strokeRect(left + 1, top + 1, width - 2, height - 2);
    pen.fillRect(left + width - chip, top, chip, height);
    pen.fillStyle = this.colors.page;
    pen.fillText(name, left + width - chip + 4, top + height / 2 + 0.5);
  }

  // What the first correction does: a bar below what it drops, a dashed one below what it limits.
  treated(pen, index, left, top, width, height) {
    const code = this.strip.tokens.rule0?.[index];
    if (!code || !this.strip.corrections.length) return;
    const { dropped, limited } = this.strip.corrections[0];
    if (!dropped.includes(code) && !limited.includes(code)) return;
    pen.strokeStyle = this.colors.text;
    pen.lineWidth = 2;
    pen.setLineDash(dropped.includes(code) ? [] : [2, 2]);
    pen.beginPath();
    pen.moveTo(left, top + height);
    pen.lineTo(left + width, top + height);
    pen.stroke();
    pen.setLineDash([]);
  }

  // Ticks in front of tokens: other weights from here on, a turn starts.
  marks(pen, first, last, top) {
    const [from, to] = [this.rows[first], this.rows[last + 1] ?? this.strip.n];
    for (const [positions, color, flag] of [[this.strip.turns, this.colors.text, false], [this.strip.switches, this.colors.accent, true]]) {
      for (const index of positions) {
        if (index < from || index >= to) continue;
        const [x, y] = [Math.max(1.5, this.x[index] - this.size.gap / 2), this.row(index) * this.size.height - top];
        pen.strokeStyle = color;
        pen.fillStyle = color;
        pen.lineWidth = flag ? 2 : 1;
        pen.beginPath();
        pen.moveTo(x, y);
        pen.lineTo(x, y + this.size.height);
        pen.stroke();
        if (flag) pen.fillRect(x, y, 6, 3);
      }
    }
  }
}
