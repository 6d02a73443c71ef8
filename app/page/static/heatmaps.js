import { MEAN_COLOURS, PHASE_COLOURS } from "./codes.js";
import { grouped, meanCode, meanPhase } from "./means.js";
import { Picture } from "./picture.js";
import { perToken, sharing, zoomOf } from "./scale.js";
import { Surface } from "./surface.js";
import { WordAxis } from "./word_axis.js";

const POINTED = "#ffffff48";
const SELECTED = "#fff";
const RESET = "#ff4d4f";
const [MORE, LESS, BAR] = ["#7df9ff", "#ffd43b", 64]; // colours of bars, and their longest width
const NAMES = ["magnitude", "phase", "layers"];

/**
 * Heatmaps of magnitude, phase and layer means: rows by tokens, scaled to their canvases. With more
 * tokens or rows than pixels, a pixel shows the mean of several.
 */
export class Heatmaps {
  constructor(element, colours) {
    const find = (name) => element.querySelector(`.${name}`);
    this.colours = colours; // of half-lives, by code
    this.surfaces = NAMES.map((name) => new Surface(find(name)));
    this.axis = new WordAxis(find("axis"));
    this.canvases = this.surfaces.map(({ canvas }) => canvas);
    [this.scroll, this.stack, this.spacer] = ["scroll", "stack", "wide"].map(find);
    this.zoom = find("zoom");
    /** The selected token and the one under the pointer. @type {{selected: number | null, pointed: number | null}} */
    this.marks = { selected: null, pointed: null };
    /** Values from -1 to 1 of a layer's channels. @type {{layer: number, values: number[]} | null} */
    this.bars = null;
    /** The recordings that share one scale. */
    this.linked = () => [this.recording];
  }

  reset(recording, layer, sorted) {
    Object.assign(this, { recording, layer, sorted });
    this.pictures = [];
    this.box = null; // what the user has drawn, see `between`
    const { channels } = recording.layers[layer];
    this.order = Array.from({ length: channels }, (_, channel) => channel);
    this.sortedTokens = sorted ? this.#sort() : Infinity; // the number of tokens behind this order
    this.invalidate();
  }

  invalidate() {
    this.painted = null;
  }

  measure() {
    this.stack.style.width = `${this.scroll.clientWidth}px`;
    for (const surface of this.surfaces) surface.measure();
    this.axis.measure();
    this.invalidate();
  }

