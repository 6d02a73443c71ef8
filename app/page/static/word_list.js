/**
 * Words as the server counts them.
 * @typedef {{message: number, begin: number, text: string, sentence: number, stop: number}} Word
 *     Its message and its place there, in UTF-16 units; its sentence; the token after its last.
 * @typedef {{first: number, stop: number}} Choice Numbers of words that follow one another.
 */

/** Make a word of what the server sends. @returns {Word} */
export const word = ([message, begin, text, sentence, stop]) => ({
  message,
  begin,
  text,
  sentence,
  stop,
});

/** Choose the words of a message between two places, at least the one at the first. */
export function chosen(words, message, begin, end) {
  const inside = ({ message: of, begin: at, text }) =>
    of === message && at < Math.max(end, begin + 1) && at + text.length > begin;
  const first = words.findIndex(inside);
  if (first < 0) return null;
  let stop = first + 1;
  while (stop < words.length && inside(words[stop])) stop++;
  return { first, stop };
}

/** Choose all of what the chosen words are part of. */
export function whole(words, { first, stop }, part) {
  while (first > 0 && words[first - 1][part] === words[first][part]) first--;
  while (stop < words.length && words[stop][part] === words[stop - 1][part]) stop++;
  return { first, stop };
}

/** The chosen words as a text, with blanks where there are some. */
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
