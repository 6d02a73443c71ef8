/** Descriptions of numbers and texts, for the lines around the pictures. */
import { percent, quoted, strong } from "../../../mlx_gateloop/watch/shared/plain.js";

export const named = (piece, token) =>
  `${piece?.special ? "a special token" : quoted(piece?.text ?? "")}, token ${token}`;

/** The channels and tokens that share a pixel. */
export function sharedPixel({ row, bin } = { row: 1, bin: 1 }) {
  const counts = [row > 1 && `${row} channels`, bin > 1 && `${bin} tokens`].filter(Boolean);
  return counts.length ? `· means of ${counts.join(" and ")}` : "";
}

/**
 * The retention of every token.
 * @typedef {{retention: (number | null)[], best: number[], channel: number[], full: (number | null)[]}} Row
 *     `Trace.retention`; in one layer the greatest product of |a|, its channel, and Re(q Πa k).
 *     Null where queries and keys are no longer stored.
 */

/** Shares of the strongest token. */
export function strengths({ retention }) {
  const most = retention.reduce((most, share) => Math.max(most, share ?? 0), 1e-30);
  return retention.map((share) => share && share / most);
}

/** Lines about how much of a token remains in the state. */
export function remembered(row, token, piece) {
  const { best, channel, full } = row;
  const name = named(piece, token);
  if (token >= best.length) return [name, "comes later"];
  const lines = [name, strong(strengths(row)[token])];
  lines.push(`channel ${channel[token]} of this layer keeps ${percent(best[token])}`);
  if (full[token] !== null) lines.push(`adds ${full[token].toPrecision(3)} to the output`);
  return lines;
}
