import { plain } from "../../../mlx_gateloop/watch/shared/plain.js";
import { Surface } from "./surface.js";

const LINE = 12; // CSS pixels between words
const LONGEST = 60; // CSS pixels of a word
const TICK = 4;
const MARK = 8; // width of a token from which special tokens have a mark
const FONT = "11px system-ui, sans-serif";
const NAME = /[\p{L}\p{N}]/u;
const ANY = /./u;
const SELECTED = "#e5484d";

/** The label of a token, empty if it has none. */
function label({ text, special }, context) {
  if (special) return "";
  const fits = (part) => context.measureText(part).width <= LONGEST;
  const word = plain(text).trim().replace(/\s+/g, " ");
  if (fits(word)) return word;
  let end = Math.min(word.length, 12);
  while (end && !fits(`${word.slice(0, end)}…`)) end--;
  return `${word.slice(0, end)}…`;
}

/**
 * The tokens with a label: as many names and numbers as fit, then others between them. The choice
 * does not depend on where the axis starts.
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

/** The words below the columns of a picture. */
export class WordAxis {
  constructor(canvas) {
    this.surface = new Surface(canvas);
    this.words = [];
  }

  measure() {
    this.surface.measure();
    this.ink = getComputedStyle(this.surface.canvas).color;
  }

  update(recording) {
    const { pieces } = recording;
    if (this.recording !== recording) this.words = [];
    this.recording = recording;
    const known = Math.max(0, this.words.length - 1); // the last text may still grow
    const context = this.surface.canvas.getContext("2d");
    context.font = FONT;
    const labels = pieces.slice(known).map((piece) => label(piece, context));
    this.words.splice(known, Infinity, ...labels);
  }

  /** Draw words below their columns; other tokens have ticks, special ones a mark. */
  draw({ first, width }, { selected, pointed }) {
    const { ink, recording, surface, words } = this;
    const context = surface.context();
    context.clearRect(0, 0, surface.width, surface.height);
    const end = Math.min(words.length, first + surface.width / width);
    const x = (token) => (token + 0.5 - first) * width;
    Object.assign(context, { fillStyle: ink, font: FONT, textAlign: "center" });
    context.textBaseline = "middle";
    if (width >= 3)
      for (let token = Math.ceil(first); token < end; token++) {
        if (recording.pieces[token].special && width >= MARK)
          context.fillText("◇", x(token), TICK + 4);
        else context.fillRect(Math.round(x(token)), 0, 1, TICK);
      }
    context.textAlign = "right";
    for (const token of written(words, width, [selected, pointed])) {
      if (token + 0.5 < first || token + 0.5 > end) continue;
      const bold = token === pointed || token === selected;
      context.fillStyle = token === selected ? SELECTED : ink;
      context.fillRect(Math.round(x(token)), 0, 1, TICK);
      context.save();
      context.translate(x(token), TICK + 2);
      context.rotate(-Math.PI / 2);
      if (bold) context.font = `bold ${FONT}`;
      context.fillText(words[token], 0, 0);
      context.restore();
    }
  }
}
