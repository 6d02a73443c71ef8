/** Byte pair encoding without normalization, in which unknown letters fall back to bytes. */
export class Tokenizer {
  #special;

  /** @param {{pieces: string[], merges: [string, string][], special: Record<string, number>}} of */
  constructor({ pieces, merges, special }) {
    this.pieces = pieces;
    this.longest = pieces.reduce((most, piece) => Math.max(most, piece.length), 1);
    this.special = new Map(Object.entries(special));
    this.ids = new Map(pieces.map((piece, id) => [piece, id]));
    for (const [name, id] of this.special) pieces[id] = name; // some are no pieces
    this.ranks = new Map(merges.map(([a, b], rank) => [`${a}\0${b}`, rank]));
    const names = [...this.special.keys()].sort((a, b) => b.length - a.length); // the longest wins
    const escaped = names.map((name) => name.replace(/\W/g, "\\$&"));
    this.#special = new RegExp(`(${escaped.join("|") || "(?!)"})`);
  }

  /** @param {string} text @param {boolean} [withSpecial] Read special tokens in the text as such. */
  encode(text, withSpecial = false) {
    if (!withSpecial) return this.#merged(text);
    const parts = text.split(this.#special);
    return parts.flatMap((part, i) => (i % 2 ? [this.special.get(part)] : this.#merged(part)));
  }

  /** Merge the best pair, the first of equals, until no pair is left. */
  #merged(text) {
    const parts = [...text.toWellFormed()].flatMap((letter) => this.#known(letter));
    const rank = (i) => this.ranks.get(`${parts[i]}\0${parts[i + 1]}`) ?? Infinity;
    const ranks = parts.map((_, i) => rank(i));
    for (;;) {
      let best = 0;
      for (let i = 1; i < ranks.length; i++) if (ranks[i] < ranks[best]) best = i;
      if (!(ranks[best] < Infinity)) break;
      parts.splice(best, 2, parts[best] + parts[best + 1]);
      ranks.splice(best, 1);
      ranks[best] = rank(best);
      if (best) ranks[best - 1] = rank(best - 1);
    }
    return parts.map((part) => this.ids.get(part));
  }

  #known(letter) {
    if (this.ids.has(letter)) return [letter];
    return Array.from(new TextEncoder().encode(letter), (byte) => {
      return `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
    });
  }

  /** The texts of tokens; bytes of a letter wait for its last one. @param {number[]} ids */
  decode(ids) {
    const texts = ids.map(() => "");
    let bytes = [];
    const flush = (at) => {
      if (bytes.length) texts[at] += utf8(bytes) ?? "\ufffd".repeat(bytes.length);
      bytes = [];
    };
    ids.forEach((id, at) => {
      const piece = this.pieces[id] ?? "";
      const byte = piece.match(/^<0x([0-9A-F]{2})>$/);
      if (!byte) {
        flush(at - 1);
        texts[at] = piece.replaceAll("\u2581", " ");
        return;
      }
      bytes.push(parseInt(byte[1], 16));
      if (utf8(bytes)) flush(at);
    });
    flush(ids.length - 1);
    return texts;
  }
}

/** The text of bytes; null unless they are UTF-8. */
function utf8(bytes) {
  try {
    const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
    return decoder.decode(new Uint8Array(bytes));
  } catch {
    return null;
  }
}
