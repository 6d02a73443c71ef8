import { bytes } from "../../../mlx_gateloop/watch/shared/data.js";

/**
 * @typedef {{label: string, channels: number, real: boolean}} Layer Real layers have no phase.
 * @typedef {{run: string | null, layers: Layer[], picker: [number, string][], name?: string}} Run
 *     In the picker, -1 stands for a layer that is not watched.
 * @typedef {{text: string, prompt: boolean, special: boolean}} Piece
 */

/** A growing array of records, each of `size` bytes. */
class Records {
  constructor(size) {
    this.size = size;
    this.length = 0;
    this.data = new Uint8Array(size * 256);
  }

  /** Append records from the index `start`; skips those that are already here. */
  append(start, base64) {
    const values = bytes(base64);
    const skip = (this.length - start) * this.size;
    if (skip < 0 || skip >= values.length) return;
    const used = this.length * this.size;
    const end = used + values.length - skip;
    if (end > this.data.length) {
      const larger = new Uint8Array(Math.max(end, 2 * this.data.length));
      larger.set(this.data);
      this.data = larger;
    }
    this.data.set(values.subarray(skip), used);
    this.length = end / this.size;
  }

  /** Take the storage of the first records of an object that is no longer used. */
  take({ data, length }, most) {
    this.data = data;
    this.length = Math.min(length, most);
  }
}

/** The part of a run that the page has received. */
export class Recording {
  constructor({ run, layers, picker, name, unrecorded = 0 }) {
    /** `unrecorded` counts tokens that the model read before the first one here. */
    Object.assign(this, { run, layers, picker, name, unrecorded });
    /** For each layer and token: the codes of all magnitudes, then of all phases. */
    this.columns = layers.map(({ channels }) => new Records(2 * channels));
    /** For each token: the mean magnitude of each layer, 0 to 255. */
    this.averages = new Records(layers.length);
    /** @type {Set<number>} */
    this.resets = new Set();
    /** @type {Piece[]} */
    this.pieces = [];
    /** @type {import("./word_list.js").Word[]} Only in a chat. */
    this.words = [];
    /** Codes of the strength of each word after the last token. */
    this.strengths = new Uint8Array();
    this.answer = -1; // number of its message
    this.tokens = 0; // on the server
    this.done = !run;
    /** The first `grouped` tokens are stored in groups of equal values. */
    this.grouped = 0;
  }

  /** Take the tokens that another run shares with this one. */
  take(earlier, tokens) {
    const labels = (layers) => layers.map(({ label }) => label).join("\n");
    if (labels(earlier.layers) !== labels(this.layers)) return; // a layer is no longer watched
    const most = Math.min(tokens, earlier.pieces.length - 1); // its last text may be incomplete
    if (most <= 0) return;
    this.pieces = earlier.pieces.slice(0, most);
    this.words = earlier.words.filter(({ stop }) => stop < most);
    this.averages.take(earlier.averages, most);
    this.columns.forEach((records, layer) => {
      records.take(earlier.columns[layer], most);
    });
    this.resets = new Set([...earlier.resets].filter((token) => token < most));
  }

  /** Add an update from the server; return false if something before it is missing. */
  add(update) {
    const { layer, start, known, tokens, words } = update;
    const { pieces } = this;
    this.tokens = Math.max(this.tokens, tokens);
    if (known > pieces.length || start > this.columns[layer].length) return false;
    this.columns[layer].append(start, update.columns);
    this.averages.append(known, update.averages);
    if (known + update.pieces.length < pieces.length) return true; // an older update
    pieces.splice(known, pieces.length, ...update.pieces);
    if (words) {
      this.words.splice(words.start, this.words.length, ...words.words);
      this.strengths = bytes(words.strengths);
      this.answer = words.answer;
    }
    if (tokens < this.tokens) return true;
    if (update.resets) {
      const bits = bytes(update.resets); // one for each token
      const all = [...Array(tokens).keys()];
      this.resets = new Set(all.filter((token) => bits[token >> 3] & (1 << (token & 7))));
    }
    this.done = update.done && pieces.length === tokens;
    if (this.done && tokens) pieces.at(-1).text = update.last; // the end of a run may complete it
    this.grouped = update.grouped;
    return true;
  }

  /** True if a layer is complete up to the tokens on the server. */
  has(layer) {
    return Math.min(this.columns[layer].length, this.pieces.length) >= this.tokens;
  }
}
