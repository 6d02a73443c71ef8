/** Numbers and texts of a model in words, for the lines below and above the pictures. */
const DIRECTIONS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** A text whose marks that turn the direction of what follows are written as codes. */
export const plain = (text) =>
  text.replace(DIRECTIONS, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** The same in quotation marks. @param {string} text */
export const quoted = (text) => plain(JSON.stringify(text));

/** A share from 0 to 1, to three digits. @param {number} share */
export function percent(share) {
  if (share > 0 && share < 0.001) return "less than 0.1%";
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;
}

/** What a pixel stands for. @param {{row: number, bin: number} | undefined} picture */
export function sharedPixel({ row, bin } = { row: 1, bin: 1 }) {
  const counts = [row > 1 && `${row} channels`, bin > 1 && `${bin} tokens`].filter(Boolean);
  return counts.length ? `· means of ${counts.join(" and ")}` : "";
}

/**
 * How much of a token is left in the state.
 * @typedef {{mean: number[], best: number[], channel: number[], full: (number | null)[]}} Row Of each token
 *     the product of |a| since: its mean over channels, its greatest, and that one's channel; and
 *     Re(q Πa k), or null where queries and keys are no longer kept.
 * @param {Row} row
 * @param {number} token
 * @param {string} text The token's.
 */
export function remembered({ mean, best, channel, full }, token, text) {
  const name = `${quoted(text)} (token ${token})`;
  if (token >= mean.length) return `${name} comes later.`;
  return (
    `${name}: ${percent(mean[token])} is left on average over the channels, ` +
    `${percent(best[token])} in the best one, channel ${channel[token]}. ` +
    `Contribution to the output, Re(q Πa k): ${full[token]?.toPrecision(3) ?? "no longer kept"}.`
  );
}
