/** Sizes of tokens and channels in the pictures, in CSS pixels unless noted. */
const WIDEST = 48; // pixels per token at the largest zoom
const WIDEST_OF_ALL = 16; // when all tokens are visible
const CAPACITY = 48; // tokens that fit when a run starts
const GROWTH = 1.3; // factor of the capacity, each time it is full

/** The largest value of the zoom; 0 shows all tokens. */
export const MAX_ZOOM = 8;

/** The width of a token at a zoom. */
export function perToken({ zoom, width, count, done }) {
  const times = Math.ceil(Math.log(Math.max(count / CAPACITY, 1)) / Math.log(GROWTH));
  const all = Math.min(
    WIDEST_OF_ALL,
    width / (done ? Math.max(count, 1) : CAPACITY * GROWTH ** times),
  );
  return all * (WIDEST / all) ** (zoom / MAX_ZOOM);
}

/** The zoom at which a token has the width `each`. */
export function zoomOf({ each, ...shown }) {
  const all = perToken({ ...shown, zoom: 0 });
  return Math.min(
    MAX_ZOOM,
    Math.max(0, MAX_ZOOM * (Math.log(each / all) / Math.log(WIDEST / all))),
  );
}

/** The number of neighbours that share a pixel. */
export const sharing = (pixels) => Math.max(1, Math.ceil(1 / pixels - 1e-9));
