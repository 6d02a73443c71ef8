/** The data of a shared page. */
export const FORMAT = "gateloop-view";
export const VERSION = 1;

/** Bytes of base64. @param {string} text */
export const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/**
 * Decode a recording: tokens, the retention of each at every later one, and the decays.
 * @param {object} data Written by `share` in sharing.py.
 */
export function recording(data) {
  if (data.format !== FORMAT || data.version !== VERSION)
    throw new Error(`This page has format ${data.version}; its script reads ${VERSION}.`);
  const { texts, kinds, forgotten } = data;
  const left = bytes(data.left);
  const layers = data.layers.map(({ kind, rows, codes }) => ({ kind, rows, codes: bytes(codes) }));
  const [low, high] = data.rates.map(Math.log);
  return {
    texts,
    kinds,
    forgotten,
    layers,
    /** The strength of token m at n, 0 to 1; undefined if unknown, 0 if m comes later. */
    strength(m, n) {
      if (m > n) return 0;
      const code = left[(n * (n + 1)) / 2 + m];
      return code ? (code - 1) / 254 : undefined;
    },
    /** The half-life of a code, in tokens. */
    halfLife: (code) => Math.LN2 / Math.exp(low + (code / 255) * (high - low)),
  };
}
