import { css } from "./codes.js";
import { Surface } from "./surface.js";

const BARS = 64; // each of 4 codes
const AXIS = 16; // CSS pixels below the bars
const TICKS = { 0.1: "0.1", 1: "1", 10: "10", 100: "100", 1e3: "1k", 1e4: "10k", 1e5: "100k" };

/** A histogram of a layer's half-lives on a logarithmic scale. */
export class Histogram {
  constructor(canvas, codes) {
    this.surface = new Surface(canvas);
    this.codes = codes;
  }

  measure() {
    this.surface.measure();
    this.ink = getComputedStyle(this.surface.canvas).color;
  }

  draw({ columns, layers }, layer) {
    this.#count(columns[layer], layers[layer].channels);
    const { width, height } = this.surface;
    const base = height - AXIS;
    const context = this.surface.context();
    context.clearRect(0, 0, width, height);
    const sums = Array.from({ length: BARS }, (_, i) =>
      this.counts.subarray(i * 4, i * 4 + 4).reduce((a, b) => a + b),
    );
    const top = Math.max(...sums, 1);
    sums.forEach((sum, i) => {
      // avoid the ends of the scale: invisible on a dark or a light page
      context.fillStyle = css(this.codes.colours[Math.min(190, Math.max(90, i * 4 + 2))]);
      const tall = (sum / top) * (base - 4);
      context.fillRect(width - ((i + 1) * width) / BARS, base - tall, width / BARS - 1, tall);
    });
    this.#axis(context, base);
  }

  /** Count the codes of the tokens since the last drawing. */
  #count(column, channels) {
    if (this.column !== column) {
      this.column = column;
      this.counts = new Uint32Array(256);
      this.counted = 0;
    }
    for (; this.counted < column.length; this.counted++)
      for (let i = 0, at = this.counted * 2 * channels; i < channels; i++)
        this.counts[column.data[at + i]]++;
  }

  #axis(context, base) {
    const { width, height } = this.surface;
    context.fillStyle = this.ink;
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "center";
    context.globalAlpha = 0.7;
    context.fillRect(0, base, width, 1);
    for (const [life, name] of Object.entries(TICKS)) {
      const x = width * (1 - this.codes.ofHalfLife(Number(life)) / 255);
      context.fillRect(x, base, 1, 4);
      context.fillText(name, x, height - 2);
    }
    context.globalAlpha = 1;
  }
}
