/** Means over tokens and channels that share a pixel. */
const angles = Float64Array.from({ length: 256 }, (_, code) => (code / 255 - 0.5) * 2 * Math.PI);
const COS = angles.map(Math.cos);
const SIN = angles.map(Math.sin);

/** Split an array into groups of neighbours. */
export const grouped = (items, size) =>
  Array.from({ length: Math.ceil(items.length / size) }, (_, i) =>
    items.slice(i * size, (i + 1) * size),
  );

/**
 * The mean code of some rows over the tokens from `from` to `to`. As codes of magnitudes are
 * logarithmic, this is the geometric mean of the half-lives.
 */
export function meanCode({ data, size }, from, to, indices) {
  if (to - from === 1 && indices.length === 1) return data[from * size + indices[0]];
  let sum = 0;
  for (let token = from; token < to; token++)
    for (const index of indices) sum += data[token * size + index];
  return Math.round(sum / ((to - from) * indices.length));
}

/** The circular mean of phases: the direction of the sum of their unit vectors. */
export function meanPhase({ data, size }, from, to, indices) {
  if (to - from === 1 && indices.length === 1) return data[from * size + indices[0]];
  let [x, y] = [0, 0];
  for (let token = from; token < to; token++)
    for (const index of indices) {
      const code = data[token * size + index];
      x += COS[code];
      y += SIN[code];
    }
  return Math.round((Math.atan2(y, x) / (2 * Math.PI) + 0.5) * 255);
}

/** The correlation of each channel's half-life, on its scale, with a mark of 0 or 1 a token. */
export function following({ data, size, length }, marks) {
  const marked = marks.slice(0, length);
  const mean = marked.reduce((sum, mark) => sum + mark, 0) / length;
  return Array.from({ length: size / 2 }, (_, channel) => {
    let [sum, squares, product] = [0, 0, 0];
    marked.forEach((mark, token) => {
      const code = 255 - data[token * size + channel];
      sum += code;
      squares += code ** 2;
      product += code * (mark - mean);
    });
    const spread = (squares - sum ** 2 / length) * length * mean * (1 - mean);
    return spread > 0 ? product / Math.sqrt(spread) : 0;
  });
}
