/**
 * @typedef {{label: string, channels: number, real: boolean}} Layer Real ones have no phase.
 * @typedef {{run: string | null, layers: Layer[], picker: [number, string][], name?: string}} Run
 *     In the picker -1 stands for a layer that is not watched.
 * @typedef {{text: string, prompt: boolean}} Piece
 */

/** A growing array of records, each of `size` bytes. */
class Records {
  constructor(size) {
    this.size = size;
    this.length = 0;
    this.data = new Uint8Array(size * 256);
  }

  /** Append records whose first has the index `start`; those already here are skipped. */
  append(start, base64) {
    const text = atob(base64);
    const values = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) values[i] = text.charCodeAt(i);
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

  /** Take over the first records of others, which are no longer used. */
  take({ data, length }, most) {
    this.data = data;
    this.length = Math.min(length, most);
  }
}

/** The part of a run that the page has received. */
export class Recording {
  /** @param {Run} run Without an id there is nothing to receive. */
  constructor({ run, layers, picker, name }) {
    Object.assign(this, { run, layers, picker, name });
    /** Of each layer: for every token the codes of all magnitudes, then of all phases. */
    this.columns = layers.map(({ channels }) => new Records(2 * channels));
    /** For every token the mean magnitude of each layer, 0 to 255. */
    this.averages = new Records(layers.length);
    /** @type {Set<number>} */
    this.resets = new Set();
    /** @type {Piece[]} */
    this.pieces = [];
    this.done = !run;
    /** The first so many are kept in groups, in which all tokens are the same. */
    this.grouped = 0;
  }

  /**
   * Take over what another run has in common with this one.
   * @param {Recording} earlier It is no longer used.
   * @param {number} tokens The first so many are the same.
   */
  take(earlier, tokens) {
    const labels = (layers) => layers.map(({ label }) => label).join("\n");
    if (labels(earlier.layers) !== labels(this.layers)) return; // one is no longer watched
    const most = Math.min(tokens, earlier.pieces.length - 1); // its last text may lack its end
    if (most <= 0) return;
    this.pieces = earlier.pieces.slice(0, most);
    this.averages.take(earlier.averages, most);
    this.columns.forEach((records, layer) => {
      records.take(earlier.columns[layer], most);
    });
    this.resets = new Set([...earlier.resets].filter((token) => token < most));
  }

  /** Add an answer of the server's `columns`. */
  add(answer) {
    this.columns[answer.layer].append(answer.start, answer.columns);
    this.averages.append(answer.known, answer.averages);
    this.pieces.splice(answer.known, answer.pieces.length, ...answer.pieces);
    const last = this.pieces.at(-1);
    if (answer.done && last) last.text = answer.last; // the end of a run may complete its text
    if (answer.resets) this.resets = new Set(answer.resets);
    this.done = answer.done;
    this.grouped = answer.grouped;
  }
}
