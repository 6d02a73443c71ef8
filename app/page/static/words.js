/** Numbers and texts of a model in words, for the lines below and above the pictures. */
import { percent, quoted, strong } from "../../../mlx_gateloop/watch/shared/plain.js";

/** What a pixel stands for. @param {{row: number, bin: number} | undefined} picture */
export function sharedPixel({ row, bin } = { row: 1, bin: 1 }) {
  const counts = [row > 1 && `${row} channels`, bin > 1 && `${bin} tokens`].filter(Boolean);
  return counts.length ? `· means of ${counts.join(" and ")}` : "";
}

/**
 * What the state holds of every token.
 * @typedef {{fading: (number | null)[], best: number[], channel: number[], full: (number | null)[]}} Row
 *     Of each token `EndlessTrace.fading`; of one layer the greatest product of |a| since, that
 *     channel, and Re(q Πa k). Null where queries and keys are no longer kept.
 */

/** The shares of the strongest token's. @param {Row} row @returns {(number | null)[]} */
export function strengths({ fading }) {
  const most = fading.reduce((most, share) => Math.max(most, share ?? 0), 1e-30);
  return fading.map((share) => share && share / most);
}

/**
 * How much of a token is left in the state.
 * @param {Row} row
 * @param {number} token
 * @param {string} text The token's.
 */
export function remembered(row, token, text) {
  const { best, channel, full } = row;
  const name = `${quoted(text)}, token ${token}`;
  if (token >= best.length) return `${name}, comes later.`;
  const added =
    full[token] === null ? "" : `, and it adds ${full[token].toPrecision(3)} to the output`;
  return (
    `${name}: ${strong(strengths(row)[token])}. ` +
    `In this layer channel ${channel[token]} keeps ${percent(best[token])} of it${added}.`
  );
}
