import { MEAN_COLOURS, PHASE_COLOURS } from "./codes.js";
import { Picture } from "./picture.js";
import { Surface } from "./surface.js";

const LINE = { "#000a": 3.5, "#7df9ff": 1.5 }; // widths by colour, the outline first
const LAYERS = 2; // index of the picture of all layers, after magnitude and phase of one layer

/** The pictures of magnitude, phase and layer means: rows by tokens, scaled to their canvases. */
export class Heatmaps {
  /**
   * @param {HTMLElement} element The view, with its canvases and its zoom.
   * @param {import("./codes.js").Codes} codes
   */
  constructor(element, codes) {
    const find = (name) => element.querySelector(`.${name}`);
    this.codes = codes;
    this.surfaces = ["magnitude", "phase", "layers"].map((name) => new Surface(find(name)));
    this.canvases = this.surfaces.map(({ canvas }) => canvas);
    [this.scroll, this.stack, this.spacer] = ["scroll", "stack", "wide"].map(find);
    this.zoom = find("zoom");
    this.selected = null;
  }

  /**
   * Begin the pictures anew.
   * @param {import("./recording.js").Recording} recording
   * @param {number} layer
   * @param {boolean} sorted Channels are in the order of their half-lives.
   */
  reset(recording, layer, sorted) {
    const { channels, layers } = recording;
    Object.assign(this, { recording, layer, sorted });
    this.pictures = [channels, channels, layers].map((rows) => new Picture(rows));
    this.order = Array.from({ length: channels }, (_, channel) => channel);
    this.sortedTokens = sorted ? this.#sort() : Infinity; // the order rests on so many
    this.invalidate();
  }

  /** Paint everything anew the next time. */
  invalidate() {
    this.painted = null;
  }

  /** Read the sizes of the canvases. */
  measure() {
    this.stack.style.width = `${this.scroll.clientWidth}px`;
    for (const surface of this.surfaces) surface.measure();
    this.invalidate();
  }

