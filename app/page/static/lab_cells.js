/** Cells of the Memory lab, and what is said of them; a list of cells is never changed in place. */

/** Shown first: fixed transitions fail after some 30 digits of it. */
export const START = Array.from("002405334024102014344412314043132441213344444002", Number);
const LENGTH = 56;
const EARLY = 5; // place of the reset before a long span
const MANY = [8, 19, 30, 41, 52]; // places of resets

/** The strength of token m at n, 0 to 1; 0 where it comes later. */
export const left = (codes, n, m) => (m > n ? 0 : codes[(n * (n + 1)) / 2 + m] / 255);

export function example(name, { modulus, reset, most }, random) {
  const below = (count) => Math.floor(count * random());
  const length = name === "random" ? 8 + below(most - 7) : LENGTH;
  const resets = {
    long: [EARLY],
    resets: MANY,
    none: [],
    random: Array.from({ length: below(5) }, () => below(length)),
  }[name];
  return Array.from({ length }, (_, i) => (resets.includes(i) ? reset : below(modulus)));
}

/** Make a digit a reset, or a reset the digit that it was. */
export function toggled(cells, before, place, reset) {
  if (cells[place] === reset) return cells.with(place, before[place] ?? 0);
  before[place] = cells[place];
  return cells.with(place, reset);
}

/** Insert a 0 after a place, unless there are as many as may be. */
export const inserted = (cells, place, most) =>
  cells.length < most ? cells.toSpliced(place + 1, 0, 0) : cells;

/** Delete a cell, unless it is the only one. */
export const deleted = (cells, place) => (cells.length > 1 ? cells.toSpliced(place, 1) : cells);

/**
 * Tell what is right at a place, what the models answer and what they hold from before the reset.
 */
export function said(solved, cells, place, { modulus, reset }, models) {
  const last = cells.lastIndexOf(reset, place);
  const span = cells.slice(last + 1, place + 1);
  const sum = span.reduce((total, digit) => total + digit, 0);
  const terms = span.length > 8 ? [...span.slice(0, 3), "…", ...span.slice(-3)] : span;
  const right = solved.right[place];
  const answers = solved.answers.map((answers) => answers[place]);
  const judged = models.map(
    (name, i) => `${name}: ${answers[i]}, ${answers[i] === right ? "right" : "wrong"}`,
  );
  const since = last < 0 ? "the start" : "the reset";
  const added = span.length > 1 ? `${terms.join(" + ")} = ${sum}` : sum;
  const task = span.length
    ? `${span.length} since ${since}: ${added}, modulo ${modulus} that is ${right}`
    : "a reset, whose answer is 0";
  return `Place ${place + 1}, ${task}. ${judged.join("; ")}.${held(solved.left, place, last, models)}`;
}

/** Tell how strong the digits before the last reset still are. */
function held(lefts, place, last, models) {
  if (last < 1) return "";
  const most = lefts.map((codes) => {
    const strengths = Array.from({ length: last }, (_, m) => left(codes, place, m) ** 2);
    return `${Math.round(100 * Math.max(...strengths))}%`;
  });
  const each = models.map((name, i) => `${most[i]} in ${name.toLowerCase()}`).join(", ");
  return `\nThe strongest digit from before the reset, next to the strongest of all: ${each}.`;
}
