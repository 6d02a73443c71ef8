/** Cells of the Memory lab, and their summary; no function changes a list of cells. */
import { drawn, Memory } from "./model.js";

/** The first example: fixed transitions fail after about 30 digits. */
export const START = Array.from("002405334024102014344412314043132441213344444002", Number);
const LENGTH = 56;
const EARLY = 5; // position of the reset before a long span
const MANY = [8, 19, 30, 41, 52]; // positions of resets

/** The strength of token m at n, 0 to 1; 0 if it comes later. @param {number[][]} rows Shares. */
export const left = (rows, n, m) => (m > n ? 0 : Math.sqrt(rows[n][m] / Math.max(...rows[n])));

/** The right answers, those of the models, and what each keeps of the cells: `left`. */
export function solved(cells, models, { modulus, reset, rates }) {
  let sum = 0;
  const right = cells.map((cell) => {
    sum = cell === reset ? 0 : (sum + cell) % modulus;
    return sum;
  });
  const read = models.map((model) => {
    const [state, memory] = [model.start(), new Memory(model, rates)];
    return cells.map((cell) => {
      const answer = drawn(model.logits(model.step(cell, state, memory)), 0);
      return [answer, memory.shares()];
    });
  });
  const [answers, left] = [0, 1].map((i) => read.map((steps) => steps.map((step) => step[i])));
  return { right, answers, left };
}

export function example(name, { modulus, reset, max }, random) {
  const below = (count) => Math.floor(count * random());
  const length = name === "random" ? 8 + below(max - 7) : LENGTH;
  const resets = {
    long: [EARLY],
    resets: MANY,
    none: [],
    random: Array.from({ length: below(5) }, () => below(length)),
  }[name];
  return Array.from({ length }, (_, i) => (resets.includes(i) ? reset : below(modulus)));
}

/** Turn a digit into a reset, or a reset back into its digit. */
export function toggled(cells, before, position, reset) {
  if (cells[position] === reset) return cells.with(position, before[position] ?? 0);
  before[position] = cells[position];
  return cells.with(position, reset);
}

/** Insert a 0 after a position, unless there are `max` cells. */
export const inserted = (cells, position, max) =>
  cells.length < max ? cells.toSpliced(position + 1, 0, 0) : cells;

/** Delete a cell, unless it is the only one. */
export const deleted = (cells, position) =>
  cells.length > 1 ? cells.toSpliced(position, 1) : cells;

/** Describe a position: the right answer, those of the models, and what they still hold. */
export function summary(solved, cells, position, { modulus, reset }, models) {
  const last = cells.lastIndexOf(reset, position);
  const span = cells.slice(last + 1, position + 1);
  const sum = span.reduce((total, digit) => total + digit, 0);
  const terms = span.length > 8 ? [...span.slice(0, 3), "…", ...span.slice(-3)] : span;
  const right = solved.right[position];
  const answers = solved.answers.map((answers) => answers[position]);
  const judged = models.map(
    (name, i) => `${name}: ${answers[i]}, ${answers[i] === right ? "right" : "wrong"}`,
  );
  const since = last < 0 ? "the start" : "the reset";
  const added = span.length > 1 ? `${terms.join(" + ")} = ${sum}` : sum;
  const task = span.length
    ? `${span.length} since ${since}: ${added}, modulo ${modulus} that is ${right}`
    : "a reset; its answer is 0";
  return `Position ${position + 1}, ${task}. ${judged.join("; ")}.${held(solved.left, position, last, models)}`;
}

/** Describe how strong the digits before the last reset still are. */
function held(lefts, position, last, models) {
  if (last < 1) return "";
  const most = lefts.map((rows) => {
    const strengths = Array.from({ length: last }, (_, m) => left(rows, position, m) ** 2);
    return `${Math.round(100 * Math.max(...strengths))}%`;
  });
  const each = models.map((name, i) => `${most[i]} in ${name.toLowerCase()}`).join(", ");
  return `\nStrongest digit from before the reset, relative to the strongest of all: ${each}.`;
}
