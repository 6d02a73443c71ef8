/** Bytes of base64. @param {string} text */
export function bytes(text) {
  const letters = atob(text);
  const found = new Uint8Array(letters.length);
  for (let i = 0; i < found.length; i++) found[i] = letters.charCodeAt(i);
  return found;
}

/** Show the data of this page, or why that fails. @param {function(Element, object)} show */
export function showData(show) {
  const page = document.querySelector(".view");
  try {
    show(page, JSON.parse(document.querySelector("#data").textContent));
  } catch (error) {
    page.textContent = error.message;
  }
}

/** The half-life of a code, in tokens. @param {[number, number]} rates Of the codes 0 and 255. */
export function halfLives(rates) {
  const [low, high] = rates.map(Math.log);
  return (code) => Math.LN2 / Math.exp(low + (code / 255) * (high - low));
}

/**
 * Decode a recording: tokens, the retention of each at every later one, and the decays.
 * @param {object} data Written by `share` in sharing.py.
 */
export function recording(data) {
  const { texts, kinds, forgotten } = data;
  const left = bytes(data.left);
  const layers = data.layers.map(({ kind, rows, codes }) => ({ kind, rows, codes: bytes(codes) }));
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
    halfLife: halfLives(data.rates),
  };
}
