/** Numbers and texts of a model in words, for the lines below and above the pictures. */
import { percent, quoted, strong } from "../../../mlx_gateloop/watch/shared/plain.js";

export const named = (piece, token) =>
  `${piece?.special ? "a mark of the chat" : quoted(piece?.text ?? "")}, token ${token}`;

/** The channels and tokens of a pixel. */
export function sharedPixel({ row, bin } = { row: 1, bin: 1 }) {
  const counts = [row > 1 && `${row} channels`, bin > 1 && `${bin} tokens`].filter(Boolean);
  return counts.length ? `· means of ${counts.join(" and ")}` : "";
}

/**
 * The rest of every token in the state.
 * @typedef {{fading: (number | null)[], best: number[], channel: number[], full: (number | null)[]}} Row
 *     Of each token `Trace.retention`; of one layer the greatest product of |a| since, that
 *     channel, and Re(q Πa k). Null where queries and keys are no longer kept.
 */

/** The shares of the strongest token's. */
export function strengths({ fading }) {
  const most = fading.reduce((most, share) => Math.max(most, share ?? 0), 1e-30);
  return fading.map((share) => share && share / most);
}

/** The share of a token that is left in the state, in lines. */
export function remembered(row, token, piece) {
  const { best, channel, full } = row;
  const name = named(piece, token);
  if (token >= best.length) return [name, "comes later"];
  const lines = [name, strong(strengths(row)[token])];
  lines.push(`channel ${channel[token]} of this layer keeps ${percent(best[token])}`);
  if (full[token] !== null) lines.push(`adds ${full[token].toPrecision(3)} to the output`);
  return lines;
}
