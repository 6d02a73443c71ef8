import { MEAN_COLOURS, PHASE_COLOURS } from "./codes.js";
import { drawMeanLine } from "./mean_line.js";
import { grouped, meanCode, meanPhase } from "./means.js";
import { Picture } from "./picture.js";
import { perToken, sharing, zoomOf } from "./scale.js";
import { Surface } from "./surface.js";
import { WordAxis } from "./word_axis.js";

const POINTED = "#ffffff48";
const SELECTED = "#fff";
const RESET = "#ff4d4f";
const NAMES = ["magnitude", "phase", "layers"];
const LAYERS = 2; // index of the picture of all layers, after magnitude and phase of one layer

/**
 * The pictures of magnitude, phase and layer means: rows by tokens, scaled to their canvases. Where
 * there are more tokens or rows than pixels, a pixel shows the mean of several.
 */
export class Heatmaps {
  constructor(element, codes) {
    const find = (name) => element.querySelector(`.${name}`);
    this.codes = codes;
    this.surfaces = NAMES.map((name) => new Surface(find(name)));
    this.axis = new WordAxis(find("axis"));
    this.canvases = this.surfaces.map(({ canvas }) => canvas);
    [this.scroll, this.stack, this.spacer] = ["scroll", "stack", "wide"].map(find);
    this.zoom = find("zoom");
    /** The tokens that are chosen and pointed at. @type {{selected: number | null, pointed: number | null}} */
    this.marks = { selected: null, pointed: null };
    this.hint = "";
    /** The recordings that are shown at the same scale. */
    this.together = () => [this.recording];
  }

  reset(recording, layer, sorted) {
    Object.assign(this, { recording, layer, sorted });
    this.pictures = [];
    const { channels } = recording.layers[layer];
    this.order = Array.from({ length: channels }, (_, channel) => channel);
    this.sortedTokens = sorted ? this.#sort() : Infinity; // the order rests on so many
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

  /** The tokens and the rows under the pointer. */
  cell(event) {
    const i = Math.max(0, this.canvases.indexOf(event.currentTarget));
    const box = event.currentTarget.getBoundingClientRect();
    const { places } = this.pictures[i];
    const row = Math.floor(((event.clientY - box.top) / box.height) * places.length);
    const { width, first } = this.#scale();
    return this.cellAt(i, Math.floor(first + (event.clientX - box.left) / width), row);
  }

  /** The tokens and the places of a cell. */
  cellAt(i, token, row) {
    const { bin, places } = this.pictures[i];
    const inside = Math.min(places.length - 1, Math.max(0, row));
    const from = Math.floor(token / bin) * bin;
    return { of: NAMES[i], token, from, bin, row: inside, places: places[inside] };
  }

  /** The middle of a cell, in the window. */
  middle(i, token, row) {
    const { left, top, height } = this.canvases[i].getBoundingClientRect();
    const { width, first } = this.#scale();
    const share = (row + 0.5) / this.pictures[i].places.length;
    return [left + (token + 0.5 - first) * width, top + share * height];
  }

  /** The width that is in sight, how many tokens there are, and true if no more will come. */
  #extent() {
    const recordings = this.together();
    return {
      width: this.surfaces[0].width,
      count: Math.max(...recordings.map(({ pieces }) => pieces.length)),
      done: recordings.every((recording) => recording.done),
    };
  }

  /** The width of a token, and the first token shown; a growing run is scaled in steps. */
  #scale() {
    const { scroll, spacer } = this;
    const { width: sight, count, done } = this.#extent();
    const zoom = this.zoom.valueAsNumber;
    const width = perToken({ zoom, width: sight, count, done });
    if (!zoom) {
      spacer.style.width = "0";
      return { width, first: 0 };
    }
    const atEnd = scroll.scrollLeft + sight >= spacer.clientWidth - 4;
    const whole = Math.ceil(width * count);
    spacer.style.width = `${Math.max(sight, whole)}px`;
    if (atEnd && !done) scroll.scrollLeft = whole;
    return { width, first: scroll.scrollLeft / width };
  }

  /** Show another zoom; the token at `x` of the picture stays there, by default the middle one. */
  zoomed(x = this.surfaces[0].width / 2) {
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

  /** Show the same part as another. */
  follow(other) {
    this.zoom.value = other.zoom.value;
    this.#scale();
    this.scroll.scrollLeft = this.followed = other.scroll.scrollLeft;
    this.show();
  }

  /** Scroll to a token, if it is out of sight. */
  reveal(token) {
    const { width, first } = this.#scale();
    const sight = this.surfaces[0].width / width;
    if (token < first || token + 1 > first + sight)
      this.scroll.scrollLeft = (token + 0.5 - sight / 2) * width;
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
    this.shown.ratio = ratio;
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
    this.axis.update(this.recording);
    this.axis.draw(this.shown, this.marks);
  }

  #showHint(context, { width, height }) {
    context.fillStyle = "#999";
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillText(this.hint, width / 2, height / 2, width - 16);
  }

  /** A picture with its marks; what is left of `left` is clipped. Columns begin at pixels. */
  #showPicture(context, i, left) {
    const { canvas, tokens, bin } = this.pictures[i];
    const { first, ratio } = this.shown;
    const each = this.shown.width;
    const sight = context.canvas.width / ratio;
    const height = context.canvas.height / ratio;
    const place = (token) => Math.round((token - first) * each * ratio) / ratio;
    const wide = (token) => Math.max(place(token + 1) - place(token), 2);
    context.imageSmoothingEnabled = false; // neighbours would bleed into each other
    const source = [first / bin, 0, sight / each / bin, canvas.height];
    context.drawImage(canvas, ...source, 0, 0, sight, height);
    if (i === LAYERS) {
      const last = Math.min(tokens, first + sight / each);
      const place = (at) => (at - first) * each;
      drawMeanLine(context, this.recording.averages, { place, first, last, each, height });
    }
    if (i === 0) {
      context.fillStyle = RESET;
      for (const token of this.recording.resets)
        if (token < tokens && place(token) + wide(token) > left)
          context.fillRect(place(token), 0, wide(token), 5);
    }
    this.#showMarks(context, place, wide, height);
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
