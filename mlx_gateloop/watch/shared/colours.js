/** Colours of half-lives and magnitudes, dark to light. */
export const MAGMA = "000004 1d1147 51127c 832681 b73779 e75263 fc8961 fec488 fcfdbf";

/**
 * A scale of colours: `[red, green, blue]` of a share from 0 to 1.
 * @param {string} stops Hexadecimal colours at even distances.
 * @returns {(share: number) => number[]}
 */
export function gradient(stops) {
  const rgb = stops
    .split(" ")
    .map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  return (share) => {
    const position = Math.min(1, Math.max(0, share)) * (rgb.length - 1);
    const low = Math.min(Math.floor(position), rgb.length - 2);
    return rgb[low].map((from, i) => from + (rgb[low + 1][i] - from) * (position - low));
  };
}