  /** Sort channels by mean half-life, the longest on top. */
  #sort() {
    const { data, length, size } = this.recording.columns[this.layer];
    const sums = new Float64Array(this.order.length);
    for (let token = 0; token < length; token++)
      for (let channel = 0; channel < sums.length; channel++)
        sums[channel] += data[token * size + channel];
    this.order.sort((a, b) => sums[a] - sums[b] || a - b);
    return length;
  }

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
        const indices = [this.order, this.order.map((at) => channels + at), [...layers.keys()]];
        return new Picture(grouped(indices[i], row), row, bin);
      });
    const [magnitude, phase, means] = this.pictures;
    const column = columns[this.layer];
    magnitude.paint(column.length, (...cell) => this.colours[meanCode(column, ...cell)]);
    phase.paint(column.length, (...cell) => PHASE_COLOURS[meanPhase(column, ...cell)]);
    means.paint(averages.length, (...cell) => MEAN_COLOURS[meanCode(averages, ...cell)]);
  }

  /** The cell under the pointer. */
  cell(event) {
    const i = Math.max(0, this.canvases.indexOf(event.currentTarget));
    const box = event.currentTarget.getBoundingClientRect();
    if (!this.pictures.length) this.show(); // reset since the last frame
    const { indices } = this.pictures[i];
    const row = Math.floor(((event.clientY - box.top) / box.height) * indices.length);
    const { width, first } = this.#scale();
    return this.cellAt(i, Math.floor(first + (event.clientX - box.left) / width), row);
  }

  /** A cell: its tokens, its row, and the channels or layers of that row. */
  cellAt(i, token, row) {
    const { bin, indices } = this.pictures[i];
    const inside = Math.min(indices.length - 1, Math.max(0, row));
    const from = Math.floor(token / bin) * bin;
    return { of: NAMES[i], token, from, bin, row: inside, indices: indices[inside] };
  }

  /** The tokens, rows and channels between two cells. */
  between(a, b) {
    const [top, bottom] = [Math.min(a.row, b.row), Math.max(a.row, b.row) + 1];
    const channels = this.pictures[0].indices.slice(top, bottom).flat();
    const inside = (token) => Math.min(Math.max(token, 0), this.recording.pieces.length);
    const [first, stop] = [Math.min(a.from, b.from), Math.max(a.from, b.from) + a.bin].map(inside);
    return { first, stop, top, bottom, channels, layer: this.layer };
  }

  /** The centre of a cell in window coordinates. */
  middle(i, token, row) {
    const { left, top, height } = this.canvases[i].getBoundingClientRect();
    const { width, first } = this.#scale();
    const share = (row + 0.5) / this.pictures[i].indices.length;
    return [left + (token + 0.5 - first) * width, top + share * height];
  }

  /** The visible width, the number of tokens, and true if all runs are done. */
  #extent() {
    const recordings = this.linked();
    return {
      width: this.surfaces[0].width,
      count: Math.max(...recordings.map(({ pieces }) => pieces.length)),
      done: recordings.every((recording) => recording.done),
    };
  }

  /** The width of a token, and the first visible one; the scale of a growing run changes in steps. */
  #scale() {
    const { scroll, spacer } = this;
    const { width: visible, count, done } = this.#extent();
    const zoom = this.zoom.valueAsNumber;
    const width = perToken({ zoom, width: visible, count, done });
    if (!zoom) {
      spacer.style.width = "0";
      return { width, first: 0 };
    }
    const atEnd = scroll.scrollLeft + visible >= spacer.clientWidth - 4;
    const whole = Math.ceil(width * count);
    spacer.style.width = `${Math.max(visible, whole)}px`;
    if (atEnd && !done) scroll.scrollLeft = whole;
    return { width, first: scroll.scrollLeft / width };
  }

  /** Draw after a change of the zoom; the token at `x` stays there, by default the middle one. */
  zoomed(x = this.surfaces[0].width / 2) {
    if (!this.shown) return; // an empty view has no size
    const token = this.shown.first + x / this.shown.width;
    const { width } = this.#scale();
    this.scroll.scrollLeft = token * width - x;
    this.show();
  }

  magnify(factor, x) {
    this.zoom.value = zoomOf({ ...this.#extent(), each: this.shown.width * factor });
    this.zoomed(x - this.canvases[0].getBoundingClientRect().left);
  }

  pan(pixels) {
    this.scroll.scrollLeft += pixels;
    this.show();
  }

  /** Show the same part as another view. */
  follow(other) {
    this.zoom.value = other.zoom.value;
    this.#scale();
    this.scroll.scrollLeft = this.followed = other.scroll.scrollLeft;
    this.show();
  }

  /** Scroll to a token that is not visible. */
  reveal(token) {
    const { width, first } = this.#scale();
    const visible = this.surfaces[0].width / width;
    if (token < first || token + 1 > first + visible)
      this.scroll.scrollLeft = (token + 0.5 - visible / 2) * width;
  }

  /** Draw the visible part: all of it, or only the new tokens if nothing else has changed. */
  show(all = true) {
    if (!this.surfaces[0].width) return; // a hidden page has no size
    const contexts = this.surfaces.map((surface) => surface.context());
    const { width, first } = this.#scale();
    this.shown = { width, first };
    this.#paint(width);
    const end = this.pictures[0].tokens;
    const ratio = contexts[0].getTransform().a;
    this.shown.ratio = ratio;
    const sizes = this.canvases.map(({ width, height }) => [width, height]);
    const state = [width, first, ratio, sizes].join();
    // in tokens: edges, marks and means overlap their neighbours
    const overlap = 2 + this.pictures[0].bin + Math.ceil(3 / width);
    const from = !all && this.painted?.state === state ? this.painted.end - overlap : first;
    const since = Math.max(0, Math.floor((from - first) * width * ratio) / ratio); // whole pixels
    contexts.forEach((context, i) => {
      const surface = this.surfaces[i];
      context.save();
      context.beginPath();
      context.rect(since, 0, Math.max(0, surface.width - since), surface.height);
      context.clip();
      context.clearRect(0, 0, surface.width, surface.height);
      if (end > first) this.#showPicture(context, i, since);
      context.restore();
    });
    this.painted = end > first ? { state, end } : null;
    this.axis.update(this.recording);
    this.axis.draw(this.shown, this.marks);
  }

  /** Draw a picture and its marks to the right of `left`; columns start at whole pixels. */
  #showPicture(context, i, left) {
    const { canvas, tokens, bin } = this.pictures[i];
    const { first, ratio } = this.shown;
    const each = this.shown.width;
    const visible = context.canvas.width / ratio;
    const height = context.canvas.height / ratio;
    const place = (token) => Math.round((token - first) * each * ratio) / ratio;
    const wide = (token) => Math.max(place(token + 1) - place(token), 2);
    context.imageSmoothingEnabled = false; // keeps neighbours apart
    const source = [first / bin, 0, visible / each / bin, canvas.height];
    context.drawImage(canvas, ...source, 0, 0, visible, height);
    if (i === 0) {
      context.fillStyle = RESET;
      for (const token of this.recording.resets)
        if (token < tokens && place(token) + wide(token) > left)
          context.fillRect(place(token), 0, wide(token), 5);
    }
    this.#showMarks(context, place, wide, height);
    const row = height / canvas.height;
    if (i === 0 && this.bars?.layer === this.layer) this.#showBars(context, visible, row);
    if (i || !this.box) return;
    const { first: start, stop, top, bottom } = this.box;
    context.strokeStyle = SELECTED;
    context.strokeRect(place(start), top * row, place(stop) - place(start), (bottom - top) * row);
  }

  /** Draw a bar at the right end of each row: its channels' value of the largest size. */
  #showBars(context, right, row) {
    this.pictures[0].indices.forEach((channels, n) => {
      const values = channels.map((channel) => this.bars.values[channel]);
      const value = values.reduce((best, v) => (Math.abs(v) > Math.abs(best) ? v : best), 0);
      context.fillStyle = value > 0 ? MORE : LESS;
      const wide = BAR * Math.abs(value);
      context.fillRect(right - wide, n * row, wide, Math.max(row, 1));
    });
  }

  #showMarks(context, place, wide, height) {
    const { selected, pointed } = this.marks;
    if (pointed !== null) {
      context.fillStyle = POINTED;
      context.fillRect(place(pointed), 0, wide(pointed), height);
    }
    if (selected === null) return;
    context.fillStyle = SELECTED;
    const [x, width] = [place(selected), wide(selected)];
    for (const edge of [x - 1, x + width]) context.fillRect(edge, 0, 1, height);
    for (const edge of [0, height - 1]) context.fillRect(x, edge, width, 1);
  }
}
