import { MEAN_COLOURS, PHASE_COLOURS } from "./codes.js";
import { grouped, meanCode, meanLine, meanPhase } from "./means.js";
import { Picture } from "./picture.js";
import { lineBin, perToken, sharing } from "./scale.js";
import { Surface } from "./surface.js";

const RANGE = "#0007"; // of the means that a point of the line stands for
const LINE = { "#000a": 3.5, "#7df9ff": 1.5 }; // widths by colour, the outline first
const LAYERS = 2; // index of the picture of all layers, after magnitude and phase of one layer

/**
 * The pictures of magnitude, phase and layer means: rows by tokens, scaled to their canvases.
 * Where there are more tokens or rows than pixels, a pixel shows the mean of several.
 */
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
    this.hint = "";
  }

  /**
   * Begin the pictures anew.
   * @param {import("./recording.js").Recording} recording
   * @param {number} layer
   * @param {boolean} sorted Channels are in the order of their half-lives.
   */
  reset(recording, layer, sorted) {
    Object.assign(this, { recording, layer, sorted });
    this.pictures = [];
    const { channels } = recording.layers[layer];
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
    const { columns, done, pieces } = this.recording;
    const { length } = columns[this.layer];
    const complete = done && length >= pieces.length;
    if (length >= 2 * this.sortedTokens + 8 || (complete && length > this.sortedTokens))
      this.reset(this.recording, this.layer, this.sorted);
    this.show(false);
  }

  #paint(width) {
    const ratio = window.devicePixelRatio || 1;
    const { columns, averages, layers } = this.recording;
    const { channels } = layers[this.layer];
    const bin = sharing(width * ratio);
    const rows = [channels, channels, layers.length].map((count, i) =>
      sharing((this.surfaces[i].height * ratio) / count || 1),
    );
    if (
      this.pictures[0]?.bin !== bin ||
      this.pictures.some((picture, i) => picture.row !== rows[i])
    )
      this.pictures = rows.map((row, i) => {
        const places = [this.order, this.order.map((at) => channels + at), [...layers.keys()]];
        return new Picture(grouped(places[i], row), row, bin);
      });
    const [magnitude, phase, means] = this.pictures;
    const column = columns[this.layer];
    const { colours } = this.codes;
    magnitude.paint(column.length, (...cell) => colours[meanCode(column, ...cell)]);
    phase.paint(column.length, (...cell) => PHASE_COLOURS[meanPhase(column, ...cell)]);
    means.paint(averages.length, (...cell) => MEAN_COLOURS[meanCode(averages, ...cell)]);
  }

  /** The tokens and the rows under the pointer. @param {MouseEvent} event */
  cell(event) {
    const i = this.canvases.indexOf(event.currentTarget);
    const box = event.currentTarget.getBoundingClientRect();
    const { width, first } = this.#scale();
    const { bin, places } = this.pictures[i];
    const row = Math.floor(((event.clientY - box.top) / box.height) * places.length);
    const token = Math.floor(first + (event.clientX - box.left) / width);
    const from = Math.floor(token / bin) * bin;
    const of = ["magnitude", "phase", "layers"][i];
    return { of, token, from, bin, places: places[Math.min(places.length - 1, Math.max(0, row))] };
  }

  /** The width of a token, and the first token shown; a growing run is scaled in steps. */
  #scale() {
    const { pieces, done } = this.recording;
    const { scroll, spacer } = this;
    const sight = this.surfaces[0].width;
    const zoom = this.zoom.valueAsNumber;
    const width = perToken({ zoom, width: sight, count: pieces.length, done });
    if (!zoom) {
      spacer.style.width = "0";
      return { width, first: 0 };
    }
    const atEnd = scroll.scrollLeft + sight >= spacer.clientWidth - 4;
    const whole = Math.ceil(width * pieces.length);
    spacer.style.width = `${Math.max(sight, whole)}px`;
    if (atEnd && !done) scroll.scrollLeft = whole;
    return { width, first: scroll.scrollLeft / width };
  }

  /** Show another zoom; the token in the middle stays there. */
  zoomed() {
    const half = this.surfaces[0].width / 2;
    const middle = this.shown.first + half / this.shown.width;
    const { width } = this.#scale();
    this.scroll.scrollLeft = middle * width - half;
    this.show();
  }

  /** Show what is in sight: all of it, or only the new tokens where nothing else has changed. */
  show(all = true) {
    if (!this.surfaces[0].width) return; // a page that is not in sight has none
    const contexts = this.surfaces.map((surface) => surface.context());
    const { width, first } = this.#scale();
    this.shown = { width, first };
    this.#paint(width);
    const end = this.pictures[0].tokens;
    const ratio = contexts[0].getTransform().a;
    const sizes = this.canvases.map(({ width, height }) => [width, height]);
    const state = [width, first, ratio, sizes].join();
    // tokens: edges, marks and means reach their neighbours
    const overlap = 2 + this.pictures[0].bin + Math.ceil(3 / width);
    const from = !all && this.painted?.state === state ? this.painted.end - overlap : first;
    const since = Math.max(0, Math.floor((from - first) * width * ratio) / ratio); // whole pixels
    contexts.forEach((context, i) => {
      const surface = this.surfaces[i];
      const left = i === LAYERS ? 0 : since; // a line has no parts
      context.save();
      context.beginPath();
      context.rect(left, 0, Math.max(0, surface.width - left), surface.height);
      context.clip();
      context.clearRect(0, 0, surface.width, surface.height);
      if (end > first) this.#showPicture(context, i, left);
      else if (i === 0) this.#showHint(context, surface);
      context.restore();
    });
    this.painted = end > first ? { state, end } : null;
  }

  #showHint(context, { width, height }) {
    context.fillStyle = "#999";
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillText(this.hint, width / 2, height / 2, width - 16);
  }

  /** A picture with its marks; what is left of `left` is clipped. */
  #showPicture(context, i, left) {
    const { canvas, tokens, bin } = this.pictures[i];
    const { width, height } = this.surfaces[i];
    const { first } = this.shown;
    const each = this.shown.width;
    const shown = Math.min(tokens - first, width / each);
    const place = (token) => (token - first) * each;
    const wide = Math.max(each, 2);
    context.imageSmoothingEnabled = false; // neighbours would bleed into each other
    const source = [first / bin, 0, shown / bin, canvas.height];
    context.drawImage(canvas, ...source, 0, 0, shown * each, height);
    if (i === LAYERS) this.#showLine(context, place, first, first + shown, height);
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

  /** The mean magnitude of all layers; where tokens are narrow, of several, with their range. */
  #showLine(context, place, from, end, height) {
    const y = (value) => 3 + (height - 6) * (1 - value / 255);
    const { averages } = this.recording;
    const stop = Math.min(Math.ceil(end), averages.length);
    const bin = lineBin(this.shown.width);
    const points = meanLine(averages, Math.floor(from), stop, bin);
    if (bin > 1) {
      context.beginPath();
      for (const { at, high } of points) context.lineTo(place(at), y(high));
      for (const { at, low } of points.reverse()) context.lineTo(place(at), y(low));
      context.fillStyle = RANGE;
      context.fill();
    }
    context.beginPath();
    context.lineJoin = "round";
    for (const { at, mean } of points) context.lineTo(place(at), y(mean));
    for (const [strokeStyle, lineWidth] of Object.entries(LINE)) {
      Object.assign(context, { strokeStyle, lineWidth });
      context.stroke();
    }
  }
}
