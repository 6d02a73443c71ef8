import { plain } from "../../../mlx_gateloop/watch/shared/plain.js";
import { CanvasPaper, textWidth } from "./papers.js";
import { Surface } from "./surface.js";

const LINE = 12; // CSS pixels, the distance of words
const LONGEST = 60; // of a word
const TICK = 4;
const MARK = 8; // of a token, from which on there is room for the mark of a special one
/** CSS pixels of the whole axis. */
export const AXIS_HEIGHT = TICK + LONGEST + 4;
const NAME = /[\p{L}\p{N}]/u;
const ANY = /./u;
const SELECTED = "#e5484d";

/** A token as a word of the axis, or nothing if it has none. */
function label({ text, special }) {
  if (special) return "";
  const word = plain(text).trim().replace(/\s+/g, " ");
  if (textWidth(word) <= LONGEST) return word;
  let end = Math.min(word.length, 12);
  while (end && textWidth(`${word.slice(0, end)}…`) > LONGEST) end--;
  return `${word.slice(0, end)}…`;
}

/**
 * The tokens whose words are written: as many names and numbers as fit, then what fits between
 * them; the same ones wherever the axis begins.
 * @param {string[]} words Of all tokens.
 * @param {number} width Of a token.
 * @param {(number | null)[]} [always] Tokens that are written in any case, instead of those beside them.
 * @returns {number[]}
 */
export function written(words, width, always = []) {
  const apart = Math.ceil(LINE / width); // tokens
  const fit = (from, to, kind) => {
    const found = [];
    for (let token = from; token <= to; token++)
      if (kind.test(words[token])) {
        found.push(token);
        token += apart - 1;
      }
    return found;
  };
  const beyond = words.length - 1 + apart;
  const names = [-apart, ...fit(0, words.length - 1, NAME), beyond];
  const fitting = names
    .slice(1)
    .flatMap((next, i) => [...fit(names[i] + apart, next - apart, ANY), next]);
  const first = always.filter((token) => words[token]);
  const free = (token) => first.every((other) => Math.abs(other - token) >= apart);
  return [...first, ...fitting.slice(0, -1).filter(free)];
}

/**
 * Draw words below their columns. The others have ticks where there is room, special ones a mark.
 * @param {import("./papers.js").CanvasPaper | import("./papers.js").SvgPaper} paper
 * @param {{words: string[], pieces: import("./recording.js").Piece[], first: number, width: number,
 *     sight: number, selected: number | null, pointed: number | null}} shown
 * @param {number} left @param {number} top Of the axis on the paper.
 */
export function drawAxis(paper, shown, left = 0, top = 0) {
  const { words, pieces, first, width, sight, selected = null, pointed = null } = shown;
  const end = Math.min(words.length, first + sight / width);
  const x = (token) => left + (token + 0.5 - first) * width;
  if (width >= 3)
    for (let token = Math.ceil(first); token < end; token++) {
      const middle = Math.round(x(token));
      if (pieces[token].special && width >= MARK)
        paper.text("◇", middle, top + TICK + 4, { align: "center" });
      else paper.rect(middle, top, 1, TICK);
    }
  for (const token of written(words, width, [selected, pointed])) {
    if (token + 0.5 < first || token + 0.5 > end) continue;
    const bold = token === pointed || token === selected;
    const ink = token === selected ? SELECTED : undefined;
    paper.rect(Math.round(x(token)), top, 1, TICK, ink);
    paper.text(words[token], x(token), top + TICK + 2, { align: "right", up: true, bold, ink });
  }
}

/** The words below the columns of a picture. */
export class WordAxis {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.surface = new Surface(canvas);
    this.words = [];
  }

  measure() {
    this.surface.measure();
    this.ink = getComputedStyle(this.surface.canvas).color;
  }

  /** @param {import("./recording.js").Recording} recording */
  update(recording) {
    const { pieces } = recording;
    if (this.recording !== recording) this.words = [];
    this.recording = recording;
    const known = Math.max(0, this.words.length - 1); // the last one's text may grow
    this.words.splice(known, Infinity, ...pieces.slice(known).map(label));
  }

  /** @param {{first: number, width: number}} place @param {{selected: number | null, pointed: number | null}} marks */
  draw(place, marks) {
    const context = this.surface.context();
    context.clearRect(0, 0, this.surface.width, this.surface.height);
    drawAxis(new CanvasPaper(context, this.ink), this.shown(place, marks));
  }

  /** All that `drawAxis` needs. */
  shown(place, marks) {
    const { recording, surface, words } = this;
    return { words, pieces: recording.pieces, sight: surface.width, ...place, ...marks };
  }
}
