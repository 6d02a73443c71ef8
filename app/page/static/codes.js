import { gradient, MAGMA } from "../../../mlx_gateloop/watch/shared/colours.js";

/** Colours, and the 8-bit codes of magnitude and phase that the server sends. */
const LEVELS = 256;
const TWILIGHT =
  "e2d9e2 b3c6ce 7ba1c2 6276ba 5e43a5 4e186f 2f1436 581647 8e2c50 b25652 c6896c d4bcac e2d9e2";
const DECADES = [-1, 4]; // ends of the colour scale: log10 of half-lives in tokens

function palette(stops) {
  const colour = gradient(stops);
  return Uint32Array.from({ length: LEVELS }, (_, level) => {
    const [r, g, b] = colour(level / (LEVELS - 1));
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  });
}

/** Colours of mean magnitudes, by code: 0 is |a| = 0, 255 is |a| = 1. */
export const MEAN_COLOURS = palette(MAGMA);
/** Colours of phases, by code: -π to π. */
export const PHASE_COLOURS = palette(TWILIGHT);

/** A colour of a palette as CSS. @type {(colour: number) => string} */
export const css = (colour) =>
  `rgb(${colour & 255},${(colour >> 8) & 255},${(colour >> 16) & 255})`;

/** A phase in degrees. */
export const degrees = (code) => (code / 255) * 360 - 180;

/** Colours of half-lives, by code. @param {(code: number) => number} halfLife In tokens. */
export const lifeColours = (halfLife) =>
  Uint32Array.from({ length: LEVELS }, (_, code) => {
    const share = (Math.log10(halfLife(code)) - DECADES[0]) / (DECADES[1] - DECADES[0]);
    return MEAN_COLOURS[Math.round(255 * Math.min(1, Math.max(0, share)))];
  });
