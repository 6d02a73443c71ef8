const WORDS = /\s*[\p{L}\p{M}\p{N}_]+|\s*\S|\s+/gu; // blanks belong to the word after them

/**
 * Compare two texts word by word.
 * @param {string} before
 * @param {string} after
 * @param {boolean} whole False while `after` still grows: it is compared with as many words.
 * @returns {{before: Part[], after: Part[]}} Their parts, in order.
 * @typedef {{text: string, changed: boolean}} Part
 */
export function compare(before, after, whole = true) {
  const [all, b] = [before, after].map((text) => text.match(WORDS) ?? []);
  const a = whole ? all : all.slice(0, b.length);
  const common = lengths(a, b);
  const parts = { before: [], after: [] };
  const add = (to, text, changed) => {
    const last = parts[to].at(-1);
    if (last?.changed === changed) last.text += text;
    else parts[to].push({ text, changed });
  };
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      add("before", a[i++], false);
      add("after", b[j++], false);
    } else if (j === b.length || (i < a.length && common[i + 1][j] >= common[i][j + 1]))
      add("before", a[i++], true);
    else add("after", b[j++], true);
  }
  if (all.length > a.length) add("before", all.slice(a.length).join(""), false);
  return parts;
}

/** How many words the rests of two lists have in common, by where the rests begin. */
function lengths(a, b) {
  const table = [...Array(a.length + 1)].map(() => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      table[i][j] =
        a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  return table;
}
