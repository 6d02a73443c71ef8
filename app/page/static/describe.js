import { percent } from "../../../mlx_gateloop/watch/shared/plain.js";
import { degrees } from "./codes.js";
import { meanCode, meanPhase } from "./means.js";
import { named } from "./words.js";

/** Lines about the tokens and channels, or the layer, of a cell; none outside the recording. */
export function describe(recording, layer, halfLife, { of, token, from, bin, indices }) {
  const { averages, layers, pieces } = recording;
  const column = recording.columns[layer];
  const { channels, real } = layers[layer];
  const records = of === "layers" ? averages : column;
  if (token < 0 || token >= records.length) return [];
  const to = Math.min(from + bin, records.length);
  const word = named(pieces[token], token) + (bin > 1 ? ` (mean of ${from} to ${to - 1})` : "");
  if (of === "layers") {
    const mean = meanCode(averages, from, to, indices) / 255;
    return [word, `layer ${layers[indices[0]].label} keeps ${percent(mean)}`];
  }
  const rows = indices.map((index) => index % channels);
  const code = meanCode(column, from, to, rows);
  const life = halfLife(code);
  const digits = life < 10 ? 2 : life < 100 ? 1 : 0;
  const tokens = life.toLocaleString("en", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
  const name = rows.length > 1 ? `mean of channels ${rows.join(", ")}` : `channel ${rows[0]}`;
  const kept = (100 * 2 ** (-1 / life)).toFixed(2);
  const lines = [word, `${name}: keeps ${kept}%`, `half remains after ${tokens} such tokens`];
  const phases = rows.map((row) => channels + row);
  const phase = degrees(meanPhase(column, from, to, phases)).toFixed(0);
  return real ? lines : [...lines, `turned by ${phase}°`];
}
