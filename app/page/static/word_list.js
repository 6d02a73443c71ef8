/**
 * Words as the server counts them.
 * @typedef {{message: number, begin: number, text: string, sentence: number, first: number,
 *     stop: number}} Word
 *     Number of its message, offset there in UTF-16 units; its sentence; its first token, and the
 *     one after its last.
 * @typedef {{first: number, stop: number}} Choice A range of words, its end excluded.
 */

/** The words of a message between two offsets, at least the one at the first. */
export function chosen(words, message, begin, end) {
  const inside = ({ message: of, begin: at, text }) =>
    of === message && at < Math.max(end, begin + 1) && at + text.length > begin;
  const first = words.findIndex(inside);
  if (first < 0) return null;
  let stop = first + 1;
  while (stop < words.length && inside(words[stop])) stop++;
  return { first, stop };
}

/** Extend a choice to whole sentences or messages. */
export function whole(words, { first, stop }, part) {
  while (first > 0 && words[first - 1][part] === words[first][part]) first--;
  while (stop < words.length && words[stop][part] === words[stop - 1][part]) stop++;
  return { first, stop };
}

/** The chosen words as a text. */
export function textOf(words, { first, stop }) {
  let text = "";
  for (let n = first; n < stop; n++) {
    const { message, begin } = words[n];
    const before = words[n - 1];
    const follows = before && before.message === message;
    const touches = follows && before.begin + before.text.length === begin;
    text += (n > first && !touches ? " " : "") + words[n].text;
  }
  return text;
}