  /** Put the channel of the longest mean half-life on top. */
  #sort() {
    const { data, length, size } = this.recording.columns[this.layer];
    const sums = new Float64Array(this.order.length);
    for (let token = 0; token < length; token++)
      for (let channel = 0; channel < sums.length; channel++)
        sums[channel] += data[token * size + channel];
    this.order.sort((a, b) => sums[a] - sums[b] || a - b);
    return length;
  }

  /** Paint the tokens that are new. */
  update() {
    const { columns, averages, layers, channels, done, pieces } = this.recording;
    const { data, length, size } = columns[this.layer];
    const complete = done && length >= pieces.length;
    if (length >= 2 * this.sortedTokens + 8 || (complete && length > this.sortedTokens))
      this.reset(this.recording, this.layer, this.sorted);
    const { colours } = this.codes;
    const { order } = this;
    const [magnitude, phase, means] = this.pictures;
    magnitude.paint(length, (token, row) => colours[data[token * size + order[row]]]);
    phase.paint(length, (token, row) => PHASE_COLOURS[data[token * size + channels + order[row]]]);
    means.paint(averages.length, (token, row) => MEAN_COLOURS[averages.data[token * layers + row]]);
    this.show(false);
  }

  /** The token and the row under the pointer. @param {MouseEvent} event */
  cell(event) {
    const i = this.canvases.indexOf(event.currentTarget);
    const box = event.currentTarget.getBoundingClientRect();
    const { perToken, first } = this.#scale();
    const rows = this.pictures[i].canvas.height;
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    return {
      token: Math.floor(first + (event.clientX - box.left) / perToken),
      row: Math.min(rows - 1, Math.max(0, row)),
      ofLayers: i === LAYERS,
    };
  }

  /** CSS pixels a token, and the first token shown; a growing run is scaled in steps. */
  #scale() {
    const { pieces, done } = this.recording;
    const { scroll, spacer } = this;
    const { width } = this.surfaces[0];
    const zoom = Number(this.zoom.value);
    const count = Math.max(pieces.length, 1);
    if (!zoom) {
      const steps = Math.ceil(Math.log(Math.max(count / 48, 1)) / Math.log(1.3));
      spacer.style.width = "0";
      return { perToken: Math.min(16, width / (done ? count : 48 * 1.3 ** steps)), first: 0 };
    }
    const atEnd = scroll.scrollLeft + width >= spacer.clientWidth - 4;
    spacer.style.width = `${Math.max(width, Math.ceil(zoom * count))}px`;
    if (atEnd && !done) scroll.scrollLeft = zoom * count;
    return { perToken: zoom, first: scroll.scrollLeft / zoom };
  }

  /** Show what is in sight: all of it, or only the new tokens where nothing else has changed. */
  show(all = true) {
    const contexts = this.surfaces.map((surface) => surface.context());
    const { perToken, first } = this.#scale();
    const end = this.pictures[0].tokens;
    const ratio = contexts[0].getTransform().a;
    const sizes = this.canvases.map(({ width, height }) => [width, height]);
    const state = [perToken, first, ratio, sizes].join();
    const overlap = 2 + Math.ceil(3 / perToken); // tokens: edges and marks reach their neighbours
    const from = !all && this.painted?.state === state ? this.painted.end - overlap : first;
    const since = Math.max(0, Math.floor((from - first) * perToken * ratio) / ratio); // whole pixels
    contexts.forEach((context, i) => {
      const { width, height } = this.surfaces[i];
      const left = i === LAYERS ? 0 : since; // a line has no parts
      context.save();
      context.beginPath();
      context.rect(left, 0, Math.max(0, width - left), height);
      context.clip();
      context.clearRect(0, 0, width, height);
      if (end > first) this.#showPicture(context, i, { perToken, first, left, width, height });
      else if (i === 0) this.#showHint(context, width, height);
      context.restore();
    });
    this.painted = end > first ? { state, end } : null;
  }

  #showHint(context, width, height) {
    context.fillStyle = "#999";
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillText("every token will add a column", width / 2, height / 2);
  }

  /** A picture with its marks; what is left of `left` is clipped. */
  #showPicture(context, i, { perToken, first, left, width, height }) {
    const { canvas, tokens } = this.pictures[i];
    const shown = Math.min(tokens - first, width / perToken);
    if (!(shown > 0)) return; // a page that is not in sight has no width
    const place = (token) => (token - first) * perToken;
    const wide = Math.max(perToken, 2);
    context.imageSmoothingEnabled = perToken < 1 || height < canvas.height;
    context.drawImage(canvas, first, 0, shown, canvas.height, 0, 0, shown * perToken, height);
    if (i === LAYERS) this.#showLine(context, place, Math.floor(first), first + shown, height);
    if (i === 0) {
      context.fillStyle = "#ff4d4f";
      for (const token of this.recording.resets)
        if (token < tokens && place(token) + wide > left)
          context.fillRect(place(token), 0, wide, 5);
    }
    if (this.selected === null) return;
    context.strokeStyle = "#fff";
    context.lineWidth = 1;
    context.strokeRect(place(this.selected) - 0.5, 0.5, wide + 1, height - 1);
  }

  /** The mean magnitude of all layers. */
  #showLine(context, place, from, end, height) {
    const { averages, layers } = this.recording;
    context.beginPath();
    context.lineJoin = "round";
    for (let token = from; token < end; token++) {
      let sum = 0;
      for (let i = 0; i < layers; i++) sum += averages.data[token * layers + i];
      context.lineTo(place(token + 0.5), 3 + (height - 6) * (1 - sum / layers / 255));
    }
    for (const [strokeStyle, lineWidth] of Object.entries(LINE)) {
      Object.assign(context, { strokeStyle, lineWidth });
      context.stroke();
    }
  }
}
