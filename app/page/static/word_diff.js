const MOST_CELLS = 4e6; // of the table; longer texts are marked as changed from where they differ
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
  const parts = { before: [], after: [] };
  const add = (to, text, changed) => {
    const last = parts[to].at(-1);
    if (last?.changed === changed) last.text += text;
    else parts[to].push({ text, changed });
  };
  const differs = a.findIndex((text, n) => text !== b[n]);
  const same = differs < 0 ? a.length : differs;
  if (same) for (const side of ["before", "after"]) add(side, a.slice(0, same).join(""), false);
  let [i, j] = [0, 0];
  const [c, d] = [a.slice(same), b.slice(same)];
  const common = c.length * d.length > MOST_CELLS ? null : lengths(c, d);
  while (i < c.length || j < d.length) {
    if (common && i < c.length && j < d.length && c[i] === d[j]) {
      add("before", c[i++], false);
      add("after", d[j++], false);
    } else if (j === d.length || (i < c.length && !(common?.[i + 1][j] < common?.[i][j + 1])))
      add("before", c[i++], true);
    else add("after", d[j++], true);
  }
  if (all.length > a.length) add("before", all.slice(a.length).join(""), false);
  return parts;
}

/** The number of words that the rests of two lists have in common, by where the rests begin. */
function lengths(a, b) {
  const table = [...Array(a.length + 1)].map(() => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      table[i][j] =
        a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  return table;
}
